//! Keeps the ledger and passes events on to the outputs.

use std::io;
use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_worker::store::BlobStore;
use rollout_worker::supervise;

use super::problem::Problems;
use super::sinks::files::{TrialFiles, Unwritten};
use super::sinks::json::JsonLines;
use super::sinks::terminal::Terminal;
use super::{Materialize, Report, ReportError, RunFacts, Sinks};
use crate::results::files::{self, FileError, layout};
use crate::results::report::{DatasetFacts, Frame, JobResult, Ledger};

/// The reporter's state.
pub(super) struct Fanout {
    facts: RunFacts,
    store: Arc<dyn BlobStore>,
    ledger: Ledger,
    /// Of the run, once it started; with the end once it ended.
    frame: Option<Frame>,
    ended: bool,
    last_settled: Option<Timestamp>,
    json: Option<JsonLines>,
    terminal: Option<Terminal>,
    files: Option<TrialFiles>,
    /// Whether `config.json` and `store.json` were written, and how that went.
    config: Option<Result<(), FileError>>,
    problems: Problems,
}

impl Fanout {
    pub(super) fn start(facts: RunFacts, sinks: Sinks) -> io::Result<Self> {
        let terminal = match sinks.terminal {
            Some((screen, style)) => {
                let header = facts.datasets.iter().map(DatasetFacts::line).collect();
                Some(Terminal::start(screen, style, &facts.agents, &facts.metrics, header)?)
            }
            None => None,
        };
        Ok(Self {
            facts,
            store: sinks.store,
            ledger: Ledger::default(),
            frame: None,
            ended: false,
            last_settled: None,
            json: sinks.json.map(JsonLines::start).transpose()?,
            terminal,
            files: None,
            config: None,
            problems: Problems::default(),
        })
    }

    /// Takes in events.
    pub(super) async fn take(&mut self, batch: Vec<RunEvent>) {
        for event in &batch {
            match &event.kind {
                EventKind::RunStarted { run, job, started_at, .. } => {
                    self.frame = Some(Frame {
                        run: *run,
                        job: job.clone(),
                        started_at: *started_at,
                        ended_at: event.at,
                        cancelled: false,
                    });
                    self.open_files();
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
        if self.config.is_none() && batch.iter().any(is_live) {
            self.write_config().await;
        }
        let batch = Arc::new(batch);
        if let Some(files) = &self.files {
            files.send(Arc::clone(&batch)).await;
        }
        self.tell(batch).await;
        self.tell_problems().await;
    }

    /// The run directory is ours from the first event on, not before.
    fn open_files(&mut self) {
        if let (Some(frame), Materialize::Full) = (&self.frame, self.facts.materialize) {
            self.files = Some(TrialFiles::start(
                frame.run,
                &self.facts.run_dir,
                Arc::clone(&self.store),
                Arc::clone(&self.facts.tasks),
                self.problems.clone(),
            ));
        }
    }

    async fn write_config(&mut self) {
        let (run_dir, config) = (self.facts.run_dir.clone(), self.facts.config.take());
        let invocation = self.facts.invocation.take();
        let written = supervise::blocking(move || {
            if let Some(invocation) = invocation {
                files::write_document(&run_dir, layout::INVOCATION, &invocation)?;
            }
            files::write_document(&run_dir, layout::CONFIG, &config)
        });
        let mut written = written.await;
        if let (Some(blobs), Some(frame), Ok(())) = (&self.facts.blobs, &self.frame, &written) {
            let run_dir = &self.facts.run_dir;
            written = files::store::note(run_dir, frame.run, &*self.store, blobs).await;
        }
        self.config = Some(written);
    }

    async fn tell(&self, batch: Arc<Vec<RunEvent>>) {
        if let Some(terminal) = &self.terminal {
            terminal.apply(&batch);
        }
        if let Some(json) = &self.json {
            json.send(batch).await;
        }
    }

    async fn tell_problems(&self) {
        let warnings: Vec<RunEvent> = (self.problems.take().into_iter())
            .map(|message| RunEvent { at: Timestamp::now(), kind: EventKind::Warning { message } })
            .collect();
        if !warnings.is_empty() {
            self.tell(Arc::new(warnings)).await;
        }
    }

    /// Waits for the files, writes the job's result, and closes every output. All of them are
    /// closed before the first error is returned.
    pub(super) async fn finish(mut self) -> Result<Report, ReportError> {
        let has_trial_files = self.files.is_some();
        let unwritten = match self.files.take() {
            Some(files) => files.finish().await.map(|written| written.map_err(ReportError::from)),
            None => Ok(Ok(Unwritten::default())),
        };
        self.tell_problems().await;
        let (result, written) = self.result().await;
        let terminal = self.terminal.take();
        if let Some(terminal) = terminal {
            terminal.finish().await;
        }
        let json = match self.json.take() {
            Some(json) => json.finish(result.clone()).await,
            None => Ok(()),
        };
        self.config.unwrap_or(Ok(()))?;
        let unwritten = unwritten??;
        written?;
        json.map_err(ReportError::Json)?;
        let tally = *self.ledger.stats(&self.facts.agents).overall();
        let failures = self.ledger.failures();
        Ok(Report { result, tally, failures, has_trial_files, unwritten })
    }

    /// The job's result, written to its file, if the run ended.
    async fn result(&mut self) -> (Option<Arc<JobResult>>, Result<(), FileError>) {
        self.ledger.sort();
        let Some(frame) = self.frame.take().filter(|_| self.ended) else { return (None, Ok(())) };
        let facts = &self.facts;
        let mut result = JobResult::new(frame, &facts.agents, &facts.metrics, &self.ledger);
        result.datasets.clone_from(&facts.datasets);
        let result = Arc::new(result);
        let (run_dir, document) = (facts.run_dir.clone(), Arc::clone(&result));
        let written = supervise::blocking(move || {
            files::write_document(&run_dir, layout::RESULT, &*document)
        })
        .await;
        (Some(result), written)
    }
}

/// Whether an event shows that the run goes on. A run that is refused because it was made under
/// another configuration is replayed first, and must keep its own `config.json`.
fn is_live(event: &RunEvent) -> bool {
    !matches!(
        event.kind,
        EventKind::RunStarted { .. } | EventKind::TrialSettled { replayed: true, .. }
    )
}
