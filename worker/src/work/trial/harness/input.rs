//! The documents that a harness gets: its input and the first control.

use std::num::NonZeroU64;
use std::time::Duration;

use bytes::Bytes;
use rollout_environment::Upload;
use rollout_protocol::Timestamp;
use rollout_protocol::error::TrialError;
use rollout_protocol::harness::{
    ControlDocument, ControlPlane, ControlPlaneMode, ControlSession, HarnessManifest,
    HookStreamValidator, RequestedNetwork, TrialIds, TrialInput, TrialNetwork, TrialPaths,
    TrialRuntime, TrialTimeouts,
};
use rollout_protocol::limits;
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::harness::HarnessSpec;
use rollout_protocol::spec::task::{NetworkPolicy, StepSpec};
use serde_json::{Map, Value, json};

use super::control::write_control;
use super::live::StoredLog;
use crate::executor::errors::{ScriptError, ScriptStage};
use crate::executor::{COPY_LIMIT, with_timeout};
use crate::work::trial::TrialContext;
use crate::work::trial::run::TrialRun;
use crate::work::trial::step::agent_network;

/// Directory of temporary files in every environment.
const TMP: &str = "/tmp";

/// The documents that were placed for a harness.
#[derive(Debug)]
pub(in crate::work::trial) struct PlacedHarness {
    /// The trial.
    pub(super) ids: TrialIds,
    /// The bytes of the input.
    pub(super) input: Bytes,
    /// The first control.
    pub(super) initial: ControlDocument,
    /// The controls that were requested while the command ran.
    pub(super) session: Option<ControlSession>,
    /// The events that were stored while the command ran.
    pub(super) stored: Option<StoredLog>,
}

impl PlacedHarness {
    /// A validator of the events of this trial.
    pub(super) fn validator(&self, manifest: &HarnessManifest) -> HookStreamValidator {
        let mut validator = HookStreamValidator::new(manifest.requires_acks());
        let requested = self.session.iter().flat_map(ControlSession::written);
        for control in std::iter::once(self.initial.to_file().written).chain(requested) {
            validator.add_control(control);
        }
        validator
    }
}

impl TrialRun<'_> {
    /// Places the documents of a harness for a step; `None` for other agents.
    pub(in crate::work::trial) async fn place_harness(
        &self,
        step: &StepSpec,
        limit: Duration,
    ) -> Result<Option<PlacedHarness>, TrialError> {
        let AgentKind::Harness(spec) = &self.ctx.agent.kind else { return Ok(None) };
        let placed = self.place_documents(spec, step, limit).await;
        let into_error =
            |error: ScriptError| error.into_error(ScriptStage::Execute, &self.attempt.redactor);
        placed.map(Some).map_err(into_error)
    }

    async fn place_documents(
        &self,
        spec: &HarnessSpec,
        step: &StepSpec,
        limit: Duration,
    ) -> Result<PlacedHarness, ScriptError> {
        let instruction = match &step.files.instruction {
            Some(blob) => {
                let most = limits::INSTRUCTION_BYTES;
                let bytes = self.services.files.bytes("the instruction", blob, most).await;
                Some(bytes.map_err(ScriptError::Files)?)
            }
            None => None,
        };
        let environment = self.attempt.environment.expect_running();
        let ids = trial_ids(self.ctx);
        let task = task(self.ctx, step, instruction.as_deref());
        let runtime = runtime(self.ctx, spec, step, environment.workdir(), limit);
        let bindings = spec.bindings.clone();
        let input = TrialInput::new(ids.clone(), task, bindings, spec.integration_level, runtime);
        let input = Bytes::from(input.to_bytes());
        let mut uploads: Vec<Upload> = [Some(&spec.output_path), spec.events_path.as_ref()]
            .into_iter()
            .flatten()
            .map(|path| Upload::Dir { path: parent(path).to_owned() })
            .collect();
        uploads.push(Upload::File {
            path: spec.input_path.clone(),
            bytes: input.clone(),
            executable: false,
        });
        let placing = |failure| ScriptError::Place { what: "the input of the harness", failure };
        let placed = environment.copy_to(uploads);
        with_timeout(COPY_LIMIT, "placing it", placed).await.map_err(placing)?;
        let initial = ControlDocument::initial(Timestamp::now());
        let control = initial.to_file();
        let placing = |failure| ScriptError::Place { what: "the control of the harness", failure };
        write_control(environment, &spec.control_path, control).await.map_err(placing)?;
        Ok(PlacedHarness { ids, input, initial, session: None, stored: None })
    }
}

/// The directory of a file; the root for a file in it.
fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

fn trial_ids(ctx: &TrialContext) -> TrialIds {
    TrialIds {
        run_id: ctx.execution.labels.run.to_string(),
        trial_id: ctx.execution.labels.item.to_string(),
        variant_id: ctx.agent.name.clone(),
        task_id: ctx.task.name.clone(),
        // Attempts are numbered from 1.
        repl_idx: u64::from(ctx.attempt.saturating_sub(1)),
    }
}

fn task(ctx: &TrialContext, step: &StepSpec, instruction: Option<&[u8]>) -> Map<String, Value> {
    let mut task = Map::new();
    task.insert("id".to_owned(), json!(ctx.task.name));
    task.insert("dataset".to_owned(), json!(ctx.task.dataset));
    if let Some(text) = instruction {
        task.insert("instruction".to_owned(), json!(String::from_utf8_lossy(text)));
        task.insert("instruction_path".to_owned(), json!(ctx.settings.instruction_path));
    }
    if let Some(name) = &step.name {
        task.insert("step".to_owned(), json!(name));
    }
    if let Some(commit) = &ctx.task.git_commit_id {
        task.insert("git_commit_id".to_owned(), json!(commit));
    }
    task
}

fn runtime(
    ctx: &TrialContext,
    spec: &HarnessSpec,
    step: &StepSpec,
    workdir: &str,
    limit: Duration,
) -> TrialRuntime {
    let (mode_requested, allowed_hosts) = match agent_network(ctx, step) {
        NetworkPolicy::Public => (RequestedNetwork::Full, Vec::new()),
        NetworkPolicy::NoNetwork => (RequestedNetwork::None, Vec::new()),
        NetworkPolicy::Allowlist(hosts) => (RequestedNetwork::AllowlistEnforced, hosts),
    };
    let seconds = NonZeroU64::new(limit.as_secs().max(1)).filter(|_| limit < Duration::MAX);
    TrialRuntime {
        paths: TrialPaths {
            workspace: workdir.to_owned(),
            state: parent(&spec.control_path).to_owned(),
            dataset: workdir.to_owned(),
            out: parent(&spec.output_path).to_owned(),
            tmp: TMP.to_owned(),
        },
        network: TrialNetwork { mode_requested, allowed_hosts },
        control_plane: ControlPlane {
            mode: ControlPlaneMode::File,
            path: spec.control_path.clone(),
        },
        timeouts: seconds
            .map(|trial| TrialTimeouts { trial_seconds: Some(trial), tool_seconds: None }),
    }
}
