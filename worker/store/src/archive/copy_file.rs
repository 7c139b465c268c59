//! The content of one file of an archive, in pieces.

use bytes::Bytes;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;

use super::read::MemberReader;
use super::{ArchiveLimits, ArchivePath, ArchiveTruncation, MemberKind, blocking_reader};

/// Bytes of a piece.
const PIECE_BYTES: usize = 64 * 1024;

/// Sends the content of the first regular file with this path to `pieces`. Returns whether there is
/// one. Ends early, without an error, when the receiver is closed.
///
/// # Errors
/// [`ArchiveTruncation`] if the archive cannot be read to its end within `limits`.
pub async fn copy_file<S>(
    source: S,
    path: ArchivePath,
    limits: ArchiveLimits,
    pieces: mpsc::Sender<Bytes>,
) -> Result<bool, ArchiveTruncation>
where
    S: AsyncRead + Send + Unpin + 'static,
{
    blocking_reader::with_reader(source, move |reader| {
        let mut members = MemberReader::new(reader, limits);
        let mut found = false;
        // To the end: only there a store finds that the content is damaged.
        while let Some(member) = members.next_member()? {
            let is_wanted = member.path.is_ok_and(|found| found.as_ref() == Some(&path));
            if found || !is_wanted || member.kind != MemberKind::File {
                continue;
            }
            found = true;
            let mut buffer = vec![0; PIECE_BYTES];
            loop {
                let read = members.read(&mut buffer)?;
                if read == 0 {
                    break;
                }
                if pieces.blocking_send(Bytes::copy_from_slice(&buffer[..read])).is_err() {
                    return Ok(true);
                }
            }
        }
        Ok(found)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use tar::EntryType;

    use super::*;
    use crate::testing::raw_entry;

    fn archive() -> Vec<u8> {
        let large = vec![b'x'; 3 * PIECE_BYTES + 7];
        [
            raw_entry(b"a/", EntryType::Directory, b"", b""),
            raw_entry(b"a/link", EntryType::Symlink, b"/etc/passwd", b""),
            raw_entry(b"a/large", EntryType::Regular, b"", &large),
            raw_entry(b"a/small", EntryType::Regular, b"", b"text"),
            vec![0; 1024],
        ]
        .concat()
    }

    async fn read(path: &str) -> Result<Option<usize>, ArchiveTruncation> {
        let path = ArchivePath::clean(path.as_bytes()).expect("clean").expect("no root");
        let (pieces, mut received) = mpsc::channel(1);
        let limits = ArchiveLimits { entries: 4, bytes: 4 * PIECE_BYTES as u64 };
        let copying = copy_file(Cursor::new(archive()), path, limits, pieces);
        let counting = async {
            let mut bytes = 0;
            while let Some(piece) = received.recv().await {
                bytes += piece.len();
            }
            bytes
        };
        let (found, bytes) = tokio::join!(copying, counting);
        found.map(|found| found.then_some(bytes))
    }

    #[tokio::test]
    async fn regular_file_of_archive_is_copied_and_links_are_not() {
        assert_eq!(read("a/large").await.expect("whole"), Some(3 * PIECE_BYTES + 7));
        assert_eq!(read("./a/small").await.expect("whole"), Some(4));
        for other in ["a", "a/link", "a/other"] {
            assert_eq!(read(other).await.expect("whole"), None, "{other}");
        }
    }

    #[tokio::test]
    async fn copy_ends_when_nothing_receives() {
        let path = ArchivePath::clean(b"a/large").expect("clean").expect("no root");
        let (pieces, received) = mpsc::channel(1);
        drop(received);
        let found = copy_file(Cursor::new(archive()), path, ArchiveLimits::LOGS, pieces).await;
        assert!(found.expect("no truncation"));
    }
}
