//! Sample values of types with many fields.

use std::collections::{BTreeMap, BTreeSet};

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::record::{Durations, Timestamps, TrialRecord, Verdict};
use rollout_protocol::spec::agent::{AgentKind, AgentLimits, AgentSpec, AgentTaskOptions};
use rollout_protocol::spec::environment::{
    EnvironmentRates, EnvironmentSpec, PreservePolicy, ProcessSettings, ProviderSpec,
};
use rollout_protocol::spec::settings::{TrialSettings, VerifierSettings};
use rollout_protocol::spec::task::TaskSpec;
use rollout_protocol::spec::trial::{TrialName, TrialRef};
use rollout_protocol::version::RUN_FORMAT;
use rollout_protocol::wire::offer::{Offer, OfferedWork, RunRateLimits, SizeClass};
use rollout_store::MemoryStore;

use crate::executor::Finished;
use crate::work::trial::TrialContext;

/// A run whose trials are attempts of one agent at one task.
#[derive(Debug, Clone, Copy)]
pub struct SampleRun {
    /// The run.
    pub run: RunId,
    trial: TrialRef,
}

impl SampleRun {
    /// Stores the specs of its trials.
    pub fn store(store: &MemoryStore) -> Self {
        let settings = TrialSettings {
            instruction_path: "/instruction.md".into(),
            environment: EnvironmentSpec {
                provider: ProviderSpec::Process(ProcessSettings::default()),
                force_build: false,
                preserve_env: PreservePolicy::Never,
                rates: EnvironmentRates::default(),
            },
            verifier: VerifierSettings::default(),
            artifacts: Vec::new(),
            extra_instructions: Vec::new(),
            compose_overlays: Vec::new(),
            install_only: false,
            gateway: None,
            budget: None,
            secrets: BTreeSet::new(),
        };
        let agent = AgentSpec {
            name: "agent".into(),
            kind: AgentKind::Nop,
            env: BTreeMap::default(),
            limits: AgentLimits::default(),
            install_once: false,
            model: None,
            task_options: AgentTaskOptions::default(),
            session_calls: None,
        };
        let task = TaskSpec::new("dataset", "task");
        let trial = TrialRef {
            settings: store.put_value(&settings),
            agent: store.put_value(&agent),
            task: store.put_value(&task),
            attempt: 0,
        };
        Self { run: RunId::from_bytes([1; 16]), trial }
    }

    /// The item of an attempt.
    pub fn item(&self, attempt: u32) -> ItemId {
        ItemId::for_trial("agent", "dataset", "task", attempt)
    }

    /// The offer for a try of an attempt.
    pub fn offer(&self, attempt: u32, try_id: TryId) -> Offer {
        let trial = TrialRef { attempt, ..self.trial };
        Offer {
            run: self.run,
            item: self.item(attempt),
            try_id,
            spec: trial.digest(),
            class: SizeClass(0),
            work: OfferedWork::Trial(trial),
            rate_limits: RunRateLimits::default(),
            model_calls: None,
        }
    }
}

/// The record of a trial that left no files and took no time.
pub fn trial_record(trial: TrialName, verdict: Verdict, at: Timestamp) -> TrialRecord {
    TrialRecord {
        format: RUN_FORMAT,
        run: RunId::from_bytes([1; 16]),
        item: trial.item(),
        try_id: TryId::first(1),
        exec: ExecId::from_bytes([1; 16]),
        worker: "worker-1".parse().expect("a worker id"),
        host: "host".into(),
        trial,
        spec: Digest::sha256(b"spec"),
        task_git_commit_id: None,
        verdict,
        secondary_errors: Vec::new(),
        durations: Durations::default(),
        timestamps: Timestamps::instant(at),
        environment: None,
        outputs: Vec::new(),
        logs: None,
        verifier_stdout: None,
        verifier_stderr: None,
        artifacts: Vec::new(),
        steps: Vec::new(),
        verifier_environment: None,
        harness: None,
        gateway: None,
    }
}

/// A passed trial that left no files.
pub fn passed_trial(context: &TrialContext) -> Finished<TrialRecord> {
    let TrialContext { execution, agent, task, attempt, .. } = context;
    let labels = &execution.labels;
    let trial = TrialName {
        agent: agent.name.clone(),
        dataset: task.dataset.clone(),
        task: task.name.clone(),
        attempt: *attempt,
    };
    let record = TrialRecord {
        run: labels.run,
        item: labels.item,
        try_id: labels.try_id,
        exec: labels.exec,
        worker: labels.worker.clone(),
        host: labels.owner.host.clone(),
        spec: execution.spec,
        ..trial_record(trial, Verdict::completed(1.0), Timestamp::now())
    };
    Finished { record, files: Vec::new(), stopped: None }
}
