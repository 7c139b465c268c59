//! Copies a hostile archive into a clean one.

use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tokio::io::AsyncRead;

use super::path::{ArchivePath, BadPath};
use super::read::Members;
use super::write::ArchiveWriter;
use super::{ArchiveError, Cut, Kind, Limits, Member, Packed, Report, bridge};
use crate::secrets::{Redactor, Style};

/// Bytes copied at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// How to [`sanitize`].
#[derive(Debug, Clone)]
pub struct Sanitize {
    /// Bounds.
    pub limits: Limits,
    /// Leave out the first component of every path: `logs/agent/x` becomes `agent/x`.
    pub strip_first: bool,
    /// A file to give back from memory: its path in the clean archive and the most bytes it may
    /// have.
    pub capture: Option<(ArchivePath, u64)>,
    /// Masks secrets in contents and names of the clean archive; the captured file stays as it is.
    pub redactor: Redactor,
}

/// The file that [`Sanitize::capture`] asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Captured {
    /// Its content, whole.
    Found(Bytes),
    /// The archive has nothing of that name.
    Missing,
    /// It is a directory, a symbolic link or something special.
    NotRegular,
    /// It is one more name of a file that stands elsewhere in the archive.
    HardLink,
    /// It has this many bytes, more than asked for.
    TooLarge(u64),
    /// Reading ended before it, so nobody knows; the report says why.
    Unknown,
}

/// What [`sanitize`] made of an archive. The parts are independent: a disk that is full takes
/// nothing from the captured file.
#[derive(Debug)]
pub struct Sanitized {
    /// The clean archive.
    pub archive: Result<Packed, ArchiveError>,
    /// What it holds; of a failed archive, what it would have held so far.
    pub report: Report,
    /// The captured file; [`Captured::Missing`] when none was asked for.
    pub captured: Captured,
}

/// Copies the regular files and directories of a hostile archive into a new archive at `to`, which
/// must not exist. Executable bits, owners and times are dropped.
pub async fn sanitize<S>(source: S, to: &Path, options: Sanitize) -> Sanitized
where
    S: AsyncRead + Send + Unpin + 'static,
{
    let to = to.to_owned();
    bridge::with_reader(source, move |reader| {
        let mut copy = Copy::new(to, options.strip_first, options.capture, options.redactor);
        let mut members = Members::new(reader, options.limits);
        loop {
            match members.next() {
                Ok(Some(member)) => copy.next(&member, &mut members),
                Ok(None) => break,
                Err(cut) => copy.cut(cut, members.refused()),
            }
            if copy.is_done() {
                break;
            }
        }
        copy.finish()
    })
    .await
}

struct Copy {
    to: PathBuf,
    /// Gone once writing failed.
    writer: Option<ArchiveWriter<BufWriter<File>>>,
    failure: Option<ArchiveError>,
    report: Report,
    strip_first: bool,
    wanted: Option<(ArchivePath, u64)>,
    captured: Option<Captured>,
    redactor: Redactor,
    buffer: Vec<u8>,
}

impl Copy {
    fn new(
        to: PathBuf,
        strip_first: bool,
        wanted: Option<(ArchivePath, u64)>,
        redactor: Redactor,
    ) -> Self {
        let (writer, failure) = match File::create_new(&to) {
            Ok(file) => {
                (Some(ArchiveWriter::new(BufWriter::with_capacity(BUFFER_BYTES, file))), None)
            }
            Err(error) => (None, Some(ArchiveError::io("creating", &to, error))),
        };
        let (report, buffer) = (Report::default(), vec![0; BUFFER_BYTES]);
        let captured = None;
        Self { to, writer, failure, report, strip_first, wanted, captured, redactor, buffer }
    }

    /// Whether nothing more can come of reading on.
    fn is_done(&self) -> bool {
        let waiting = self.wanted.is_some() && self.captured.is_none();
        self.report.cut.is_some() || (self.writer.is_none() && !waiting)
    }

    /// Where a member belongs in the clean archive; `None` for what the archive itself stands for.
    fn place(&self, member: &Member) -> Result<Option<ArchivePath>, BadPath> {
        let path = member.path.clone()?;
        Ok(if self.strip_first { path.and_then(|path| path.without_first()) } else { path })
    }

    fn next(&mut self, member: &Member, members: &mut Members<impl Read>) {
        match self.place(member) {
            Ok(Some(path)) => self.take(&path, member, members),
            Ok(None) => {}
            Err(_) => self.report.skipped.names += 1,
        }
    }

    /// Reading has ended early, perhaps for the size of one member.
    fn cut(&mut self, cut: Cut, refused: Option<&Member>) {
        self.report.cut = Some(cut);
        if let Some(member) = refused
            && let Some((wanted, most)) = &self.wanted
            && member.kind == Kind::File
            && member.size_bytes > *most
            && self.place(member).is_ok_and(|path| path.as_ref() == Some(wanted))
        {
            self.captured = Some(Captured::TooLarge(member.size_bytes));
        }
    }

    fn take(&mut self, path: &ArchivePath, member: &Member, members: &mut Members<impl Read>) {
        let limit = self.wanted.as_ref().filter(|(wanted, _)| wanted == path).map(|(_, max)| *max);
        let masked = self.masked(path.as_bytes());
        match member.kind {
            Kind::File => self.file(&masked, member.size_bytes, limit, members),
            Kind::Directory => {
                self.report.directories += 1;
                self.write(|writer| writer.directory(&masked));
            }
            _ => self.report.skip(&member.kind),
        }
        if limit.is_some() {
            match member.kind {
                Kind::File => {}
                Kind::HardLink => self.captured = Some(Captured::HardLink),
                _ => self.captured = Some(Captured::NotRegular),
            }
        }
    }

    /// A name without secrets: as long as before, so within every bound.
    fn masked(&self, name: &[u8]) -> Vec<u8> {
        let (mut masking, mut masked) = (self.redactor.stream(Style::Mask), Vec::new());
        masking.push(name, &mut masked);
        masking.finish(&mut masked);
        masked
    }

    fn file(
        &mut self,
        path: &[u8],
        size: u64,
        limit: Option<u64>,
        members: &mut Members<impl Read>,
    ) {
        let mark = self.writer.as_ref().map(ArchiveWriter::mark);
        self.write(|writer| writer.begin_file(path, false, size));
        let mut kept = limit.filter(|max| size <= *max).map(|_| Vec::new());
        let mut left = size;
        let mut buffer = std::mem::take(&mut self.buffer);
        let (mut masking, mut masked) = (self.redactor.stream(Style::Mask), Vec::new());
        while left > 0 {
            match members.read(&mut buffer) {
                Ok(read) => {
                    left -= read as u64;
                    masking.push(&buffer[..read], &mut masked);
                    self.write(|writer| writer.content(&masked));
                    masked.clear();
                    if let Some(kept) = &mut kept {
                        kept.extend_from_slice(&buffer[..read]);
                    }
                }
                Err(cut) => {
                    self.report.cut = Some(cut);
                    break;
                }
            }
        }
        self.buffer = buffer;
        if left > 0 {
            // A file that is not whole is left out.
            self.write(|writer| mark.map_or(Ok(()), |mark| writer.roll_back(mark)));
            return;
        }
        masking.finish(&mut masked);
        self.write(|writer| writer.content(&masked));
        self.write(|writer| writer.end_file(size));
        self.report.files += 1;
        self.report.bytes += size;
        if limit.is_some() {
            let found = kept.map(|bytes| Captured::Found(Bytes::from(bytes)));
            self.captured = Some(found.unwrap_or(Captured::TooLarge(size)));
        }
    }

    fn write(&mut self, write: impl FnOnce(&mut ArchiveWriter<BufWriter<File>>) -> io::Result<()>) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = write(writer)
        {
            self.writer = None;
            self.failure = Some(ArchiveError::io("writing", &self.to, error));
        }
    }

    fn finish(self) -> Sanitized {
        let Self { to, writer, failure, report, wanted, captured, .. } = self;
        let archive = match (writer, failure) {
            (Some(writer), None) => match writer.finish() {
                Ok((_, packed)) => Ok(packed),
                Err(error) => Err(ArchiveError::io("writing", &to, error)),
            },
            (_, Some(failure)) => Err(failure),
            (None, None) => unreachable!("a writer goes only with a failure"),
        };
        if archive.is_err() {
            // Best effort: the caller's directory goes as a whole anyway.
            let _removed = std::fs::remove_file(&to);
        }
        let unknown = wanted.is_some() && report.cut.is_some();
        let absent = if unknown { Captured::Unknown } else { Captured::Missing };
        Sanitized { archive, report, captured: captured.unwrap_or(absent) }
    }
}
