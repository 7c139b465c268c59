//! Extraction of one small file from a hostile archive.

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
        let mut members = MemberReader::new(reader, ArchiveLimits { entries: 1, bytes: max_bytes });
        let member = match members.next() {
            Ok(Some(member)) => member,
            Ok(None) => return CapturedFile::Missing,
            Err(ArchiveTruncation::Bytes(_)) => {
                let size = members.refused_member().map_or(max_bytes, |member| member.size_bytes);
                return CapturedFile::TooLarge(size);
            }
            Err(_) => return CapturedFile::NotReached,
        };
        match member.kind {
            MemberKind::File => {}
            MemberKind::HardLink => return CapturedFile::HardLink,
            _ => return CapturedFile::NotRegular,
        }
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match members.read(&mut buffer) {
                Ok(0) => return CapturedFile::Found(Bytes::from(bytes)),
                Ok(read) => bytes.extend_from_slice(&buffer[..read]),
                Err(_) => return CapturedFile::NotReached,
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use tar::EntryType;

    use super::*;
    use crate::environment::fake::raw_entry;

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
