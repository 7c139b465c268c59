//! The result of a job, folded from its events.

use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::event::{EventKind, RunEvent};

use super::fan_out::FanOut;
use super::{JobFacts, ReportError, RunReport, RunResult};
use crate::results::report::{JobResult, Ledger, RunOverview};

/// A job's sinks and the ledger of its results.
pub(super) struct JobFold {
    facts: JobFacts,
    ledger: Ledger,
    /// Set when the run starts, completed when it ends.
    overview: Option<RunOverview>,
    ended: bool,
    last_settled: Option<Timestamp>,
    fan_out: FanOut,
}

impl JobFold {
    pub(super) fn new(facts: JobFacts, fan_out: FanOut) -> Self {
        let ledger = Ledger::default();
        Self { facts, ledger, overview: None, ended: false, last_settled: None, fan_out }
    }

    /// Applies events and passes them to the sinks.
    pub(super) async fn accept(&mut self, batch: Vec<RunEvent>) {
        for event in &batch {
            self.record_event(event);
        }
        self.fan_out.accept(batch).await;
    }

    /// Records an event for the result.
    fn record_event(&mut self, event: &RunEvent) {
        match &event.kind {
            EventKind::RunStarted { run, job, started_at, .. } => {
                self.overview = Some(RunOverview {
                    run: *run,
                    job: job.clone(),
                    started_at: *started_at,
                    ended_at: event.at,
                    cancelled: false,
                });
            }
            EventKind::TrialSettled { ordinal, settlement, .. } => {
                self.ledger.add(*ordinal, settlement);
                self.last_settled = self.last_settled.max(Some(settlement.settled_at));
            }
            EventKind::TrialReopened { ordinal, .. } => self.ledger.reopen(*ordinal),
            EventKind::RunEnded { cancelled, .. } => {
                self.ended = true;
                // Resuming a complete run does not change its end time.
                let complete = self.last_settled.filter(|_| !*cancelled);
                if let Some(frame) = &mut self.overview {
                    frame.ended_at = complete.unwrap_or(event.at);
                    frame.cancelled = *cancelled;
                }
            }
            EventKind::RunOpened
            | EventKind::LockTakeover { .. }
            | EventKind::TrialPhase { .. }
            | EventKind::TrialParked { .. }
            | EventKind::TrialUnparked { .. }
            | EventKind::TrialRetry { .. }
            | EventKind::TrialLost { .. }
            | EventKind::ExecutionEnded { .. }
            | EventKind::RunStopping { .. }
            | EventKind::RunPaused
            | EventKind::RunContinued
            | EventKind::Warning { .. }
            | EventKind::Backlog { .. }
            | EventKind::Search(_) => {}
        }
    }

    /// Waits for the sinks, builds the job's result, and closes every sink.
    pub(super) async fn finish(mut self) -> Result<RunReport, ReportError> {
        self.fan_out.drain().await;
        let result = self.result();
        let reports = self.fan_out.finish(result.clone().map(RunResult::Job)).await?;
        let trial_files = reports.into_iter().find_map(|told| told.trial_files);
        let tally = *self.ledger.stats(&self.facts.agents).overall();
        let failures = self.ledger.failures();
        let has_trial_files = trial_files.is_some();
        let unwritten = trial_files.unwrap_or_default();
        Ok(RunReport { result, tally, failures, has_trial_files, unwritten })
    }

    /// The job's result, if the run ended.
    fn result(&mut self) -> Option<Arc<JobResult>> {
        self.ledger.sort();
        let frame = self.overview.take().filter(|_| self.ended)?;
        let facts = &self.facts;
        let mut result = JobResult::new(frame, &facts.agents, &facts.metrics, &self.ledger);
        result.datasets.clone_from(&facts.datasets);
        result.guardrails.clone_from(&facts.guardrails);
        Some(Arc::new(result))
    }
}
