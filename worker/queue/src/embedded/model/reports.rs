//! The report stream: one sequence over all runs, one order per run.

use std::collections::{HashMap, VecDeque};

use rollout_protocol::id::RunId;
use rollout_protocol::wire::delivery::PublishError;
use rollout_protocol::wire::position::ReportPosition;
use rollout_protocol::wire::report::Report;

use crate::traits::QueueError;

#[derive(Debug)]
pub(super) struct ReportStream {
    reports_per_run: usize,
    last_sequence: u64,
    pub(super) runs: HashMap<RunId, VecDeque<(u64, Report)>>,
}

impl ReportStream {
    pub(super) fn new(reports_per_run: usize) -> Self {
        Self { reports_per_run, last_sequence: 0, runs: HashMap::new() }
    }

    pub(super) fn append(&mut self, report: Report) -> Result<u64, PublishError> {
        check_size(&report)?;
        let reports = self.runs.entry(report.run).or_default();
        if reports.len() >= self.reports_per_run {
            return Err(PublishError::Full);
        }
        self.last_sequence += 1;
        reports.push_back((self.last_sequence, report));
        Ok(self.last_sequence)
    }

    /// The run's reports after this position in the stream's current incarnation.
    pub(super) fn after(
        &self,
        run: RunId,
        from: Option<ReportPosition>,
        max: usize,
    ) -> Result<impl Iterator<Item = (u64, &Report)> + use<'_>, QueueError> {
        static NONE: VecDeque<(u64, Report)> = VecDeque::new();
        let reports = self.runs.get(&run).unwrap_or(&NONE);
        let start = match from {
            None => 0,
            Some(from) => {
                let sequence = from.sequence;
                let at = reports.partition_point(|(s, _)| *s < sequence);
                match reports.get(at) {
                    Some((s, report)) if *s == sequence && from.matches(report) => at + 1,
                    _ => return Err(QueueError::Position),
                }
            }
        };
        Ok(reports.range(start..).take(max).map(|(sequence, report)| (*sequence, report)))
    }

    pub(super) fn last_sequence_of(&self, run: RunId) -> u64 {
        self.runs.get(&run).and_then(VecDeque::back).map_or(0, |(sequence, _)| *sequence)
    }

    pub(super) fn purge(&mut self, run: RunId, below: u64) {
        if let Some(reports) = self.runs.get_mut(&run) {
            let end = reports.partition_point(|(sequence, _)| *sequence < below);
            reports.drain(..end);
            if reports.is_empty() {
                self.runs.remove(&run);
            }
        }
    }

    pub(super) fn lose_tail(&mut self, n: u64) {
        self.last_sequence = self.last_sequence.saturating_sub(n);
        let kept = self.last_sequence;
        self.runs.retain(|_, reports| {
            reports.truncate(reports.partition_point(|(sequence, _)| *sequence <= kept));
            !reports.is_empty()
        });
    }
}

/// Rejects a report that does not fit into a message. Only the texts of its error have no bound of
/// their own. The rest of a report is below `FIXED_BYTES`, so most reports are known to fit without
/// encoding them.
fn check_size(report: &Report) -> Result<(), PublishError> {
    use rollout_protocol::limits::REPORT_BYTES;
    use rollout_protocol::wire::report::ReportBody;

    const FIXED_BYTES: usize = 4096;
    /// A control character becomes six bytes of JSON.
    const WIDEST_ESCAPE: usize = 6;
    let texts = match &report.body {
        ReportBody::Result(body) => (body.verdict.error.as_ref())
            .map_or(0, |error| error.message.len() + error.code.as_str().len()),
        ReportBody::Started | ReportBody::Lost { .. } | ReportBody::Events(_) => 0,
    };
    if texts.saturating_mul(WIDEST_ESCAPE).saturating_add(FIXED_BYTES) <= REPORT_BYTES {
        return Ok(());
    }
    match report.encode() {
        Ok(_) => Ok(()),
        Err(size_bytes) => Err(PublishError::TooLarge { size_bytes, max_bytes: REPORT_BYTES }),
    }
}
