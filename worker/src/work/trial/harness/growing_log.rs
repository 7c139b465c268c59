//! A log of hook events that grows: it is checked as it is read, and given away in chunks without
//! secrets.

use bytes::Bytes;
use rollout_base::secrets::{RedactingStream, RedactionStyle, Redactor};
use rollout_protocol::harness::{HookStreamSummary, HookStreamValidator, LineSplitter};
use rollout_protocol::harness::{SplitLine, WrittenControl};
use rollout_protocol::limits;

/// The bytes of a log so far, of which only those are held that were not given away.
#[derive(Debug)]
pub(super) struct GrowingLog {
    /// Bytes that were read.
    read: u64,
    /// The last of them, if their line has not ended.
    line: Vec<u8>,
    splitter: LineSplitter,
    validator: HookStreamValidator,
    masking: RedactingStream,
    /// Masked bytes to give away.
    masked: Vec<u8>,
    /// Offset of the first of these.
    offset: u64,
}

/// A piece of a log, and the state of the log at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogPiece {
    pub(super) offset: u64,
    pub(super) bytes: Bytes,
    /// The largest number so far, if the piece has every event that was read.
    pub(super) last_seq: Option<u64>,
    pub(super) total: u64,
    pub(super) violations: u64,
}

impl GrowingLog {
    pub(super) fn new(validator: HookStreamValidator, redactor: &Redactor) -> Self {
        Self {
            read: 0,
            line: Vec::new(),
            splitter: LineSplitter::new(limits::HOOK_EVENT_BYTES),
            validator,
            masking: redactor.stream(RedactionStyle::Mask),
            masked: Vec::new(),
            offset: 0,
        }
    }

    /// Bytes that were read.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read
    }

    /// Bytes that it can take now: it holds no more than about one chunk.
    pub(super) fn capacity(&self) -> usize {
        let held = self.line.len() + self.masked.len();
        limits::HOOK_EVENT_CHUNK_BYTES.saturating_sub(held)
    }

    /// Adds a control that was written, before an event can acknowledge it.
    pub(super) fn add_control(&mut self, control: WrittenControl) {
        self.validator.add_control(control);
    }

    /// Takes the next bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.read += bytes.len() as u64;
        let Self { splitter, validator, .. } = self;
        splitter.push(bytes, |line: SplitLine<'_>| validator.push(line));
        self.line.extend_from_slice(bytes);
        let end = self.line.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let rest = self.line.split_off(end);
        let lines = std::mem::replace(&mut self.line, rest);
        if !lines.is_empty() {
            self.masking.push_lines(&lines, &mut self.masked);
        }
        // No event is that long: the line need not be kept together.
        if self.line.len() > limits::HOOK_EVENT_BYTES {
            self.masking.push(&self.line, &mut self.masked);
            self.line.clear();
        }
    }

    /// Gives away the bytes that are complete; `None` if there are none.
    pub(super) fn take(&mut self) -> Option<LogPiece> {
        if self.masked.is_empty() {
            return None;
        }
        let (offset, bytes) = (self.offset, Bytes::from(std::mem::take(&mut self.masked)));
        self.offset += bytes.len() as u64;
        let has_all_lines = bytes.ends_with(b"\n") && self.offset + self.held() == self.read;
        let HookStreamSummary { total, last_seq, violations, .. } = self.validator.summary();
        Some(LogPiece {
            offset,
            bytes,
            last_seq: last_seq.filter(|_| has_all_lines),
            total: *total,
            violations: violations.total,
        })
    }

    /// Bytes of the line that has not ended.
    fn held(&self) -> u64 {
        self.line.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const SECRET: &str = "hunter2hunter2";
    const SECRET_LINES: &str = "first line\nsecond line";

    fn redactor() -> Redactor {
        Redactor::new([("PASSWORD", SECRET), ("KEY", SECRET_LINES)])
    }

    fn event(seq: u64, message: &str) -> String {
        let ids = json!({
            "run_id": "r", "trial_id": "t", "variant_id": "v", "task_id": "k", "repl_idx": 0,
        });
        let event = json!({
            "event_type": "error", "ts": "2026-01-02T03:04:05Z", "seq": seq, "ids": ids,
            "message": message,
        });
        format!("{event}\n")
    }

    /// The summary and the masked text of a log that is read at once.
    fn at_once(text: &[u8]) -> (HookStreamSummary, Vec<u8>) {
        let mut validator = HookStreamValidator::new(true);
        let mut splitter = LineSplitter::new(limits::HOOK_EVENT_BYTES);
        splitter.push(text, |line| validator.push(line));
        splitter.finish(|line| validator.push(line));
        let (mut masking, mut masked) = (redactor().stream(RedactionStyle::Mask), Vec::new());
        masking.push(text, &mut masked);
        masking.finish(&mut masked);
        (validator.finish(), masked)
    }

    #[test]
    fn last_line_is_given_away_as_soon_as_it_ends() {
        let only_one_line = Redactor::new([("PASSWORD", SECRET)]);
        let mut log = GrowingLog::new(HookStreamValidator::new(false), &only_one_line);
        let (first, second) = (event(1, SECRET), event(2, "x"));
        log.push(first.as_bytes());
        log.push(&second.as_bytes()[..10]);
        let piece = log.take().expect("a line");
        assert_eq!((piece.offset, piece.last_seq, piece.total), (0, Some(1), 1));
        assert_eq!(piece.bytes.len(), first.len());
        assert!(!String::from_utf8_lossy(&piece.bytes).contains(SECRET));
        assert_eq!(log.take(), None);
        log.push(&second.as_bytes()[10..]);
        let piece = log.take().expect("a line");
        assert_eq!((piece.offset, piece.last_seq), (first.len() as u64, Some(2)));
        assert_eq!(piece.bytes, second.as_bytes());
    }

    #[test]
    fn line_that_is_too_long_does_not_fill_memory() {
        let mut log = GrowingLog::new(HookStreamValidator::new(false), &Redactor::default());
        let mut given = 0;
        for _ in 0..100 {
            log.push(&vec![b'x'; limits::HOOK_EVENT_BYTES]);
            let piece = log.take();
            assert!(piece.iter().all(|piece| piece.last_seq.is_none()));
            given += piece.map_or(0, |piece| piece.bytes.len());
            assert!(log.line.len() <= limits::HOOK_EVENT_BYTES && log.masked.is_empty());
        }
        assert!(given >= 99 * limits::HOOK_EVENT_BYTES);
    }

    proptest! {
        #[test]
        fn pieces_are_the_masked_log_and_its_violations(
            lines in proptest::collection::vec((0u64..6, 0usize..5), 0..12),
            cuts in proptest::collection::vec(0usize..3000, 0..10),
        ) {
            let text: String = lines.iter().map(|(seq, kind)| match kind {
                0 => "no json\n".to_owned(),
                1 => event(*seq, SECRET),
                2 => format!("{SECRET_LINES}\n"),
                3 => "first line\n".to_owned(),
                _ => event(*seq, "plain"),
            }).collect();
            let text = text.as_bytes();
            let (summary, masked) = at_once(text);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut log = GrowingLog::new(HookStreamValidator::new(true), &redactor());
            let (mut given, mut last) = (Vec::new(), None);
            for pair in cuts.windows(2) {
                log.push(&text[pair[0]..pair[1]]);
                if let Some(piece) = log.take() {
                    prop_assert_eq!(piece.offset, given.len() as u64);
                    given.extend_from_slice(&piece.bytes);
                    if let Some(seq) = piece.last_seq {
                        // Every event of the log so far is in the pieces so far.
                        let (so_far, _) = at_once(&text[..given.len()]);
                        prop_assert_eq!(so_far.last_seq, Some(seq));
                    }
                    last = Some(piece);
                }
            }
            prop_assert!(masked.starts_with(&given), "no other bytes than the final log");
            let held = masked.len() - given.len();
            prop_assert!(held == 0 || text.ends_with(b"first line\n"), "{} bytes", held);
            if given.len() == masked.len() && let Some(last) = last {
                let found = (last.total, last.violations);
                prop_assert_eq!(found, (summary.total, summary.violations.total));
            }
        }
    }
}
