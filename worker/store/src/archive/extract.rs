//! Extraction of archives.

use std::fs::File;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};

use tokio::io::AsyncRead;

use super::directory_writer::{DirectoryWriteError, DirectoryWriter};
use super::path::{ArchivePath, link_stays_inside};
use super::read::MemberReader;
use super::{
    ArchiveError, ArchiveLimits, ArchiveMember, ArchiveReport, ArchiveTruncation, MemberKind,
    blocking_reader,
};

/// Bytes copied at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// Extracts a hostile archive below `into`, which is created if it does not exist: regular files
/// with mode 0644 and directories with mode 0755. Of two members with the same name, the last wins.
///
/// # Errors
/// If the local disk fails. A bad archive is not an error: see [`ArchiveReport`].
pub async fn extract<S>(
    source: S,
    into: &Path,
    limits: ArchiveLimits,
) -> Result<ArchiveReport, ArchiveError>
where
    S: AsyncRead + Send + Unpin + 'static,
{
    unpack(source, into, limits, false).await.map(|(report, _)| report)
}

/// Extracts a hostile archive like [`extract`], but keeps executable bits and the symbolic links
/// that stay inside. Also returns the paths that were left out, because their content is unknown.
///
/// # Errors
/// If the local disk fails. A bad archive is not an error: see [`ArchiveReport`].
pub async fn extract_faithful<S>(
    source: S,
    into: &Path,
    limits: ArchiveLimits,
) -> Result<(ArchiveReport, Vec<ArchivePath>), ArchiveError>
where
    S: AsyncRead + Send + Unpin + 'static,
{
    unpack(source, into, limits, true).await
}

async fn unpack<S>(
    source: S,
    into: &Path,
    limits: ArchiveLimits,
    faithful: bool,
) -> Result<(ArchiveReport, Vec<ArchivePath>), ArchiveError>
where
    S: AsyncRead + Send + Unpin + 'static,
{
    let into = into.to_owned();
    blocking_reader::with_reader(source, move |reader| {
        let mut target = ExtractTarget::open(into, faithful)?;
        let mut members = MemberReader::new(reader, limits);
        let mut report = ArchiveReport::default();
        loop {
            match members.next_member() {
                Ok(Some(member)) => target.extract_member(&member, &mut members, &mut report)?,
                Ok(None) => break,
                Err(cut) => report.cut = Some(cut),
            }
            if report.cut.is_some() {
                break;
            }
        }
        Ok((report, target.left_out))
    })
    .await
}

/// Extracts an archive made by [`pack`](super::pack) below `into`, which is created if it does not
/// exist. Executable bits and symbolic links inside the directory are kept.
///
/// # Errors
/// If the local disk fails, or if the archive was not made by Rollout, is incomplete or exceeds
/// `limits`.
pub async fn extract_trusted<S>(
    source: S,
    into: &Path,
    limits: ArchiveLimits,
) -> Result<(), ArchiveError>
where
    S: AsyncRead + Send + Unpin + 'static,
{
    let into = into.to_owned();
    blocking_reader::with_reader(source, move |reader| {
        let mut target = ExtractTarget::open(into, true)?;
        let mut members = MemberReader::new(reader, limits);
        while let Some(member) = members.next_member().map_err(|cut| untrusted(&cut))? {
            target.extract_trusted_member(&member, &mut members)?;
        }
        Ok(())
    })
    .await
}

fn untrusted(cut: &ArchiveTruncation) -> ArchiveError {
    ArchiveError::Invalid { reason: cut.to_string() }
}

/// The directory being filled.
struct ExtractTarget {
    into: PathBuf,
    tree: DirectoryWriter,
    buffer: Vec<u8>,
    /// Whether executable bits and symbolic links are kept.
    faithful: bool,
    /// The paths that were left out, if requested.
    left_out: Vec<ArchivePath>,
}

impl ExtractTarget {
    fn open(into: PathBuf, faithful: bool) -> Result<Self, ArchiveError> {
        let tree =
            DirectoryWriter::open(&into).map_err(|error| ArchiveError::io("open", &into, error))?;
        Ok(Self { into, tree, buffer: vec![0; BUFFER_BYTES], faithful, left_out: Vec::new() })
    }

    fn extract_member(
        &mut self,
        member: &ArchiveMember,
        members: &mut MemberReader<impl Read>,
        report: &mut ArchiveReport,
    ) -> Result<(), ArchiveError> {
        let path = match &member.path {
            Ok(Some(path)) => path,
            Ok(None) => return Ok(()),
            Err(_) => {
                report.skipped.names += 1;
                return Ok(());
            }
        };
        let done = match &member.kind {
            MemberKind::Directory => self.tree.directory(path).map(|()| None),
            MemberKind::File => self.tree.file(path, self.faithful && member.executable).map(Some),
            MemberKind::Symlink(target) if self.faithful && link_stays_inside(path, target) => {
                self.tree.symlink(path, target).map(|()| None)
            }
            _ => {
                report.skip(&member.kind);
                if self.faithful {
                    self.left_out.push(path.clone());
                }
                return Ok(());
            }
        };
        match done {
            Ok(Some(file)) => {
                report.files += 1;
                let written = self.write_content(path, file, members)?;
                report.bytes += written.0;
                report.cut = written.1;
            }
            Ok(None) if member.kind == MemberKind::Directory => report.directories += 1,
            Ok(None) => {}
            Err(DirectoryWriteError::Conflict) => report.skipped.conflicts += 1,
            Err(DirectoryWriteError::InvalidName) => report.skipped.names += 1,
            Err(DirectoryWriteError::Io(error)) => return Err(self.failed(path, error)),
        }
        Ok(())
    }

    fn extract_trusted_member(
        &mut self,
        member: &ArchiveMember,
        members: &mut MemberReader<impl Read>,
    ) -> Result<(), ArchiveError> {
        let bad = |reason: String| ArchiveError::Invalid { reason };
        let path = match &member.path {
            Ok(Some(path)) => path,
            Ok(None) => return Ok(()),
            Err(error) => return Err(bad(format!("invalid name: {error}"))),
        };
        let done = match &member.kind {
            MemberKind::Directory => self.tree.directory(path).map(|()| None),
            MemberKind::File => self.tree.file(path, member.executable).map(Some),
            MemberKind::Symlink(target) if link_stays_inside(path, target) => {
                self.tree.symlink(path, target).map(|()| None)
            }
            _ => {
                let path = path.as_path().display();
                return Err(bad(format!(
                    "{path} is not a file, a directory or a link that stays inside"
                )));
            }
        };
        match done {
            Ok(Some(file)) => match self.write_content(path, file, members)?.1 {
                Some(cut) => Err(untrusted(&cut)),
                None => Ok(()),
            },
            Ok(None) => Ok(()),
            Err(DirectoryWriteError::Conflict | DirectoryWriteError::InvalidName) => {
                Err(bad(format!("cannot create {}", path.as_path().display())))
            }
            Err(DirectoryWriteError::Io(error)) => Err(self.failed(path, error)),
        }
    }

    /// Writes the content of the current member; returns its length, and why it is incomplete if it
    /// is.
    fn write_content(
        &mut self,
        path: &ArchivePath,
        mut file: File,
        members: &mut MemberReader<impl Read>,
    ) -> Result<(u64, Option<ArchiveTruncation>), ArchiveError> {
        let mut written = 0;
        loop {
            match members.read(&mut self.buffer) {
                Ok(0) => return Ok((written, None)),
                Ok(read) => {
                    let wrote = file.write_all(&self.buffer[..read]);
                    wrote.map_err(|error| self.failed(path, error))?;
                    written += read as u64;
                }
                Err(cut) => return Ok((written, Some(cut))),
            }
        }
    }

    fn failed(&self, path: &ArchivePath, error: std::io::Error) -> ArchiveError {
        ArchiveError::io("write", &self.into.join(path.as_path()), error)
    }
}
