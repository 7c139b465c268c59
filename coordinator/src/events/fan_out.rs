//! Keeps the ledger and passes events on to the sinks.

use std::io;
use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::event::{EventKind, RunEvent};

use super::problem::Problems;
use super::sink::{EventSink, SinkContext, Told};
use super::{Report, ReportError, RunFacts, Sinks};
use crate::results::report::{Frame, JobResult, Ledger};

/// The reporter's state.
pub(super) struct FanOut {
    facts: RunFacts,
    ledger: Ledger,
    /// Of the run, once it started; with the end once it ended.
    frame: Option<Frame>,
    ended: bool,
    last_settled: Option<Timestamp>,
    sinks: Vec<Box<dyn EventSink>>,
    problems: Problems,
}

impl FanOut {
    /// Starts the sinks.
    pub(super) fn start(facts: RunFacts, sinks: Sinks) -> io::Result<Self> {
        let Sinks { store, registered } = sinks;
        let problems = Problems::default();
        let context = SinkContext { facts: &facts, store: &store, problems: &problems };
        let sinks =
            registered.into_iter().map(|start| start(&context)).collect::<Result<_, _>>()?;
        Ok(Self {
            facts,
            ledger: Ledger::default(),
            frame: None,
            ended: false,
            last_settled: None,
            sinks,
            problems,
        })
    }

    /// Takes in events.
    pub(super) async fn take(&mut self, batch: Vec<RunEvent>) {
        for event in &batch {
            self.note(event);
        }
        let batch = Arc::new(batch);
        for sink in &mut self.sinks {
            sink.take(&batch).await;
        }
        self.tell_problems().await;
    }

    /// Notes what the result is made of.
    fn note(&mut self, event: &RunEvent) {
        match &event.kind {
            EventKind::RunStarted { run, job, started_at, .. } => {
                self.frame = Some(Frame {
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
            EventKind::RunEnded { cancelled, owed } => {
                self.ended = true;
                // A run that has nothing to do any more does not grow longer by asking again.
                let complete = self.last_settled.filter(|_| *owed == 0);
                if let Some(frame) = &mut self.frame {
                    frame.ended_at = complete.unwrap_or(event.at);
                    frame.cancelled = *cancelled;
                }
            }
            EventKind::LockTakeover { .. }
            | EventKind::TrialPhase { .. }
            | EventKind::TrialParked { .. }
            | EventKind::TrialUnparked { .. }
            | EventKind::TrialRetry { .. }
            | EventKind::TrialLost { .. }
            | EventKind::ExecutionEnded { .. }
            | EventKind::RunStopping { .. }
            | EventKind::Warning { .. } => {}
        }
    }

    async fn tell_problems(&mut self) {
        let warnings: Vec<RunEvent> = (self.problems.take().into_iter())
            .map(|message| RunEvent { at: Timestamp::now(), kind: EventKind::Warning { message } })
            .collect();
        if warnings.is_empty() {
            return;
        }
        let warnings = Arc::new(warnings);
        for sink in &mut self.sinks {
            sink.warn(&warnings).await;
        }
    }

    /// Waits for the sinks, makes the job's result, and closes every sink. All of them are closed
    /// before the first error is returned.
    pub(super) async fn finish(mut self) -> Result<Report, ReportError> {
        for sink in &mut self.sinks {
            sink.drain().await;
        }
        self.tell_problems().await;
        let result = self.result();
        let mut told = Vec::new();
        for sink in std::mem::take(&mut self.sinks) {
            told.push(sink.finish(result.clone()).await);
        }
        let told = told.into_iter().collect::<Result<Vec<Told>, _>>()?;
        let trial_files = told.into_iter().find_map(|told| told.trial_files);
        let tally = *self.ledger.stats(&self.facts.agents).overall();
        let failures = self.ledger.failures();
        let has_trial_files = trial_files.is_some();
        let unwritten = trial_files.unwrap_or_default();
        Ok(Report { result, tally, failures, has_trial_files, unwritten })
    }

    /// The job's result, if the run ended.
    fn result(&mut self) -> Option<Arc<JobResult>> {
        self.ledger.sort();
        let frame = self.frame.take().filter(|_| self.ended)?;
        let facts = &self.facts;
        let mut result = JobResult::new(frame, &facts.agents, &facts.metrics, &self.ledger);
        result.datasets.clone_from(&facts.datasets);
        Some(Arc::new(result))
    }
}
