//! Sink that writes the run directory: configuration, result, analysis tables, and a directory per
//! settled trial.

mod trials;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use rollout_base::supervise::{self, TaskPanic};
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::id::RunId;
use rollout_store::BlobStore;

use self::trials::TrialFiles;
pub use self::trials::UnwrittenTrials;
use crate::events::sink::{EventBatch, EventSink, RunResult, SinkReport};
use crate::events::sink_warnings::SinkWarnings;
use crate::events::{JobFacts, ReportError};
use crate::results::files::{self, FileError, Registration, layout};
use crate::results::report::JobResult;
use crate::results::tables;

/// Writes the files. Blocks the run while it is behind.
pub(in crate::events) struct RunFiles {
    facts: JobFacts,
    store: Arc<dyn BlobStore>,
    warnings: SinkWarnings,
    /// The run, once it started.
    run: Option<RunId>,
    /// Outcome of writing `config.json` and `store.json`; `None` before.
    config_result: Option<Result<(), FileError>>,
    /// Registration in the store, once the run is open.
    registration: Option<Registration>,
    trials: Option<TrialFiles>,
    /// Outcome of writing the trial directories, once it is complete.
    trials_result: Option<Result<Result<UnwrittenTrials, FileError>, TaskPanic>>,
}

impl RunFiles {
    pub(in crate::events) fn new(
        facts: JobFacts,
        store: Arc<dyn BlobStore>,
        warnings: SinkWarnings,
    ) -> Self {
        Self {
            facts,
            store,
            warnings,
            run: None,
            config_result: None,
            registration: None,
            trials: None,
            trials_result: None,
        }
    }

    /// Starts writing trial directories. This session owns the run directory from `RunStarted` on.
    fn open_trials(&mut self, run: RunId) {
        self.run = Some(run);
        // Also without trial directories: those of a former session become outdated when their
        // trials run again.
        self.trials = Some(TrialFiles::start(
            run,
            &self.facts.run_dir,
            self.facts.materialize,
            Arc::clone(&self.store),
            Arc::clone(&self.facts.tasks),
            self.warnings.clone(),
            self.facts.stopped_at_once.clone(),
        ));
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
        if let (Some(url), Some(run), Ok(())) = (&self.facts.store, self.run, &written) {
            let run_dir = &self.facts.run_dir;
            let referred = files::store::write_reference(run_dir, run, &self.store, url).await;
            written = referred.map(|registration| self.registration = Some(registration));
        }
        self.config_result = Some(written);
    }
}

#[async_trait]
impl EventSink for RunFiles {
    async fn accept(&mut self, batch: &EventBatch) {
        for event in batch.iter() {
            if let EventKind::RunStarted { run, .. } = event.kind {
                self.open_trials(run);
            }
        }
        if self.config_result.is_none() && batch.iter().any(is_live) {
            self.write_config().await;
        }
        if let Some(trials) = &self.trials {
            trials.send(Arc::clone(batch)).await;
        }
    }

    async fn warn(&mut self, _warnings: &EventBatch) {}

    async fn drain(&mut self) {
        if let Some(trials) = self.trials.take() {
            self.trials_result = Some(trials.finish().await);
        }
    }

    async fn finish(self: Box<Self>, result: Option<RunResult>) -> Result<SinkReport, ReportError> {
        let Self { facts, config_result, registration, trials_result: trials, .. } = *self;
        let run_dir = facts.run_dir;
        let written = match result {
            Some(RunResult::Job(result)) => {
                supervise::blocking(move || write_result(&run_dir, &result)).await
            }
            Some(RunResult::Search(_)) | None => Ok(()),
        };
        config_result.unwrap_or(Ok(()))?;
        let trial_files = match trials {
            Some(trials) => Some(trials??),
            None => None,
        };
        written?;
        if let Some(registration) = registration {
            registration.finish().await?;
        }
        let trial_files = trial_files.filter(|_| facts.materialize.has_trial_dirs());
        Ok(SinkReport { trial_files })
    }
}

/// Writes `result.json` and, if every trial is settled, the tables. The engine has completed the
/// records before it dropped its sender of events.
///
/// Tables take about 20 µs per settled trial, as long as everything else that Rollout does for a
/// trial that does nothing. So a session that leaves trials unsettled, which a user may have stopped
/// and waits for, does not write them; it removes those that an earlier session wrote.
fn write_result(run_dir: &Path, result: &JobResult) -> Result<(), ReportError> {
    files::write_document(run_dir, layout::RESULT, result)?;
    if result.skipped_trials > 0 {
        return Ok(tables::remove_from_run(run_dir)?);
    }
    Ok(tables::write_to_run(run_dir, result.run, result.results.len() as u64)?)
}

/// Whether an event shows that the run continues past its replay. A run that is refused because of
/// another configuration is replayed first, and must keep its own `config.json`.
fn is_live(event: &RunEvent) -> bool {
    !matches!(
        event.kind,
        EventKind::RunStarted { .. } | EventKind::TrialSettled { replayed: true, .. }
    )
}
