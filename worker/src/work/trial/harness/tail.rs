//! The hook events of a harness while its command runs.

use std::collections::BTreeSet;
use std::time::Duration;

use rollout_environment::Environment;
use rollout_protocol::digest::Digest;
use rollout_protocol::harness::{HookEvent, HookEventBody, LineSplitter, SplitLine, parse_event};
use rollout_protocol::limits;
use rollout_store::archive::{self, CapturedFile, FilePieces};

use crate::executor::{self, with_timeout};

/// Longest wait for one reading: the next reading continues.
const READ_LIMIT: Duration = Duration::from_secs(30);

/// Reads the lines of a growing file from where the reading before ended. Faults are not reported:
/// the events are checked when the command has ended.
#[derive(Debug)]
pub(super) struct EventTail {
    path: String,
    /// Bytes that were read.
    offset: u64,
    splitter: LineSplitter,
}

impl EventTail {
    pub(super) fn new(path: String) -> Self {
        Self { path, offset: 0, splitter: LineSplitter::new(limits::HOOK_EVENT_BYTES) }
    }

    /// The acknowledgements of controls with these versions in complete lines that were added since
    /// the last call; at most one for each version and observed action. Also whether the file was
    /// read to its end, or does not exist. Environments give files as a whole, so each call
    /// transfers the file again.
    pub(super) async fn read_acknowledgements(
        &mut self,
        environment: &dyn Environment,
        versions: Vec<Digest>,
    ) -> (Vec<HookEvent>, bool) {
        let splitter = LineSplitter::new(limits::HOOK_EVENT_BYTES);
        let pieces = TailPieces {
            skip: self.offset,
            offset: self.offset,
            splitter: std::mem::replace(&mut self.splitter, splitter),
            versions,
            seen: BTreeSet::new(),
            events: Vec::new(),
        };
        // A reading that is abandoned starts again at the beginning: an event may come twice.
        self.offset = 0;
        let opened = with_timeout(
            READ_LIMIT,
            "reading events",
            executor::open_stream(environment, &self.path),
        );
        let opened = opened.await;
        let is_absent = matches!(opened, Ok(None));
        let Ok(Some(stream)) = opened else {
            (self.offset, self.splitter) = (pieces.offset, pieces.splitter);
            return (Vec::new(), is_absent);
        };
        let reading = archive::stream_first_file(stream, limits::HOOK_EVENTS_BYTES, pieces);
        let Ok((pieces, end)) = tokio::time::timeout(READ_LIMIT, reading).await else {
            return (Vec::new(), false);
        };
        (self.offset, self.splitter) = (pieces.offset, pieces.splitter);
        let is_complete = matches!(end, Ok(()) | Err(CapturedFile::Missing));
        (pieces.events, is_complete)
    }
}

/// Parses the lines of a file after its first `skip` bytes.
struct TailPieces {
    skip: u64,
    offset: u64,
    splitter: LineSplitter,
    versions: Vec<Digest>,
    /// Versions, by their index, and observed actions of the events.
    seen: BTreeSet<(usize, &'static str)>,
    events: Vec<HookEvent>,
}

impl FilePieces for TailPieces {
    fn take(&mut self, piece: &[u8]) {
        let skipped = self.skip.min(piece.len() as u64);
        self.skip -= skipped;
        let new = &piece[usize::try_from(skipped).unwrap_or(piece.len())..];
        self.offset += new.len() as u64;
        let Self { splitter, versions, seen, events, .. } = self;
        splitter.push(new, |line| {
            if let SplitLine::Complete(bytes) = line
                && let Ok(event) = parse_event(bytes)
                && let HookEventBody::ControlAck(ack) = &event.body
                && let Some(of) = versions.iter().position(|known| *known == ack.control_version)
                && seen.insert((of, ack.action_observed.as_str()))
            {
                events.push(event);
            }
        });
    }
}
