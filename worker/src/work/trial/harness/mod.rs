//! The contract of a harness in a trial: documents that are placed before the agent's command, and
//! those that are read after it. Its result never decides the reward; the verifier does.
//!
//! * `input`: the input document and the first control;
//! * `output`: the output document, from its file or the standard output;
//! * `control` and `tail`: controls while the command runs, and the events that acknowledge them;
//! * `events`: the hook events, checked while they are read when the command has ended;
//! * `live`, `growing_log` and `monitor`: the hook events while the command runs.

mod control;
mod events;
mod growing_log;
mod input;
mod live;
mod monitor;
mod output;
mod tail;

use std::path::{Path, PathBuf};

use rollout_base::fs_make::make_scratch_directory;
use rollout_base::secrets::{RedactionStyle, Redactor};
use rollout_base::shortage::Shortage;
use rollout_base::shown_path::shown;
use rollout_protocol::blob::MediaType;
use rollout_protocol::error::{ErrorClass, TrialError};
use rollout_protocol::harness::{HarnessOutcome, MetricValue, OutputError, TrialOutput};
use rollout_protocol::limits::{self, shorten};
use rollout_protocol::record::{HarnessEvents, HarnessRecord, OutputSource};
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::harness::HarnessSpec;
use rollout_protocol::spec::task::StepSpec;

pub(super) use self::input::PlacedHarness;
pub(super) use self::monitor::HarnessMonitor;

use self::output::OutputReading;
use super::failure;
use super::outputs::step_prefix;
use super::run::TrialRun;
use crate::executor::errors::{self, ScriptError, ScriptStage};
use crate::executor::{Capture, FileRole, HarnessPart, RecordFile};

impl TrialRun<'_> {
    /// Reads the result of a harness after its command, which `ended`. Returns the error of the
    /// command, else the one that the output states.
    pub(super) async fn collect_harness(
        &mut self,
        step: &StepSpec,
        placed: PlacedHarness,
        ended: Result<(), TrialError>,
        capture: &Capture,
    ) -> Result<(), TrialError> {
        let AgentKind::Harness(spec) = &self.ctx.agent.kind else { return ended };
        let of_agent = |error: &TrialError| error.class == ErrorClass::Agent;
        // A process that survived could still write, and a lost environment has no files.
        if self.attempt.environment.tainted || ended.as_ref().is_err_and(|error| !of_agent(error)) {
            return ended;
        }
        let environment = self.attempt.environment.expect_running();
        let read = output::read(environment, &spec.output_path, capture, &placed.ids).await;
        let reading = match read {
            Ok(reading) => reading,
            Err(failure) => {
                let lost = ScriptError::Exec(failure);
                let lost = lost.into_error(ScriptStage::Execute, &self.attempt.redactor);
                if ended.is_ok() {
                    return Err(lost);
                }
                self.attempt.secondary_errors.push(lost);
                return ended;
            }
        };
        let directory = self.outputs.scratch().join(format!("harness/{}", self.steps.len()));
        if let Err(error) = make_scratch_directory(&directory).await {
            self.harness_file_lost(&directory, &error);
        }
        let mut record = record(&reading.output, reading.source, &self.attempt.redactor);
        record.integration_level = spec.integration_level;
        let mut files = Vec::new();
        let documents = [
            (HarnessPart::Input, "trial_input.json", &placed.input[..]),
            (HarnessPart::Output, "trial_output.json", &reading.document[..]),
        ];
        for (part, name, bytes) in documents {
            let file = directory.join(name);
            match write_masked(&file, bytes, &self.attempt.redactor).await {
                Ok(()) => files.push((part, file, bytes.len() as u64)),
                Err(error) => self.harness_file_lost(&file, &error),
            }
        }
        if let Some(path) = &spec.events_path {
            let file = directory.join("hook_events.jsonl");
            let (events, log) = self.collect_events(spec, path, file, &placed).await;
            record.events = Some(events);
            files.extend(log.map(|(file, bytes)| (HarnessPart::Events, file, bytes)));
        }
        if let Some(session) = placed.session {
            record.controls = session.into_controls();
            for control in &mut record.controls {
                let label = control.label.take();
                control.label = label.map(|label| self.attempt.redactor.text(&label));
            }
        }
        self.keep_harness(step, record, files);
        ended?;
        self.stated_error(&reading)
    }

    /// Reads the events at `path` into `file`. Returns them, and the file with its size if there is
    /// one.
    async fn collect_events(
        &mut self,
        spec: &HarnessSpec,
        path: &str,
        file: PathBuf,
        placed: &PlacedHarness,
    ) -> (HarnessEvents, Option<(PathBuf, u64)>) {
        let environment = self.attempt.environment.expect_running();
        let redactor = &self.attempt.redactor;
        let validator = placed.validator(&spec.manifest());
        let required = spec.integration_level.requires_events();
        let read = events::read(environment, path, (file, required), validator, redactor).await;
        if let (Some(stored), Some((file, _))) = (&placed.stored, &read.log) {
            stored.append_rest(&*self.ctx.execution.event_log, file, &read.events).await;
        }
        let lost = read.lost.map(|(why, full)| errors::output_lost(&why, full, redactor));
        self.attempt.secondary_errors.extend(lost);
        (read.events, read.log)
    }

    /// The error that an output states.
    fn stated_error(&self, reading: &OutputReading) -> Result<(), TrialError> {
        if reading.output.outcome != HarnessOutcome::Error {
            return Ok(());
        }
        let unknown = OutputError::default();
        let error = reading.output.error.as_ref().unwrap_or(&unknown);
        Err(failure::harness_error(error, &self.attempt.redactor))
    }

    /// Adds the result to the step, if it has a name, and makes it the result of the trial.
    fn keep_harness(
        &mut self,
        step: &StepSpec,
        record: HarnessRecord,
        files: Vec<(HarnessPart, PathBuf, u64)>,
    ) {
        for earlier in &mut self.harness_files {
            if let FileRole::HarnessFile { last, .. } = &mut earlier.role {
                *last = false;
            }
        }
        let prefix = step_prefix(step.name.as_deref());
        let index = step.name.as_ref().and_then(|_| self.steps.len().checked_sub(1));
        self.harness_files.extend(files.into_iter().map(|(part, file, total_bytes)| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let path = format!("{prefix}harness/{name}");
            let media_type = match part {
                HarnessPart::Input | HarnessPart::Output => MediaType::Json,
                HarnessPart::Events => MediaType::Text,
            };
            let role = FileRole::HarnessFile { part, path, total_bytes, step: index, last: true };
            RecordFile { file, media_type, role, digest: None }
        }));
        let record = Box::new(record);
        if let (Some(run), Some(_)) = (self.steps.last_mut(), index) {
            run.harness = Some(record.clone());
        }
        self.harness = Some(record);
    }

    fn harness_file_lost(&mut self, file: &Path, error: &std::io::Error) {
        let why = format!("cannot keep {}: {error}", shown(file));
        let shortage = Shortage::from_io_error(error);
        let lost = errors::output_lost(&why, shortage, &self.attempt.redactor);
        self.attempt.secondary_errors.push(lost);
    }
}

/// The record of an output, without secrets. The integration level is added by the caller.
fn record(output: &TrialOutput, source: OutputSource, redactor: &Redactor) -> HarnessRecord {
    let name = |text: &str| shorten(redactor.text(text), limits::HARNESS_NAME_BYTES);
    let value = |value: &MetricValue| match value {
        MetricValue::Text(text) => {
            MetricValue::Text(shorten(redactor.text(text), limits::HARNESS_TEXT_BYTES))
        }
        other => other.clone(),
    };
    let error = output.error.as_ref().map(|error| OutputError {
        error_type: error.error_type.as_deref().map(name),
        message: error
            .message
            .as_deref()
            .map(|text| shorten(redactor.text(text), limits::HARNESS_ERROR_BYTES)),
    });
    let objective = output.objective.clone();
    HarnessRecord {
        integration_level: Default::default(),
        outcome: output.outcome,
        output_source: source,
        objective: objective.map(|mut objective| {
            objective.name = name(&objective.name);
            objective
        }),
        metrics: output.metrics.iter().map(|(key, kept)| (name(key), value(kept))).collect(),
        metrics_left_out: output.metrics_left_out,
        error,
        output: None,
        events: None,
        controls: Vec::new(),
    }
}

/// Writes a file without secrets; its length stays.
async fn write_masked(file: &Path, bytes: &[u8], redactor: &Redactor) -> std::io::Result<()> {
    let (mut masking, mut masked) = (redactor.stream(RedactionStyle::Mask), Vec::new());
    masking.push(bytes, &mut masked);
    masking.finish(&mut masked);
    tokio::fs::write(file, masked).await
}
