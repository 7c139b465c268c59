//! Extraction of one file from a hostile archive.

use std::io::Read;

use bytes::Bytes;
use tokio::io::AsyncRead;

use super::read::MemberReader;
use super::{ArchiveLimits, ArchiveTruncation, CapturedFile, MemberKind, blocking_reader};

/// Reads the first member of a hostile archive, which must be a regular file of at most
/// `max_bytes`. Nothing is written, and nothing after it is read.
pub async fn first_file<S>(source: S, max_bytes: u64) -> CapturedFile
where
    S: AsyncRead + Send + Unpin + 'static,
{
    blocking_reader::with_reader(source, move |reader| {
        let mut bytes = Vec::new();
        match read_first(reader, max_bytes, |piece| bytes.extend_from_slice(piece)) {
            Ok(()) => CapturedFile::Found(Bytes::from(bytes)),
            Err(other) => other,
        }
    })
    .await
}

/// Like [`first_file`] for a file that is not held in memory: gives its pieces in order to `take`,
/// on a blocking thread. Returns `take` with what it holds, and why the file is missing or
/// incomplete, if it is; never [`CapturedFile::Found`].
pub async fn stream_first_file<S, T>(
    source: S,
    max_bytes: u64,
    mut take: T,
) -> (T, Result<(), CapturedFile>)
where
    S: AsyncRead + Send + Unpin + 'static,
    T: FilePieces + 'static,
{
    blocking_reader::with_reader(source, move |reader| {
        let read = read_first(reader, max_bytes, |piece| take.take(piece));
        (take, read)
    })
    .await
}

/// Takes the pieces of a file in order.
pub trait FilePieces: Send {
    /// Takes the next piece. It may block.
    fn take(&mut self, piece: &[u8]);
}

fn read_first(
    reader: &mut dyn Read,
    max_bytes: u64,
    mut take: impl FnMut(&[u8]),
) -> Result<(), CapturedFile> {
    let mut members = MemberReader::new(reader, ArchiveLimits { entries: 1, bytes: max_bytes });
    let member = match members.next_member() {
        Ok(Some(member)) => member,
        Ok(None) => return Err(CapturedFile::Missing),
        Err(ArchiveTruncation::Bytes(_)) => {
            let size = members.refused_member().map_or(max_bytes, |member| member.size_bytes);
            return Err(CapturedFile::TooLarge(size));
        }
        Err(_) => return Err(CapturedFile::NotReached),
    };
    match member.kind {
        MemberKind::File => {}
        MemberKind::HardLink(_) => return Err(CapturedFile::HardLink),
        _ => return Err(CapturedFile::NotRegular),
    }
    let mut buffer = [0; 16 * 1024];
    loop {
        match members.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => take(&buffer[..read]),
            Err(_) => return Err(CapturedFile::NotReached),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use tar::EntryType;

    use super::*;
    use crate::testing::raw_entry;

    async fn read(kind: EntryType, content: &[u8]) -> CapturedFile {
        let archive = [raw_entry(b"cost", kind, b"/etc/passwd", content), vec![0; 1024]].concat();
        first_file(Cursor::new(archive), 10).await
    }

    #[tokio::test]
    async fn captured_file_large_or_not_regular_is_refused() {
        let small = CapturedFile::Found(Bytes::from_static(b"0123456789"));
        assert_eq!(read(EntryType::Regular, b"0123456789").await, small);
        assert_eq!(read(EntryType::Regular, b"0123456789a").await, CapturedFile::TooLarge(11));
        assert_eq!(read(EntryType::Symlink, b"").await, CapturedFile::NotRegular);
        assert_eq!(read(EntryType::Directory, b"").await, CapturedFile::NotRegular);
        assert_eq!(read(EntryType::Fifo, b"").await, CapturedFile::NotRegular);
        assert_eq!(read(EntryType::Link, b"").await, CapturedFile::HardLink);
        assert_eq!(first_file(Cursor::new(vec![0; 1024]), 10).await, CapturedFile::Missing);
        assert_eq!(first_file(Cursor::new(vec![7; 700]), 10).await, CapturedFile::NotReached);
    }
}
