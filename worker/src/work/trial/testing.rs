//! A fixture that runs trials over the scripted provider.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rollout_base::rate_limit::RunRateLimiter;
use rollout_base::secrets::TrialVariables;
use rollout_environment::fake::FakeProvider;
use rollout_environment::{EnvironmentLabels, ImageHealthcheck, Owner, Provider};
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::dependency::Dependency;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::TrialRecord;
use rollout_protocol::spec::agent::{AgentKind, AgentLimits, AgentSpec, AgentTaskOptions};
use rollout_protocol::spec::environment::{EnvironmentRates, EnvironmentSpec, PreservePolicy};
use rollout_protocol::spec::settings::{TrialSettings, VerifierSettings};
use rollout_protocol::spec::task::{ScriptRules, TaskEnvironment, TaskFormat, TaskSpec};
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::offer;
use rollout_store::archive::{ArchiveLimits, FilterDecision, pack};
use rollout_store::{BlobStore, MemoryStore};
use tokio::sync::watch;

use super::TrialContext;
use crate::executor::{
    ControlMailbox, DedicatedSlot, EventLogSink, ExecutionContext, ExecutionServices, Finished,
    NewEventChunk, PhaseSink, ScratchWork, TaskFiles,
};
use crate::testing::TestDirectory;

/// One trial and everything that it needs. Its parts may be changed before it runs.
#[derive(Debug)]
pub struct TrialFixture {
    /// The provider.
    pub provider: FakeProvider,
    /// The store.
    pub store: Arc<dyn BlobStore>,
    /// Settings of the job.
    pub settings: TrialSettings,
    /// The agent.
    pub agent: AgentSpec,
    /// The task.
    pub task: TaskSpec,
    /// Variables exported to trials.
    pub variables: TrialVariables,
    /// Stops the trial.
    pub stop: watch::Sender<Option<StopLevel>>,
    /// Records the phases.
    pub phases: Arc<PhaseRecorder>,
    /// Rate limits of the worker for the run.
    pub rate_limits: Option<offer::RunRateLimits>,
    /// Longest wait for a service that does not answer.
    pub max_park: Duration,
    /// Controls for the agent.
    pub controls: Arc<ControlMailbox>,
    /// The hook events that were stored while the agent ran.
    pub event_log: Arc<EventLogRecorder>,
    /// A directory that is removed with the fixture; trials have their scratch directories in it.
    pub dir: TestDirectory,
}

/// Records the chunks of hook events.
#[derive(Debug, Default)]
pub struct EventLogRecorder {
    logs: AtomicU32,
    chunks: Mutex<Vec<NewEventChunk>>,
}

impl EventLogRecorder {
    /// The chunks so far.
    pub fn chunks(&self) -> Vec<NewEventChunk> {
        self.chunks.lock().expect("not poisoned").clone()
    }
}

#[async_trait]
impl EventLogSink for EventLogRecorder {
    fn begin_log(&self) -> u32 {
        self.logs.fetch_add(1, Ordering::Relaxed) + 1
    }

    async fn append(&self, chunk: NewEventChunk) {
        self.chunks.lock().expect("not poisoned").push(chunk);
    }
}

/// Records phases, and stops the trial in one of them.
#[derive(Debug, Default)]
pub struct PhaseRecorder {
    entered: Mutex<Vec<Phase>>,
    stop: Mutex<Option<ScheduledStop>>,
    parked: Mutex<Vec<Option<Dependency>>>,
}

#[derive(Debug)]
struct ScheduledStop {
    phase: Phase,
    level: StopLevel,
    stop: watch::Sender<Option<StopLevel>>,
}

impl PhaseRecorder {
    /// The phases entered so far.
    pub fn entered(&self) -> Vec<Phase> {
        self.entered.lock().expect("not poisoned").clone()
    }

    /// The services that the execution waited for, each change once.
    pub fn parked(&self) -> Vec<Option<Dependency>> {
        self.parked.lock().expect("not poisoned").clone()
    }
}

impl PhaseSink for PhaseRecorder {
    fn entered(&self, phase: Phase) {
        self.entered.lock().expect("not poisoned").push(phase);
        if let Some(wanted) = &*self.stop.lock().expect("not poisoned")
            && wanted.phase == phase
        {
            wanted.stop.send_replace(Some(wanted.level));
        }
    }

    fn parked(&self, on: Option<Dependency>) {
        let mut parked = self.parked.lock().expect("not poisoned");
        if parked.last().copied().flatten() != on {
            parked.push(on);
        }
    }
}

impl TrialFixture {
    /// A script agent that does nothing, and a task whose tests give the reward 1.
    pub async fn new() -> Self {
        let dir = TestDirectory::new();
        let mut rig = Self {
            provider: FakeProvider::default(),
            store: Arc::new(MemoryStore::default()),
            settings: settings(),
            agent: agent(Some("echo installing"), Some("echo working")),
            task: task(),
            variables: TrialVariables::default(),
            stop: watch::Sender::new(None),
            phases: Arc::default(),
            rate_limits: None,
            max_park: Duration::ZERO,
            controls: Arc::default(),
            event_log: Arc::default(),
            dir,
        };
        let instruction = rig.store.put_bytes("do it".into(), MediaType::Text).await;
        rig.task.steps[0].files.instruction = Some(instruction.expect("stored"));
        rig.set_tests("echo 1 > /logs/verifier/reward.txt").await;
        rig
    }

    /// Gives the task Harbor's format.
    pub fn use_harbor_format(&mut self) {
        self.task.format = TaskFormat::Harbor;
        self.task.rules = ScriptRules::for_format(TaskFormat::Harbor);
    }

    /// Gives the task steps: a name, the oracle's script and the test script each.
    pub async fn set_steps(&mut self, steps: &[(&str, &str, &str)]) {
        self.use_harbor_format();
        self.agent.kind = AgentKind::Oracle;
        let template = self.task.steps[0].clone();
        self.task.steps.clear();
        for (name, solution, tests) in steps {
            let mut step = template.clone();
            step.name = Some((*name).to_owned());
            let instruction =
                self.store.put_bytes((*name).to_owned().into(), MediaType::Text).await;
            step.files.instruction = Some(instruction.expect("stored"));
            step.files.solution = Some(self.store_archive("solve.sh", solution).await);
            step.files.tests = Some(self.store_archive("test.sh", tests).await);
            self.task.steps.push(step);
        }
    }

    /// Gives the task a verifier environment of its own with a named image.
    pub fn verify_separately(&mut self) {
        let own = TaskEnvironment {
            docker_image: Some("verifier".into()),
            build_sec: 60.0,
            ..TaskEnvironment::default()
        };
        for step in &mut self.task.steps {
            step.verifier.environment = Some(Box::new(own.clone()));
        }
    }

    /// Replaces the task's test script.
    pub async fn set_tests(&mut self, script: &str) {
        self.task.steps[0].files.tests = Some(self.store_archive("test.sh", script).await);
    }

    /// Makes the agent the oracle and gives the task a solution.
    pub async fn use_oracle(&mut self, script: &str) {
        self.agent.kind = AgentKind::Oracle;
        self.task.steps[0].files.solution = Some(self.store_archive("solve.sh", script).await);
    }

    /// Replaces the agent's scripts.
    pub fn set_scripts(&mut self, install: Option<&str>, execute: Option<&str>) {
        self.agent.kind = agent(install, execute).kind;
    }

    /// Stops the trial when it enters a phase.
    pub fn stop_in(&self, phase: Phase, level: StopLevel) {
        let wanted = ScheduledStop { phase, level, stop: self.stop.clone() };
        *self.phases.stop.lock().expect("not poisoned") = Some(wanted);
    }

    /// Stores an archive of one file.
    pub async fn store_archive(&self, name: &str, content: &str) -> BlobRef {
        self.store_archive_of(&[(name, content)]).await
    }

    /// Stores an archive of files in one directory.
    pub async fn store_archive_of(&self, files: &[(&str, &str)]) -> BlobRef {
        let from = tempfile::tempdir_in(self.dir.path()).expect("a directory");
        for (name, content) in files {
            std::fs::write(from.path().join(name), content).expect("written");
        }
        let tar = self.dir.path().join("packed.tar");
        pack(from.path(), &tar, ArchiveLimits::BUNDLE, &|_: &Path, _| FilterDecision::Include)
            .expect("packed");
        let blob = self.store.put_file(&tar, MediaType::Tar).await.expect("stored");
        // The store may have moved the file.
        let _removed = std::fs::remove_file(&tar);
        blob
    }

    /// The services that executions share.
    pub fn services(&self) -> ExecutionServices {
        let provider: Arc<dyn Provider> = Arc::new(self.provider.clone());
        let files = TaskFiles::open(&self.dir.path().join("files"), self.store.clone());
        ExecutionServices {
            providers: [(provider.kind(), provider)].into(),
            files: files.expect("a directory"),
            variables: self.variables.clone(),
            gateway: None,
            disks: Arc::default(),
            host: "host".into(),
        }
    }

    /// The context of one execution; removes the scratch directory of the previous one.
    pub fn context(&self) -> TrialContext {
        let _former = std::fs::remove_dir_all(self.dir.path().join("scratch"));
        TrialContext {
            execution: self.execution(self.dir.path().join("scratch")),
            settings: Arc::new(self.settings.clone()),
            agent: Arc::new(self.agent.clone()),
            task: Arc::new(self.task.clone()),
            attempt: 1,
            rate_limiter: self.rate_limits.map(|limits| Arc::new(RunRateLimiter::new(limits))),
        }
    }

    /// The context of an execution of any kind of work, with this scratch directory.
    pub fn execution(&self, scratch: PathBuf) -> ExecutionContext {
        ExecutionContext {
            labels: labels(),
            spec: Digest::sha256(b"spec"),
            scratch,
            scratch_work: ScratchWork::default(),
            stop: self.stop.subscribe(),
            phases: self.phases.clone(),
            slot: Arc::new(DedicatedSlot),
            max_park: self.max_park,
            has_model_leases: false,
            controls: self.controls.clone(),
            event_log: self.event_log.clone(),
        }
    }

    /// Runs the trial.
    pub async fn run(&self) -> Finished<TrialRecord> {
        super::run(self.context(), &self.services()).await
    }
}

/// A check of an image by a script, with Docker's default times.
pub fn image_check(script: &str) -> ImageHealthcheck {
    ImageHealthcheck {
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        interval: Duration::from_secs(30),
        timeout: Duration::from_secs(30),
        start_period: Duration::ZERO,
        start_interval: None,
        retries: 3,
    }
}

/// The labels of the fixture's execution.
pub fn labels() -> EnvironmentLabels {
    EnvironmentLabels {
        run: RunId::from_bytes([1; 16]),
        item: ItemId::for_trial("agent", "dataset", "task", 1),
        try_id: TryId::first(1),
        exec: ExecId::from_bytes([2; 16]),
        worker: "worker".parse().expect("a token"),
        owner: Owner {
            host: "host".into(),
            boot_id: "boot".into(),
            pid_namespace: 1,
            pid: 1,
            start_ticks: 1,
            uid: 0,
            lock: "/nowhere".into(),
        },
    }
}

/// Settings of a job that sets nothing.
pub fn settings() -> TrialSettings {
    TrialSettings {
        instruction_path: "/tmp/instruction.md".into(),
        environment: EnvironmentSpec {
            provider: FakeProvider::settings(),
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
    }
}

/// An agent with scripts.
pub fn agent(install: Option<&str>, execute: Option<&str>) -> AgentSpec {
    let [install, execute] = [install, execute].map(|script| script.map(str::to_owned));
    let kind = AgentKind::Script { install, execute };
    AgentSpec {
        name: "agent".into(),
        kind,
        env: BTreeMap::new(),
        limits: AgentLimits::default(),
        install_once: false,
        model: None,
        task_options: AgentTaskOptions::default(),
        session_calls: None,
    }
}

/// A task without files.
pub fn task() -> TaskSpec {
    let mut task = TaskSpec::new("dataset", "task");
    task.environment.docker_image = Some("image".into());
    task.environment.build_sec = 60.0;
    task.install_sec = 60.0;
    task.steps[0].agent.timeout_sec = Some(60.0);
    task.steps[0].verifier.timeout_sec = 60.0;
    task
}
