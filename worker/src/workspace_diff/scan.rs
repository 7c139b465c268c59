//! Reading of an archive of a directory into an index.

use std::io::Read;

use rollout_base::secrets::{RedactionStyle, Redactor};
use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::limits;
use rollout_store::archive::{
    ArchiveLimits, ArchiveMember, ArchivePath, ArchiveTruncation, ExcludePatterns, MemberKind,
    MemberReader, link_stays_inside,
};

use super::WorkspaceDiffError;
use super::contents::ContentFile;
use super::index::{FileState, IndexEntry, WorkspaceIndex};

/// Bytes read at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// Longest target of a symbolic link, as on Linux.
const LINK_BYTES: usize = 4096;

/// Decides which contents are kept.
#[derive(Debug, Clone, Copy)]
pub(super) enum ScanStage<'a> {
    /// Small text files, up to this many bytes.
    Before { text_bytes: u64 },
    /// Files that differ from those before, up to this many bytes.
    After { before: &'a WorkspaceIndex, files_bytes: u64 },
}

/// Reads one archive.
pub(super) struct Scanner<'a> {
    stage: ScanStage<'a>,
    contents: &'a mut ContentFile,
    /// Length of the contents before this reading.
    start: u64,
    exclude: &'a ExcludePatterns,
    redactor: &'a Redactor,
    index: WorkspaceIndex,
    name_bytes: usize,
    buffer: Vec<u8>,
}

/// Why a member was not read.
enum ScanStop {
    /// The archive ends here.
    Cut(String),
    /// There can be no result.
    Failed(WorkspaceDiffError),
}

impl From<ArchiveTruncation> for ScanStop {
    fn from(cut: ArchiveTruncation) -> Self {
        Self::Cut(cut.to_string())
    }
}

impl From<WorkspaceDiffError> for ScanStop {
    fn from(error: WorkspaceDiffError) -> Self {
        Self::Failed(error)
    }
}

impl<'a> Scanner<'a> {
    pub(super) fn new(
        stage: ScanStage<'a>,
        contents: &'a mut ContentFile,
        exclude: &'a ExcludePatterns,
        redactor: &'a Redactor,
    ) -> Self {
        let (start, index, buffer) = (contents.length(), WorkspaceIndex::default(), Vec::new());
        Self { stage, contents, start, exclude, redactor, index, name_bytes: 0, buffer }
    }

    /// Reads the archive to its end, or to the first problem.
    pub(super) fn scan(
        mut self,
        reader: impl Read,
        limits: ArchiveLimits,
    ) -> Result<WorkspaceIndex, WorkspaceDiffError> {
        let mut members = MemberReader::new(reader, limits);
        self.buffer = vec![0; BUFFER_BYTES];
        let mut is_first = true;
        loop {
            let stopped = match members.next_member() {
                Ok(None) => break,
                Ok(Some(member)) => {
                    if is_first && member.kind != MemberKind::Directory {
                        return Err(WorkspaceDiffError::NotDirectory);
                    }
                    is_first = false;
                    self.member(&member, &mut members)
                }
                Err(cut) => Err(cut.into()),
            };
            match stopped {
                Ok(()) => {}
                Err(ScanStop::Cut(why)) => {
                    self.index.cut = Some(why);
                    break;
                }
                Err(ScanStop::Failed(error)) => return Err(error),
            }
        }
        self.index.remove_impossible();
        Ok(self.index)
    }

    fn member(
        &mut self,
        member: &ArchiveMember,
        members: &mut MemberReader<impl Read>,
    ) -> Result<(), ScanStop> {
        let path = match &member.path {
            Ok(path) => path.as_ref().and_then(ArchivePath::without_first),
            Err(_) => {
                self.index.unlisted += 1;
                return Ok(());
            }
        };
        let Some(path) = path.filter(|path| !self.exclude.matches(path.as_bytes())) else {
            return Ok(());
        };
        let mode = member.mode;
        let entry = match &member.kind {
            MemberKind::File => {
                let file = self.file(path.as_bytes(), member.size_bytes, members)?;
                IndexEntry::File { mode, file }
            }
            MemberKind::Directory => IndexEntry::Directory { mode },
            MemberKind::Symlink(target) => {
                let mut target = target.clone();
                target.truncate(LINK_BYTES);
                self.name_bytes += target.len();
                let is_short = target.len() <= limits::ARCHIVE_PATH_BYTES;
                let stays_inside = is_short && link_stays_inside(&path, &target);
                IndexEntry::Symlink { target, stays_inside }
            }
            MemberKind::HardLink(target) => self.hard_link(mode, target),
            MemberKind::Special => IndexEntry::Special { mode },
        };
        self.name_bytes += path.as_bytes().len();
        if self.name_bytes > limits::WORKSPACE_NAME_BYTES {
            let most = limits::WORKSPACE_NAME_BYTES;
            return Err(ScanStop::Cut(format!("its names have more than {most} bytes")));
        }
        self.index.entries.insert(path.as_bytes().to_vec(), entry);
        Ok(())
    }

    /// Another name of a file that came before. If that was excluded, its content is not known.
    fn hard_link(&self, mode: u32, target: &[u8]) -> IndexEntry {
        let target = ArchivePath::clean(target).ok().flatten();
        let target = target.and_then(|target| target.without_first());
        let entry = target.and_then(|target| self.index.entries.get(target.as_bytes()));
        match entry {
            Some(file @ IndexEntry::File { .. }) => file.clone(),
            _ => IndexEntry::Special { mode },
        }
    }

    fn file(
        &mut self,
        path: &[u8],
        size: u64,
        members: &mut MemberReader<impl Read>,
    ) -> Result<FileState, ScanStop> {
        let position = self.contents.length();
        let stores = self.may_store(size);
        let read = self.read(size, stores, members);
        if read.is_err() {
            self.contents.roll_back(position);
        }
        let (digest, masked, binary) = read?;
        let mut file = FileState { size, digest, masked, binary, unchanged: false, content: None };
        let earlier = match self.stage {
            ScanStage::Before { .. } => None,
            ScanStage::After { before, .. } => match before.entries.get(path) {
                Some(IndexEntry::File { file, .. }) => Some(file),
                _ => None,
            },
        };
        match earlier.filter(|earlier| (earlier.size, earlier.digest) == (size, digest)) {
            // Other names of it may be new.
            Some(earlier) => (file.unchanged, file.content) = (true, earlier.content),
            None if self.is_wanted(binary) => file.content = stores.then_some(position),
            None => {}
        }
        if file.content != Some(position) {
            self.contents.roll_back(position);
        }
        Ok(file)
    }

    /// Reads a file; returns its digests and whether it is binary.
    fn read(
        &mut self,
        size: u64,
        stores: bool,
        members: &mut MemberReader<impl Read>,
    ) -> Result<(Digest, Option<Box<Digest>>, bool), ScanStop> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let (mut hasher, mut masked_hasher) = (DigestHasher::default(), DigestHasher::default());
        let mut masking = self.redactor.stream(RedactionStyle::Mask);
        let (mut masked, mut binary, mut left) = (Vec::new(), false, size);
        let masks = !self.redactor.is_empty();
        let mut done = Ok(());
        while left > 0 && done.is_ok() {
            done = members.read(&mut buffer).map_err(ScanStop::from).and_then(|read| {
                left -= read as u64;
                let bytes = &buffer[..read];
                hasher.update(bytes);
                binary |= bytes.contains(&0);
                if masks {
                    masked.clear();
                    masking.push(bytes, &mut masked);
                    masked_hasher.update(&masked);
                }
                let clean = if masks { &masked } else { bytes };
                if stores { Ok(self.contents.append(clean)?) } else { Ok(()) }
            });
        }
        self.buffer = buffer;
        done?;
        let digest = hasher.finish();
        if !masks {
            return Ok((digest, None, binary));
        }
        masked.clear();
        masking.finish(&mut masked);
        masked_hasher.update(&masked);
        if stores {
            self.contents.append(&masked)?;
        }
        let clean = masked_hasher.finish();
        Ok((digest, (clean != digest).then(|| Box::new(clean)), binary))
    }

    /// Whether a file of this size may be kept.
    fn may_store(&self, size: u64) -> bool {
        let used = self.contents.length() - self.start;
        let most = match self.stage {
            ScanStage::Before { .. } if size > limits::PATCH_FILE_BYTES => return false,
            ScanStage::Before { text_bytes } => text_bytes,
            ScanStage::After { files_bytes, .. } => files_bytes,
        };
        used.saturating_add(size) <= most
    }

    /// Whether a new or changed file is kept if there is room for it.
    const fn is_wanted(&self, binary: bool) -> bool {
        match self.stage {
            ScanStage::Before { .. } => !binary,
            ScanStage::After { .. } => true,
        }
    }
}
