//! Results that a wipe of the server may lose.

use std::fs;
use std::time::Instant;

use rollout_protocol::limits;

use crate::live_counter::LiveCounter;
use crate::results::Results;

/// Counts results that have no marker in the store and that no run has recorded: reports of
/// executions of at most [`limits::BRIEF_EXECUTION`]. A server that loses its store loses them.
pub(super) struct UnmarkedResults<'a> {
    counter: &'a LiveCounter,
    runs: Vec<Results>,
    since: Instant,
}

impl<'a> UnmarkedResults<'a> {
    /// For runs that begin now and whose executions the counter sees.
    pub(super) fn new(counter: &'a LiveCounter, runs: Vec<Results>) -> Self {
        Self { counter, runs, since: Instant::now() }
    }

    /// The most results that may be lost now. An agent takes no longer than its execution, so every
    /// brief execution is counted; items that ran again before count more than once.
    pub(super) fn count(&self) -> usize {
        let seen = self.counter.observed();
        let brief = seen.iter().filter(|execution| execution.began >= self.since).filter(|seen| {
            seen.ended.is_some_and(|ended| ended - seen.began <= limits::BRIEF_EXECUTION)
        });
        brief.count().saturating_sub(self.runs.iter().map(recorded).sum())
    }
}

/// Number of settled items in the records of a run that may still be written.
fn recorded(run: &Results) -> usize {
    let files = fs::read_dir(run.path().join("records")).into_iter().flatten().flatten();
    files.filter_map(|file| fs::read(file.path()).ok()).map(|text| count_lines(&text)).sum()
}

fn count_lines(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte == b'\n').count()
}
