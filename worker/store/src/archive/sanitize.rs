//! Copying of hostile archives into clean ones.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use rollout_base::secrets::{RedactionStyle, Redactor};
use tokio::io::AsyncRead;

use super::path::{ArchivePath, InvalidArchivePath, link_stays_inside};
use super::read::MemberReader;
use super::write::ArchiveWriter;
use super::{
    ArchiveError, ArchiveLimits, ArchiveMember, ArchiveReport, ArchiveTruncation, ExcludePatterns,
    MemberKind, PackedArchive, blocking_reader,
};

/// Bytes copied at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// Options of [`sanitize`].
#[derive(Debug, Clone)]
pub struct SanitizeOptions {
    /// Limits on the hostile archive.
    pub limits: ArchiveLimits,
    /// Handling of the first component of every path.
    pub root: RootHandling,
    /// Exclude patterns, matched against paths in the clean archive.
    pub exclude: ExcludePatterns,
    /// Keep executable bits and the symbolic links that stay inside.
    pub faithful: bool,
    /// Files to also return in memory: their paths in the clean archive and the maximum size of
    /// each in bytes.
    pub captures: Vec<(ArchivePath, u64)>,
    /// Matches secrets in contents and names; captured files stay as they are.
    pub redactor: Redactor,
    /// Handling of members that hold secrets.
    pub secrets: SecretMembers,
}

/// Handling of members that hold secrets in their content, their name or their target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretMembers {
    /// Mask the secrets.
    Mask,
    /// Leave out the members.
    LeaveOut,
}

/// Handling of the first component of every path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootHandling {
    /// Keep it.
    Keep,
    /// Drop it: `logs/agent/x` becomes `agent/x`.
    Drop,
    /// Drop it, unless the archive is a single file; other roots than files and directories are
    /// left out.
    DropUnlessFile,
}

/// A file requested by [`SanitizeOptions::captures`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapturedFile {
    /// Its complete content.
    Found(Bytes),
    /// The archive has no entry of that name.
    Missing,
    /// It is a directory, a symbolic link or a special file.
    NotRegular,
    /// It is a hard link to another file of the archive.
    HardLink,
    /// It has this many bytes, more than the maximum.
    TooLarge(u64),
    /// Reading ended before it; the report says why.
    NotReached,
}

/// Result of [`sanitize`]. The parts are independent: the captured files are present even if the
/// disk is full.
#[derive(Debug)]
pub struct SanitizeOutcome {
    /// The clean archive.
    pub archive: Result<PackedArchive, ArchiveError>,
    /// Its content; for a failed archive, the content read so far.
    pub report: ArchiveReport,
    /// The captured files, in the order of the request.
    pub captured: Vec<CapturedFile>,
    /// Kind of the first member.
    pub first: Option<MemberKind>,
}

/// Copies the regular files and directories of a hostile archive into a new archive at `to`, which
/// must not exist. Owners and times are dropped; so are executable bits and links unless requested.
pub async fn sanitize<S>(source: S, to: &Path, options: SanitizeOptions) -> SanitizeOutcome
where
    S: AsyncRead + Send + Unpin + 'static,
{
    let to = to.to_owned();
    blocking_reader::with_reader(source, move |reader| {
        let mut members = MemberReader::new(reader, options.limits);
        let mut copy = Sanitizer::new(to, options);
        loop {
            match members.next_member() {
                Ok(Some(member)) => copy.next(&member, &mut members),
                Ok(None) => break,
                Err(cut) => copy.truncate(cut, members.refused_member()),
            }
            if copy.is_done() {
                break;
            }
        }
        copy.finish()
    })
    .await
}

struct Sanitizer {
    to: PathBuf,
    /// `None` once writing failed.
    writer: Option<ArchiveWriter<BufWriter<File>>>,
    failure: Option<ArchiveError>,
    report: ArchiveReport,
    options: SanitizeOptions,
    captured: Vec<Option<CapturedFile>>,
    first: Option<MemberKind>,
    buffer: Vec<u8>,
}

impl Sanitizer {
    fn new(to: PathBuf, options: SanitizeOptions) -> Self {
        let (writer, failure) = match File::create_new(&to) {
            Ok(file) => {
                (Some(ArchiveWriter::new(BufWriter::with_capacity(BUFFER_BYTES, file))), None)
            }
            Err(error) => (None, Some(ArchiveError::io("create", &to, error))),
        };
        let captured = options.captures.iter().map(|_| None).collect();
        let (report, first, buffer) = (ArchiveReport::default(), None, vec![0; BUFFER_BYTES]);
        Self { to, writer, failure, report, options, captured, first, buffer }
    }

    /// Whether reading on cannot add to the result.
    fn is_done(&self) -> bool {
        let waiting = self.captured.iter().any(Option::is_none);
        self.report.cut.is_some() || (self.writer.is_none() && !waiting)
    }

    /// Path of a member in the clean archive; `None` for the root of the archive itself.
    fn clean_path(
        &self,
        member: &ArchiveMember,
    ) -> Result<Option<ArchivePath>, InvalidArchivePath> {
        let Some(path) = member.path.clone()? else { return Ok(None) };
        Ok(match (self.options.root, path.without_first()) {
            (RootHandling::Keep, _) => Some(path),
            (_, Some(below)) => Some(below),
            (RootHandling::DropUnlessFile, None) if member.kind == MemberKind::File => Some(path),
            (_, None) => None,
        })
    }

    fn next(&mut self, member: &ArchiveMember, members: &mut MemberReader<impl Read>) {
        if self.first.is_none() {
            self.first = Some(member.kind.clone());
        }
        match self.clean_path(member) {
            Ok(Some(path)) if self.options.exclude.matches(path.as_bytes()) => {}
            Ok(Some(path)) => self.copy_member(&path, member, members),
            Ok(None) => {}
            Err(_) => self.report.skipped.names += 1,
        }
    }

    /// Index and maximum size of the capture for a path in the clean archive.
    fn requested_capture(&self, path: &ArchivePath) -> Option<(usize, u64)> {
        let mut captures = self.options.captures.iter().enumerate();
        captures.find(|(_, (wanted, _))| wanted == path).map(|(index, (_, most))| (index, *most))
    }

    /// Records that reading ended early, perhaps because of the size of one member.
    fn truncate(&mut self, cut: ArchiveTruncation, refused: Option<&ArchiveMember>) {
        self.report.cut = Some(cut);
        if let Some(member) = refused
            && member.kind == MemberKind::File
            && let Ok(Some(path)) = self.clean_path(member)
            && let Some((index, most)) = self.requested_capture(&path)
            && member.size_bytes > most
        {
            self.captured[index] = Some(CapturedFile::TooLarge(member.size_bytes));
        }
    }

    fn copy_member(
        &mut self,
        path: &ArchivePath,
        member: &ArchiveMember,
        members: &mut MemberReader<impl Read>,
    ) {
        let wanted = self.requested_capture(path);
        let masked = self.masked(path.as_bytes());
        match &member.kind {
            kind if self.shows_secrets(path, kind) => {}
            MemberKind::File => self.file(&masked, member, wanted, members),
            MemberKind::Directory => {
                self.report.directories += 1;
                self.write(|writer| writer.directory(&masked));
            }
            MemberKind::Symlink(target)
                if self.options.faithful && link_stays_inside(path, target) =>
            {
                let target = self.masked(target);
                self.write(|writer| writer.symlink(&masked, &target));
            }
            _ => self.report.skip(&member.kind),
        }
        if let Some((index, _)) = wanted {
            match member.kind {
                MemberKind::File => {}
                MemberKind::HardLink(_) => self.captured[index] = Some(CapturedFile::HardLink),
                _ => self.captured[index] = Some(CapturedFile::NotRegular),
            }
        }
    }

    /// Whether a member has a secret in its name or target for which it is left out; counts it.
    fn shows_secrets(&mut self, path: &ArchivePath, kind: &MemberKind) -> bool {
        if self.options.secrets == SecretMembers::Mask {
            return false;
        }
        let mut found = self.options.redactor.found_in(path.as_bytes());
        if let MemberKind::Symlink(target) = kind {
            found.extend(self.options.redactor.found_in(target));
        }
        self.leave_out(found)
    }

    /// Counts a member that is left out if these secrets were found in it.
    fn leave_out(&mut self, found: BTreeSet<Arc<str>>) -> bool {
        let is_left_out = !found.is_empty();
        self.report.secrets.members += u64::from(is_left_out);
        self.report.secrets.names.extend(found);
        is_left_out
    }

    /// A name without secrets: of the same length, so within every limit.
    fn masked(&self, name: &[u8]) -> Vec<u8> {
        let (mut masking, mut masked) =
            (self.options.redactor.stream(RedactionStyle::Mask), Vec::new());
        masking.push(name, &mut masked);
        masking.finish(&mut masked);
        masked
    }

    fn file(
        &mut self,
        path: &[u8],
        member: &ArchiveMember,
        wanted: Option<(usize, u64)>,
        members: &mut MemberReader<impl Read>,
    ) {
        let (size, executable) = (member.size_bytes, member.executable && self.options.faithful);
        let mark = self.writer.as_ref().map(ArchiveWriter::position);
        self.write(|writer| writer.begin_file(path, executable, size));
        let mut kept = wanted.filter(|(_, most)| size <= *most).map(|_| Vec::new());
        let mut left = size;
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut masking = self.options.redactor.stream(RedactionStyle::Mask);
        let (mut scan, mut masked) = (self.options.redactor.scan(), Vec::new());
        let masks = self.options.secrets == SecretMembers::Mask;
        while left > 0 {
            match members.read(&mut buffer) {
                Ok(read) => {
                    let bytes = &buffer[..read];
                    left -= read as u64;
                    if masks {
                        masking.push(bytes, &mut masked);
                        self.write(|writer| writer.content(&masked));
                        masked.clear();
                    } else {
                        scan.push(bytes);
                        self.write(|writer| writer.content(bytes));
                    }
                    if let Some(kept) = &mut kept {
                        kept.extend_from_slice(bytes);
                    }
                }
                Err(cut) => {
                    self.report.cut = Some(cut);
                    break;
                }
            }
        }
        self.buffer = buffer;
        // An incomplete file is left out.
        if left > 0 || self.leave_out(scan.finish()) {
            self.write(|writer| mark.map_or(Ok(()), |mark| writer.roll_back(mark)));
        } else {
            masking.finish(&mut masked);
            self.write(|writer| writer.content(&masked));
            self.write(|writer| writer.end_file(size));
            self.report.files += 1;
            self.report.bytes += size;
        }
        if left > 0 {
            return;
        }
        if let Some((index, _)) = wanted {
            let found = kept.map(|bytes| CapturedFile::Found(Bytes::from(bytes)));
            self.captured[index] = Some(found.unwrap_or(CapturedFile::TooLarge(size)));
        }
    }

    fn write(&mut self, write: impl FnOnce(&mut ArchiveWriter<BufWriter<File>>) -> io::Result<()>) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = write(writer)
        {
            self.writer = None;
            self.failure = Some(ArchiveError::io("write", &self.to, error));
        }
    }

    fn finish(self) -> SanitizeOutcome {
        let Self { to, writer, failure, report, captured, first, .. } = self;
        let archive = match (writer, failure) {
            (Some(writer), None) => match writer.finish() {
                Ok((_, packed)) => Ok(packed),
                Err(error) => Err(ArchiveError::io("write", &to, error)),
            },
            (_, Some(failure)) => Err(failure),
            (None, None) => unreachable!("the writer is dropped only after a failure"),
        };
        if archive.is_err() {
            // Best effort: the caller removes the whole directory anyway.
            let _removed = std::fs::remove_file(&to);
        }
        let cut = report.cut.is_some();
        let absent = || if cut { CapturedFile::NotReached } else { CapturedFile::Missing };
        let captured = captured.into_iter().map(|found| found.unwrap_or_else(absent)).collect();
        SanitizeOutcome { archive, report, captured, first }
    }
}
