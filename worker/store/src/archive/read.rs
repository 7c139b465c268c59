//! A reader of the members of a tar stream, safe for hostile input, in bounded memory.

use std::io::{self, Read};

use rollout_protocol::limits;
use tar::{EntryType, GnuExtSparseHeader, Header};
use tokio::io::AsyncRead;

use super::path::{ArchivePath, InvalidArchivePath};
use super::pax::PaxHeader;
use super::{ArchiveLimits, ArchiveTruncation, blocking_reader};
use crate::StoreError;

/// Block size of the tar format.
pub(super) const BLOCK: u64 = 512;

/// Largest extended header that is read: names are short, and the other fields are ignored.
const EXTENSION_BYTES: u64 = 1024 * 1024;

/// Zeros after the end of an archive that are still read, so that the connection that delivers it
/// can be reused. Writers pad archives to at most this.
const TRAILER_BYTES: u64 = 64 * 1024;

/// One member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveMember {
    /// Its path; `None` for the root directory of the archive.
    pub path: Result<Option<ArchivePath>, InvalidArchivePath>,
    /// Its kind.
    pub kind: MemberKind,
    /// Bytes of its content.
    pub size_bytes: u64,
    /// Its permission bits, of which some writers set only a part.
    pub mode: u32,
    /// Whether it is executable.
    pub executable: bool,
}

/// Kinds of members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link with its unchecked target.
    Symlink(Vec<u8>),
    /// A hard link with the unchecked name of another member.
    HardLink(Vec<u8>),
    /// Anything else.
    Special,
}

/// Lists the members of an archive.
///
/// # Errors
/// [`ArchiveTruncation`] if the archive cannot be read to its end within `limits`.
pub async fn list<S>(
    source: S,
    limits: ArchiveLimits,
) -> Result<Vec<ArchiveMember>, ArchiveTruncation>
where
    S: AsyncRead + Send + Unpin + 'static,
{
    blocking_reader::with_reader(source, move |reader| {
        let mut members = MemberReader::new(reader, limits);
        let mut found = Vec::new();
        while let Some(member) = members.next_member()? {
            found.push(member);
        }
        Ok(found)
    })
    .await
}

/// Iterates over a stream member by member. The first [`ArchiveTruncation`] is final.
pub struct MemberReader<R> {
    reader: R,
    limits: ArchiveLimits,
    entries: u64,
    bytes: u64,
    /// Bytes of extended headers; they have a separate limit of the same size.
    extension_bytes: u64,
    /// The member that exceeded the limit.
    refused: Option<ArchiveMember>,
    /// Unread content of the current member, and zeros after it.
    remaining: u64,
    padding: u64,
}

/// Extensions in front of a member's own header.
#[derive(Default)]
struct MemberExtensions {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    pax: Option<PaxHeader>,
}

impl<R: Read> MemberReader<R> {
    /// Members of an archive, within limits.
    pub fn new(reader: R, limits: ArchiveLimits) -> Self {
        let (entries, bytes, extension_bytes) = (0, 0, 0);
        let (refused, remaining, padding) = (None, 0, 0);
        Self { reader, limits, entries, bytes, extension_bytes, refused, remaining, padding }
    }

    /// The next member; unread content of the current one is skipped.
    ///
    /// # Errors
    /// Where the archive ends too early, or exceeds a limit.
    pub fn next_member(&mut self) -> Result<Option<ArchiveMember>, ArchiveTruncation> {
        self.skip(self.remaining + self.padding)?;
        (self.remaining, self.padding) = (0, 0);
        let mut extensions = MemberExtensions::default();
        loop {
            let Some(header) = self.header()? else {
                self.drain_trailer()?;
                return Ok(None);
            };
            if !self.extension(&header, &mut extensions)? {
                return self.member(&header, extensions).map(Some);
            }
        }
    }

    /// Content of the current member; 0 at its end.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveTruncation> {
        let wanted = buffer.len().min(usize::try_from(self.remaining).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let read = self.read_some(&mut buffer[..wanted])?;
        self.remaining -= read as u64;
        Ok(read)
    }

    /// The member whose size caused the truncation.
    pub(super) fn refused_member(&self) -> Option<&ArchiveMember> {
        self.refused.as_ref()
    }

    fn member(
        &mut self,
        header: &Header,
        extensions: MemberExtensions,
    ) -> Result<ArchiveMember, ArchiveTruncation> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(ArchiveTruncation::Entries(self.limits.entries));
        }
        let pax = extensions.pax.unwrap_or_default();
        let name = pax.path.or(extensions.name).unwrap_or_else(|| header.path_bytes().into_owned());
        let link = pax.link.or(extensions.link);
        let kind = kind(header, &name, link, pax.sparse);
        let mode = header.mode().unwrap_or_default() & 0o7777;
        let executable = mode & 0o111 != 0;
        // Some writers give a link the size of its target, without content.
        let size_bytes = match pax.size {
            _ if !has_content(header.entry_type()) => 0,
            Some(size) => size,
            None => header.entry_size().map_err(|_| ArchiveTruncation::Malformed("bad size"))?,
        };
        let path = ArchivePath::clean(&name);
        let member = ArchiveMember { path, kind, size_bytes, mode, executable };
        self.bytes = self.bytes.saturating_add(size_bytes);
        if self.bytes > self.limits.bytes {
            self.refused = Some(member);
            return Err(ArchiveTruncation::Bytes(self.limits.bytes));
        }
        if header.entry_type().is_gnu_sparse() {
            self.skip_sparse_map(header)?;
        }
        self.remaining = size_bytes;
        self.padding = padding(size_bytes);
        Ok(member)
    }

    /// Reads the content of an extension header; returns whether it was one.
    fn extension(
        &mut self,
        header: &Header,
        found: &mut MemberExtensions,
    ) -> Result<bool, ArchiveTruncation> {
        let kind = header.entry_type();
        let known = kind.is_gnu_longname()
            || kind.is_gnu_longlink()
            || kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions();
        if !known {
            return Ok(false);
        }
        let size = header
            .entry_size()
            .map_err(|_| ArchiveTruncation::Malformed("invalid size of an extension"))?;
        if size > EXTENSION_BYTES {
            return Err(ArchiveTruncation::Malformed("extension too large"));
        }
        self.charge_extension(BLOCK + size + padding(size))?;
        let mut content = vec![0; usize::try_from(size).expect("it is small")];
        self.fill(&mut content)?;
        self.skip(padding(size))?;
        let is_repeated = match kind {
            EntryType::GNULongName => found.name.replace(until_nul(content)).is_some(),
            EntryType::GNULongLink => found.link.replace(until_nul(content)).is_some(),
            EntryType::XHeader => {
                let pax = PaxHeader::parse(&content)
                    .ok_or(ArchiveTruncation::Malformed("invalid pax record"))?;
                found.pax.replace(pax).is_some()
            }
            // The fields of a global header are not used here.
            _ => false,
        };
        if is_repeated { Err(ArchiveTruncation::Malformed("repeated extension")) } else { Ok(true) }
    }

    /// The next header; `None` at the end mark.
    fn header(&mut self) -> Result<Option<Header>, ArchiveTruncation> {
        let mut header = Header::new_old();
        self.fill(header.as_mut_bytes())?;
        let bytes = header.as_bytes();
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let sum =
            bytes[..148].iter().chain(&bytes[156..]).map(|byte| u32::from(*byte)).sum::<u32>()
                + 8 * u32::from(b' ');
        if header.cksum().ok() != Some(sum) {
            return Err(ArchiveTruncation::Malformed("invalid checksum of a header"));
        }
        Ok(Some(header))
    }

    fn skip_sparse_map(&mut self, header: &Header) -> Result<(), ArchiveTruncation> {
        let mut more = header.as_gnu().is_some_and(tar::GnuHeader::is_extended);
        while more {
            self.charge_extension(BLOCK)?;
            let mut map = GnuExtSparseHeader::new();
            self.fill(map.as_mut_bytes())?;
            more = map.is_extended();
        }
        Ok(())
    }

    /// Charges bytes to the limit before they are read.
    fn charge_extension(&mut self, bytes: u64) -> Result<(), ArchiveTruncation> {
        self.extension_bytes += bytes;
        if self.extension_bytes > self.limits.bytes.max(EXTENSION_BYTES) {
            return Err(ArchiveTruncation::Malformed("extensions too large in total"));
        }
        Ok(())
    }

    fn fill(&mut self, mut buffer: &mut [u8]) -> Result<(), ArchiveTruncation> {
        while !buffer.is_empty() {
            let read = self.read_some(buffer)?;
            buffer = &mut buffer[read..];
        }
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), ArchiveTruncation> {
        let skipped = io::copy(&mut (&mut self.reader).take(bytes), &mut io::sink())
            .map_err(|error| ArchiveTruncation::Source(error.to_string()))?;
        if skipped == bytes { Ok(()) } else { Err(ArchiveTruncation::Incomplete) }
    }

    /// Reads at least one byte.
    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveTruncation> {
        loop {
            match self.reader.read(buffer) {
                Ok(0) => return Err(ArchiveTruncation::Incomplete),
                Ok(read) => return Ok(read),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ArchiveTruncation::Source(error.to_string())),
            }
        }
    }

    /// Reads to the end of the source, where a store reports damaged content. Any other failure is
    /// ignored: everything relevant was read.
    fn drain_trailer(&mut self) -> Result<(), ArchiveTruncation> {
        let drained = io::copy(&mut (&mut self.reader).take(TRAILER_BYTES), &mut io::sink());
        let is_damage = |error: &io::Error| error.get_ref().is_some_and(|e| e.is::<StoreError>());
        match drained {
            Err(error) if is_damage(&error) => Err(ArchiveTruncation::Source(error.to_string())),
            _ => Ok(()),
        }
    }
}

/// Padding after content of this size.
pub(super) const fn padding(size: u64) -> u64 {
    (BLOCK - size % BLOCK) % BLOCK
}

/// Whether bytes follow a header of this type: links, devices, directories and pipes have none.
fn has_content(kind: EntryType) -> bool {
    !matches!(kind.as_byte(), b'1'..=b'6')
}

fn kind(header: &Header, name: &[u8], link: Option<Vec<u8>>, sparse: bool) -> MemberKind {
    match header.entry_type() {
        EntryType::Directory => MemberKind::Directory,
        EntryType::Link | EntryType::Symlink => {
            let in_header = || header.link_name_bytes().map(std::borrow::Cow::into_owned);
            let target = link.or_else(in_header).unwrap_or_default();
            if header.entry_type() == EntryType::Link {
                MemberKind::HardLink(target)
            } else {
                MemberKind::Symlink(target)
            }
        }
        EntryType::Regular | EntryType::Continuous if !sparse => {
            // Before ustar, a trailing slash marked a directory.
            if name.ends_with(b"/") { MemberKind::Directory } else { MemberKind::File }
        }
        _ => MemberKind::Special,
    }
}

/// A name that needed an extension, without the zero at its end. A name that is far too long is cut
/// to a length that is still too long, to save memory.
fn until_nul(mut name: Vec<u8>) -> Vec<u8> {
    if let Some(end) = name.iter().position(|byte| *byte == 0) {
        name.truncate(end);
    }
    name.truncate(limits::ARCHIVE_PATH_BYTES * 2);
    name
}
