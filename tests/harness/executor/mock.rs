//! An executor that runs nothing. It has references only: no directory, no queue, no run.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use rollout_coordinator::executor::{
    BlobReader, EventLogs, ExecutorError, TrialEvent, TrialEventStream, TrialExecutor,
    recorded_events,
};
use rollout_protocol::Timestamp;
use rollout_protocol::artifact::ArtifactType;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::executor::{StartTrial, TrialHandle, TrialStatus};
use rollout_protocol::harness::{
    ControlAcknowledgement, ControlAction, ControlDocument, ControlRequest, HarnessControl,
    HarnessOutcome, IntegrationLevel, parse_event,
};
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{
    ArtifactKind, ArtifactRecord, ArtifactStatus, Execution, ExecutionEnd, HarnessEvents,
    HarnessRecord, OutputFile, OutputSource, Settlement, TrialRecord, Verdict,
};
use rollout_protocol::reference::{ArtifactRef, OutputRef, TrialReferences};
use rollout_protocol::spec::trial::{TrialName, TrialRef};
use rollout_protocol::wire::trial_control::{TrialControlReceipt, TrialControlResult};
use rollout_store::{BlobStore, MemoryStore};
use rollout_worker::testing::trial_record;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{HEEDS, KEPT, WAITS, WRITES};

/// Trials of the job of [`write_job`](super::write_job), played by their agents' names: trials of
/// [`WRITES`] end at once, those of [`HEEDS`] when they are asked to stop, or, in a mock that
/// [`ends_all`](MockExecutor::ending_all), at once, and those of [`WAITS`] when they are cancelled.
#[derive(Debug)]
pub struct MockExecutor {
    run: RunId,
    store: MemoryStore,
    specs: HashMap<TrialName, TrialRef>,
    ends_all: bool,
    trials: Arc<MockTrials>,
    reads: AtomicU64,
}

#[derive(Debug, Default)]
struct MockTrials {
    known: Mutex<HashMap<ItemId, MockTrial>>,
    settled: Notify,
}

#[derive(Debug, Clone)]
struct MockTrial {
    name: TrialName,
    settlement: Option<Arc<Settlement>>,
    references: TrialReferences,
}

impl MockExecutor {
    /// An executor for these trials.
    pub fn new(
        store: MemoryStore,
        trials: impl IntoIterator<Item = (TrialName, TrialRef)>,
    ) -> Self {
        Self {
            run: RunId::from_bytes([8; 16]),
            store,
            specs: trials.into_iter().collect(),
            ends_all: false,
            trials: Arc::default(),
            reads: AtomicU64::new(0),
        }
    }

    /// Lets every trial end without a control.
    #[must_use]
    pub fn ending_all(self) -> Self {
        Self { ends_all: true, ..self }
    }

    /// The run.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// How often content was read.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn trial(&self, item: &ItemId) -> Result<MockTrial, ExecutorError> {
        self.trials.get(item)
    }

    fn references(&self, item: &ItemId) -> Result<TrialReferences, ExecutorError> {
        let trial = self.trial(item)?;
        match trial.settlement {
            Some(_) => Ok(trial.references),
            None => Err(ExecutorError::NotSettled { state: "running" }),
        }
    }

    async fn put(&self, bytes: impl Into<Bytes>, media_type: MediaType) -> BlobRef {
        self.store.put_bytes(bytes.into(), media_type).await.expect("memory")
    }

    /// Settles a trial that passed, as its agent would leave it.
    async fn pass(&self, name: &TrialName) {
        let mut record = trial_record(name.clone(), Verdict::completed(1.0), Timestamp::UNIX_EPOCH);
        record.run = self.run;
        let stdout = self.put("hello\n", MediaType::Text).await;
        record.outputs = vec![captured("command/stdout.txt", stdout)];
        let archive = self.put(KEPT, MediaType::Tar).await;
        record.artifacts = vec![ArtifactRecord {
            source: "/kept.txt".to_owned(),
            path: "artifacts/kept.txt".to_owned(),
            service: None,
            status: ArtifactStatus::Ok,
            kind: Some(ArtifactKind::File),
            archive: Some(archive),
            artifact_type: ArtifactType::WorkspaceDiff,
            error: None,
            possible_secrets: Vec::new(),
        }];
        if name.agent == HEEDS {
            self.add_harness(&mut record).await;
        }
        let bytes = serde_json::to_vec(&record).expect("text keys only");
        let blob = self.put(bytes, MediaType::Json).await;
        let references = TrialReferences::from_record(&blob, &record);
        let by = Execution {
            try_id: record.try_id,
            exec: record.exec,
            worker: record.worker,
            end: ExecutionEnd::Reported { verdict: record.verdict.clone() },
            record: Some(blob),
            durations: Some(record.durations),
            timestamps: Some(record.timestamps),
        };
        self.trials.settle(name, Some(by), record.verdict, references);
    }

    /// The log of a trial of [`HEEDS`].
    fn event_lines() -> [String; 4] {
        let ids = ids();
        let version = ControlDocument::initial(Timestamp::UNIX_EPOCH).to_file().written.version;
        let event = |seq: u64, kind: &str, more: Value| {
            let mut event = json!({
                "event_type": kind, "ts": "2026-01-02T03:04:05Z", "seq": seq, "ids": ids,
                "step_index": 0,
            });
            let more = more.as_object().expect("an object").clone();
            event.as_object_mut().expect("an object").extend(more);
            format!("{event}\n")
        };
        let ack = json!({ "control_version": version, "action_observed": "stop" });
        [
            event(0, "agent_step_start", json!({})),
            "no event\n".to_owned(),
            event(1, "agent_step_end", json!({})),
            event(2, "control_ack", ack),
        ]
    }

    /// The events that a trial of [`HEEDS`] has written while it runs.
    fn events_while_running() -> Vec<TrialEvent> {
        let [first, no_event, second, _] = Self::event_lines();
        let lines = [first, no_event, second];
        let events = lines.iter().filter_map(|line| parse_event(line.trim_end().as_bytes()).ok());
        let exec = ExecId::from_bytes([1; 16]);
        let numbered = (0..).zip(events);
        numbered.map(|(number, event)| TrialEvent { exec, number, step: None, event }).collect()
    }

    async fn add_harness(&self, record: &mut TrialRecord) {
        let log = self.put(Self::event_lines().concat(), MediaType::Text).await;
        let ids = ids();
        let document =
            json!({ "schema_version": "trial_output_v1", "ids": ids, "outcome": "success" });
        let output = self.put(document.to_string(), MediaType::Json).await;
        record.outputs.push(captured("harness/e.jsonl", log.clone()));
        let harness = HarnessRecord {
            integration_level: IntegrationLevel::CliEvents,
            outcome: HarnessOutcome::Success,
            output_source: OutputSource::File,
            objective: None,
            metrics: [].into(),
            metrics_left_out: 0,
            error: None,
            output: Some(output),
            events: Some(HarnessEvents { log: Some(log), total: 3, ..HarnessEvents::default() }),
            controls: Vec::new(),
        };
        record.verdict.harness = Some(Box::new(harness.summary()));
        record.harness = Some(Box::new(harness));
    }
}

impl MockTrials {
    fn get(&self, item: &ItemId) -> Result<MockTrial, ExecutorError> {
        let unknown = || ExecutorError::UnknownTrial { trial: item.to_string() };
        self.known().get(item).cloned().ok_or_else(unknown)
    }

    fn settle(
        &self,
        name: &TrialName,
        by: Option<Execution>,
        verdict: Verdict,
        references: TrialReferences,
    ) {
        let settlement = Settlement {
            item: name.item(),
            name: name.clone().into(),
            by,
            verdict,
            superseded: Vec::new(),
            settled_at: Timestamp::UNIX_EPOCH,
            task_git_commit_id: None,
        };
        let settlement = Some(Arc::new(settlement));
        let trial = MockTrial { name: name.clone(), settlement, references };
        self.known().insert(name.item(), trial);
        self.settled.notify_waiters();
    }

    async fn wait_settled(&self, item: &ItemId) -> Result<MockTrial, ExecutorError> {
        loop {
            let mut told = std::pin::pin!(self.settled.notified());
            told.as_mut().enable();
            let trial = self.get(item)?;
            if trial.settlement.is_some() {
                return Ok(trial);
            }
            told.await;
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<ItemId, MockTrial>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ids() -> Value {
    json!({
        "run_id": "run", "trial_id": "trial", "variant_id": HEEDS, "task_id": "t", "repl_idx": 0,
    })
}

fn captured(path: &str, blob: BlobRef) -> OutputFile {
    let total_bytes = blob.size_bytes;
    OutputFile { path: path.to_owned(), blob, total_bytes, truncated: false }
}

/// A trial of the mock runs in its agent's command from its start to its settlement.
fn running() -> TrialStatus {
    TrialStatus::Running {
        try_id: TryId::first(1),
        exec: ExecId::from_bytes([1; 16]),
        phase: Phase::AgentExecution,
        waiting_for: None,
    }
}

#[async_trait]
impl TrialExecutor for MockExecutor {
    async fn start_trial(&self, request: StartTrial) -> Result<TrialHandle, ExecutorError> {
        let StartTrial { trial, spec } = request;
        let unknown = || ExecutorError::UnknownTrial { trial: trial.to_string() };
        if *self.specs.get(&trial).ok_or_else(unknown)? != spec {
            return Err(ExecutorError::OtherSpec { trial });
        }
        let (run, item) = (self.run, trial.item());
        let handle = TrialHandle { run, item, trial: trial.clone() };
        if self.trials.get(&item).is_ok() {
            return Ok(handle);
        }
        let references = TrialReferences::default();
        let new = MockTrial { name: trial.clone(), settlement: None, references };
        self.trials.known().insert(item, new);
        if trial.agent == WRITES || (self.ends_all && trial.agent == HEEDS) {
            self.pass(&trial).await;
        } else if self.ends_all && trial.agent == WAITS {
            self.cancel_trial(item).await?;
        }
        Ok(handle)
    }

    async fn trial_status(&self, trial: ItemId) -> Result<TrialStatus, ExecutorError> {
        let settled = self.trial(&trial)?.settlement;
        Ok(settled.map_or_else(running, |settlement| TrialStatus::Settled { settlement }))
    }

    fn trial_events(&self, trial: ItemId, from: u64) -> TrialEventStream {
        let (trials, store) = (Arc::clone(&self.trials), self.store.clone());
        let sent = match self.trial(&trial) {
            Ok(found) if found.settlement.is_none() && found.name.agent == HEEDS => {
                Self::events_while_running()
            }
            _ => Vec::new(),
        };
        let sent: Vec<_> = sent.into_iter().filter(|event| event.number >= from).collect();
        let from = sent.last().map_or(from, |event| event.number + 1);
        let events = async move {
            let trial = trials.wait_settled(&trial).await?;
            let by = trial.settlement.as_ref().and_then(|settlement| settlement.by.as_ref());
            let Some(exec) = by.map(|by| by.exec) else {
                return Ok::<TrialEventStream, ExecutorError>(stream::empty().boxed());
            };
            let open = move |blob: BlobRef| {
                let store = store.clone();
                async move { Ok(store.get(&blob.digest).await?) }.boxed()
            };
            let logs = trial.references.event_logs;
            Ok(recorded_events(EventLogs { exec, logs }, from, open))
        };
        stream::iter(sent.into_iter().map(Ok)).chain(stream::once(events).try_flatten()).boxed()
    }

    async fn send_control(
        &self,
        trial: ItemId,
        control: ControlRequest,
    ) -> Result<TrialControlReceipt, ExecutorError> {
        let found = self.trial(&trial)?;
        if found.settlement.is_some() {
            return Err(ExecutorError::NotRunning { state: "settled" });
        }
        let ControlRequest { action, label, requested_by, .. } = control;
        let at = Timestamp::UNIX_EPOCH;
        let next = ControlDocument::initial(at).next(action, label.clone(), &requested_by, at);
        let written = next.to_file().written;
        if action == ControlAction::Stop {
            self.pass(&found.name).await;
        }
        let control = HarnessControl {
            control_version: written.version,
            seq: written.seq,
            action,
            label,
            requested_at: at,
            requested_by,
            delivered_at: Some(at),
            acknowledgement: Some(ControlAcknowledgement {
                action_taken: action,
                step_index: Some(0),
            }),
            ended_command: false,
        };
        Ok(TrialControlReceipt {
            item: trial,
            exec: ExecId::from_bytes([1; 16]),
            worker: "mock".parse().expect("a token"),
            action,
            result: TrialControlResult::Acknowledged { control },
        })
    }

    async fn trial_output(&self, trial: ItemId) -> Result<Option<OutputRef>, ExecutorError> {
        Ok(self.references(&trial)?.output)
    }

    async fn trial_artifacts(&self, trial: ItemId) -> Result<Vec<ArtifactRef>, ExecutorError> {
        Ok(self.references(&trial)?.artifacts)
    }

    async fn read_artifact(&self, blob: &BlobRef) -> Result<BlobReader, ExecutorError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Ok(self.store.get(&blob.digest).await?)
    }

    async fn cancel_trial(&self, trial: ItemId) -> Result<(), ExecutorError> {
        let found = self.trial(&trial)?;
        if found.settlement.is_none() {
            let references = TrialReferences::default();
            self.trials.settle(&found.name, None, Verdict::cancelled(0.0), references);
        }
        Ok(())
    }
}
