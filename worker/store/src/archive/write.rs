//! A writer of archives whose bytes depend only on their members.

use std::fs::File;
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write};

use rollout_protocol::digest::DigestHasher;
use tar::{EntryType, Header};

use super::PackedArchive;
use super::read::padding;

/// Space for a name or link target in a header.
const FIELD_BYTES: usize = 100;

/// Name of the members that hold longer names, as every implementation writes it.
const LONG_NAME: &[u8] = b"././@LongLink";

/// Writes members one by one. Owners, times and devices are zero, modes are 0644, 0755 and, for
/// links, 0777.
pub struct ArchiveWriter<W> {
    writer: W,
    hasher: DigestHasher,
    size_bytes: u64,
    entries: u64,
}

/// A position between two members.
pub(super) struct ArchivePosition(DigestHasher, u64, u64);

impl<W: Write> ArchiveWriter<W> {
    /// An archive without members yet.
    pub fn new(writer: W) -> Self {
        Self { writer, hasher: DigestHasher::default(), size_bytes: 0, entries: 0 }
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: &[u8]) -> io::Result<()> {
        let name = [path, b"/"].concat();
        self.header(&name, EntryType::Directory, 0o755, 0, b"")
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &[u8], target: &[u8]) -> io::Result<()> {
        self.header(path, EntryType::Symlink, 0o777, 0, target)
    }

    /// Starts a file: exactly `size` bytes of content and then [`ArchiveWriter::end_file`] must
    /// follow.
    pub fn begin_file(&mut self, path: &[u8], executable: bool, size: u64) -> io::Result<()> {
        let mode = if executable { 0o755 } else { 0o644 };
        self.header(path, EntryType::Regular, mode, size, b"")
    }

    /// Adds content to the current file.
    pub fn content(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes)?;
        self.hasher.update(bytes);
        self.size_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Completes a file of `size` bytes.
    pub fn end_file(&mut self, size: u64) -> io::Result<()> {
        let zeros = usize::try_from(padding(size)).expect("padding is shorter than a block");
        self.content(&[0; 512][..zeros])
    }

    /// The current position, for [`ArchiveWriter::roll_back`].
    pub(super) fn position(&self) -> ArchivePosition {
        ArchivePosition(self.hasher.clone(), self.size_bytes, self.entries)
    }

    /// Writes the end mark and returns the writer.
    pub fn finish(mut self) -> io::Result<(W, PackedArchive)> {
        self.content(&[0; 1024])?;
        self.writer.flush()?;
        let Self { writer, hasher, size_bytes, entries } = self;
        Ok((writer, PackedArchive { digest: hasher.finish(), size_bytes, entries }))
    }

    fn header(
        &mut self,
        name: &[u8],
        kind: EntryType,
        mode: u32,
        size: u64,
        link: &[u8],
    ) -> io::Result<()> {
        self.long(name, EntryType::GNULongName)?;
        self.long(link, EntryType::GNULongLink)?;
        self.entries += 1;
        self.block(name, kind, mode, size, link)
    }

    /// Adds the member that holds a name too long for a header.
    fn long(&mut self, name: &[u8], kind: EntryType) -> io::Result<()> {
        if name.len() <= FIELD_BYTES {
            return Ok(());
        }
        let size = name.len() as u64 + 1;
        self.block(LONG_NAME, kind, 0o644, size, b"")?;
        self.content(name)?;
        self.content(b"\0")?;
        self.end_file(size)
    }

    fn block(
        &mut self,
        name: &[u8],
        kind: EntryType,
        mode: u32,
        size: u64,
        link: &[u8],
    ) -> io::Result<()> {
        let mut header = Header::new_gnu();
        let fields = header.as_old_mut();
        copy_into(&mut fields.name, name);
        copy_into(&mut fields.linkname, link);
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        self.content(header.as_bytes())
    }
}

impl ArchiveWriter<BufWriter<File>> {
    /// Removes everything written since `mark`.
    pub(super) fn roll_back(&mut self, mark: ArchivePosition) -> io::Result<()> {
        let ArchivePosition(hasher, size_bytes, entries) = mark;
        self.writer.seek(SeekFrom::Start(size_bytes))?;
        self.writer.get_ref().set_len(size_bytes)?;
        (self.hasher, self.size_bytes, self.entries) = (hasher, size_bytes, entries);
        Ok(())
    }
}

fn copy_into(field: &mut [u8; FIELD_BYTES], bytes: &[u8]) {
    let length = bytes.len().min(FIELD_BYTES);
    field[..length].copy_from_slice(&bytes[..length]);
}
