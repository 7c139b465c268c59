//! The hook events of a harness: read in pieces, checked, and kept without secrets.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;

use rollout_base::secrets::{RedactingStream, RedactionStyle, Redactor};
use rollout_base::shortage::Shortage;
use rollout_base::shown_path::shown;
use rollout_base::supervise;
use rollout_environment::Environment;
use rollout_protocol::harness::{HookRule, HookStreamSummary, HookStreamValidator, LineSplitter};
use rollout_protocol::limits;
use rollout_protocol::record::HarnessEvents;
use rollout_store::archive::{self, CapturedFile, FilePieces};

use super::output::is_of_harness;
use crate::executor::{self, COPY_LIMIT, CollectionFailure};

/// The events of a harness, for its record.
#[derive(Debug, Default)]
pub(super) struct EventsReading {
    pub(super) events: HarnessEvents,
    /// The kept file and its size.
    pub(super) log: Option<(PathBuf, u64)>,
    /// Why events are missing that may have been written.
    pub(super) lost: Option<CollectionFailure>,
}

/// Reads the events at `path` into `file`. Faults of the harness are violations: they never lose
/// the result of its trial. `required` says whether there must be events.
pub(super) async fn read(
    environment: &dyn Environment,
    path: &str,
    (file, required): (PathBuf, bool),
    mut validator: HookStreamValidator,
    redactor: &Redactor,
) -> EventsReading {
    let mut reading = EventsReading::default();
    let stream = match executor::open_stream(environment, path).await {
        Ok(stream) => stream,
        Err(failure) => {
            let message = format!("cannot read `{path}`: {}", failure.chain());
            validator.violation(HookRule::EventsUnreadable, None, &message);
            reading.lost = Some((message, None)).filter(|_| !is_of_harness(failure.kind));
            reading.events = record(validator.finish(), redactor);
            return reading;
        }
    };
    let mut unreadable = None;
    if let Some(stream) = stream {
        let pieces = EventPieces::new(file.clone(), validator, redactor);
        let most = limits::HOOK_EVENTS_BYTES;
        let work = archive::stream_first_file(stream, most, pieces);
        let Ok((pieces, read)) = tokio::time::timeout(COPY_LIMIT, work).await else {
            let why = format!("{path}: reading it took longer than {COPY_LIMIT:?}");
            reading.events.violations.add(HookRule::EventsUnreadable, 0, None, &why);
            reading.lost = Some((why, None));
            return reading;
        };
        unreadable = read.err();
        let kept;
        (validator, kept) = supervise::blocking(move || pieces.finish()).await;
        match kept {
            Ok(bytes) => reading.log = bytes.map(|bytes| (file, bytes)),
            Err(error) => {
                let why = format!("cannot keep {}: {error}", shown(&file));
                reading.lost = Some((why, Shortage::from_io_error(&error)));
            }
        }
    }
    match unreadable {
        None | Some(CapturedFile::Missing) => {
            let summary = validator.summary();
            if required && summary.total == 0 && summary.violations.total == 0 {
                let message = format!("there are no events in `{path}`");
                validator.violation(HookRule::EventsMissing, None, &message);
            }
        }
        Some(other) => {
            let message = format!("cannot read `{path}`: {}", reason(&other));
            if other == CapturedFile::NotReached && reading.lost.is_none() {
                reading.lost = Some((message.clone(), None));
            }
            validator.violation(HookRule::EventsUnreadable, None, &message);
        }
    }
    reading.events = record(validator.finish(), redactor);
    reading
}

/// Why a file cannot be read as events.
fn reason(read: &CapturedFile) -> String {
    match read {
        CapturedFile::TooLarge(size) => {
            format!("it has {size} bytes, more than {}", limits::HOOK_EVENTS_BYTES)
        }
        CapturedFile::NotRegular | CapturedFile::HardLink => "it is not a regular file".to_owned(),
        CapturedFile::Found(_) | CapturedFile::Missing | CapturedFile::NotReached => {
            "its end is missing".to_owned()
        }
    }
}

fn record(summary: HookStreamSummary, redactor: &Redactor) -> HarnessEvents {
    let mut violations = summary.violations;
    for violation in &mut violations.first {
        let text = redactor.text(&violation.message);
        violation.message = limits::shorten(text, limits::HOOK_VIOLATION_BYTES);
    }
    let counts = summary.counts.into_iter().map(|(event, count)| (event.to_string(), count));
    HarnessEvents { log: None, total: summary.total, counts: counts.collect(), violations }
}

/// Checks the pieces of a file of events and writes them to another file.
struct EventPieces {
    path: PathBuf,
    /// The file, once there is something to write; the error, after which nothing is written.
    file: io::Result<Option<File>>,
    masking: RedactingStream,
    masked: Vec<u8>,
    bytes: u64,
    splitter: LineSplitter,
    validator: HookStreamValidator,
}

impl EventPieces {
    fn new(path: PathBuf, validator: HookStreamValidator, redactor: &Redactor) -> Self {
        Self {
            path,
            file: Ok(None),
            masking: redactor.stream(RedactionStyle::Mask),
            masked: Vec::new(),
            bytes: 0,
            splitter: LineSplitter::new(limits::HOOK_EVENT_BYTES),
            validator,
        }
    }

    fn write_masked(&mut self) {
        let written = match &mut self.file {
            Ok(Some(file)) => file.write_all(&self.masked),
            Ok(None) => File::create(&self.path).and_then(|mut file| {
                file.write_all(&self.masked)?;
                self.file = Ok(Some(file));
                Ok(())
            }),
            Err(_) => Ok(()),
        };
        if let Err(error) = written {
            self.file = Err(error);
        }
        self.masked.clear();
    }

    /// The validator after the last line, and the number of bytes in the file, if there is one.
    fn finish(mut self) -> (HookStreamValidator, io::Result<Option<u64>>) {
        let Self { splitter, validator, .. } = &mut self;
        splitter.finish(|line| validator.push(line));
        let masking =
            std::mem::replace(&mut self.masking, Redactor::default().stream(RedactionStyle::Mask));
        masking.finish(&mut self.masked);
        if !self.masked.is_empty() {
            self.write_masked();
        }
        let bytes = self.bytes;
        (self.validator, self.file.map(|file| file.map(|_| bytes)))
    }
}

impl FilePieces for EventPieces {
    fn take(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        let Self { splitter, validator, .. } = self;
        splitter.push(piece, |line| validator.push(line));
        self.masking.push(piece, &mut self.masked);
        self.write_masked();
    }
}
