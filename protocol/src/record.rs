//! What happened to an execution, whole: the record, a blob in the store. The small message that
//! announces it is the report ([`crate::wire::report`]).

mod eval;
mod execution;
mod ideas;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::blob::BlobRef;
use crate::digest::Digest;
use crate::error::TrialError;
use crate::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use crate::item_name::ItemName;
use crate::phase::Phase;
use crate::spec::trial::TrialName;

pub use eval::{CheckoutChanges, CommandRecord, EvalEnd, EvalRecord};
pub use execution::ExecutionRecord;
pub use ideas::{IdeasEnd, IdeasRecord};

/// How an item ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemOutcome {
    /// The verifier ran and produced a reward, whatever its value.
    Completed,
    /// An error prevented a reward.
    Failed,
    /// Ended by the user's command.
    Cancelled,
    /// Ran to its end; the verifier is disabled.
    Unverified,
}

impl ItemOutcome {
    /// The word used in documents and on the terminal.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unverified => "unverified",
        }
    }
}

/// What an execution came to, in numbers: part of every report and record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// How it ended.
    pub outcome: ItemOutcome,
    /// The verifier's number; absent when there is no verdict, never 0 for that, and when none of
    /// several numbers is the reward.
    #[serde(default)]
    pub reward: Option<f64>,
    /// The verifier's numbers by their keys, when it gave more than one number without a key.
    #[serde(default, skip_serializing_if = "Rewards::is_empty")]
    pub rewards: Rewards,
    /// Cost of the environment, in the user's currency.
    #[serde(default, deserialize_with = "crate::cost::read")]
    pub cost: f64,
    /// The first cause of failure. With outcome `completed` it is an error of the teardown, or one
    /// of the agent where the task is verified all the same.
    #[serde(default)]
    pub error: Option<TrialError>,
    /// Steps that ran and could not be verified. A trial that has one is not passed, whatever the
    /// reward that its other steps make.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unverified_steps: Vec<String>,
}

/// Numbers of a verifier, by their keys.
pub type Rewards = BTreeMap<String, f64>;

/// The key of the one number of a verifier that gives no keys.
pub const REWARD_KEY: &str = "reward";

impl Verdict {
    /// A reward without anything else.
    pub const fn completed(reward: f64) -> Self {
        Self {
            outcome: ItemOutcome::Completed,
            reward: Some(reward),
            rewards: Rewards::new(),
            cost: 0.0,
            error: None,
            unverified_steps: Vec::new(),
        }
    }

    /// An error that prevented a reward.
    pub const fn failed(error: TrialError) -> Self {
        Self {
            outcome: ItemOutcome::Failed,
            reward: None,
            rewards: Rewards::new(),
            cost: 0.0,
            error: Some(error),
            unverified_steps: Vec::new(),
        }
    }

    /// An end by the user's command, after which so much is owed.
    pub const fn cancelled(cost: f64) -> Self {
        Self {
            outcome: ItemOutcome::Cancelled,
            reward: None,
            rewards: Rewards::new(),
            cost,
            error: None,
            unverified_steps: Vec::new(),
        }
    }

    /// The verifier's numbers by their keys; one without a key has [`REWARD_KEY`].
    pub fn numbers(&self) -> impl Iterator<Item = (&str, f64)> {
        let lone =
            self.reward.filter(|_| self.rewards.is_empty()).map(|reward| (REWARD_KEY, reward));
        lone.into_iter().chain(self.rewards.iter().map(|(key, number)| (key.as_str(), *number)))
    }

    /// The trial passed: a reward of 1, and every step that ran was verified.
    pub fn passed(&self) -> bool {
        self.outcome == ItemOutcome::Completed
            && self.unverified_steps.is_empty()
            && self.reward.is_some_and(|r| (r - 1.0).abs() < 1e-9)
    }
}

/// Wall-clock times of an execution; a phase that was not reached has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timestamps {
    /// The worker began.
    pub started_at: Timestamp,
    /// Image build or pull, start, copies: began.
    pub environment_setup_started_at: Option<Timestamp>,
    /// … and ended.
    pub environment_setup_ended_at: Option<Timestamp>,
    /// Install began.
    pub agent_setup_started_at: Option<Timestamp>,
    /// … and ended.
    pub agent_setup_ended_at: Option<Timestamp>,
    /// Execute began.
    pub agent_execution_started_at: Option<Timestamp>,
    /// … and ended.
    pub agent_execution_ended_at: Option<Timestamp>,
    /// Verification began.
    pub verifier_started_at: Option<Timestamp>,
    /// … and ended.
    pub verifier_ended_at: Option<Timestamp>,
    /// The environment was gone (or preserved) and the record complete.
    pub ended_at: Timestamp,
}

impl Timestamps {
    /// Nothing but a beginning and an end.
    pub const fn instant(at: Timestamp) -> Self {
        Self {
            started_at: at,
            environment_setup_started_at: None,
            environment_setup_ended_at: None,
            agent_setup_started_at: None,
            agent_setup_ended_at: None,
            agent_execution_started_at: None,
            agent_execution_ended_at: None,
            verifier_started_at: None,
            verifier_ended_at: None,
            ended_at: at,
        }
    }
}

/// Durations measured on a monotonic clock, seconds; a phase that was not reached has none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Durations {
    /// From the worker's beginning to the end of the teardown.
    pub total_sec: f64,
    /// Environment setup.
    pub environment_setup_sec: Option<f64>,
    /// Install.
    pub agent_setup_sec: Option<f64>,
    /// Execute.
    pub agent_execution_sec: Option<f64>,
    /// Verification.
    pub verifier_sec: Option<f64>,
}

/// The record of one execution of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// [`crate::version::RUN_FORMAT`].
    pub format: u32,
    /// Run.
    pub run: RunId,
    /// Item.
    pub item: ItemId,
    /// Try.
    #[serde(rename = "try")]
    pub try_id: TryId,
    /// Execution.
    pub exec: ExecId,
    /// Worker.
    pub worker: WorkerId,
    /// Host of the worker.
    pub host: String,
    /// What was tried.
    pub trial: TrialName,
    /// Digest of what it ran under.
    pub spec: Digest,
    /// Commit of the task's repository.
    pub task_git_commit_id: Option<String>,
    /// What it came to.
    pub verdict: Verdict,
    /// Errors after the first, and errors of collection and teardown, in the order of their coming.
    #[serde(default)]
    pub secondary_errors: Vec<TrialError>,
    /// Durations.
    pub durations: Durations,
    /// Times.
    pub timestamps: Timestamps,
    /// The environment, if there was one.
    #[serde(default)]
    pub environment: Option<EnvironmentRecord>,
    /// Captured files, by their path below the trial's directory.
    #[serde(default)]
    pub outputs: Vec<OutputFile>,
    /// `/logs` of the environment as one clean archive, without the first component.
    #[serde(default)]
    pub logs: Option<LogsRecord>,
    /// The end of the verifier's standard output.
    #[serde(default)]
    pub verifier_stdout: Option<String>,
    /// The end of the verifier's standard error.
    #[serde(default)]
    pub verifier_stderr: Option<String>,
    /// Files that the task or the job asked to keep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<ArtifactRecord>,
    /// The steps that were run, for a task that has steps of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepRecord>,
    /// The environment of the verifier's own, if there was one; the last step's where there are
    /// several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verifier_environment: Option<EnvironmentRecord>,
}

/// What became of files that were to be kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactRecord {
    /// Absolute path inside the environment.
    pub source: String,
    /// Path below the trial's directory.
    pub path: String,
    /// Service that it was taken from; the agent's environment when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// What became of it.
    pub status: ArtifactStatus,
    /// Whether it is a directory or a file, when it was there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ArtifactKind>,
    /// A clean archive of it: of the directory's content, or of the one file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<BlobRef>,
    /// Why it was not kept, or not whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What became of files that were to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactStatus {
    /// Kept.
    Ok,
    /// There, without anything in it.
    Empty,
    /// Not there.
    Skipped,
    /// Not kept, or not whole.
    Failed,
}

/// What an artifact is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactKind {
    /// A file.
    File,
    /// A directory.
    Directory,
}

/// One step of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its name.
    pub name: String,
    /// The verifier's number; absent when there is no verdict, and when none of several numbers is
    /// the reward.
    #[serde(default)]
    pub reward: Option<f64>,
    /// The verifier's numbers by their keys.
    #[serde(default, skip_serializing_if = "Rewards::is_empty")]
    pub rewards: Rewards,
    /// The first cause of failure.
    #[serde(default)]
    pub error: Option<TrialError>,
    /// Execute began.
    #[serde(default)]
    pub agent_execution_started_at: Option<Timestamp>,
    /// … and ended.
    #[serde(default)]
    pub agent_execution_ended_at: Option<Timestamp>,
    /// Verification began.
    #[serde(default)]
    pub verifier_started_at: Option<Timestamp>,
    /// … and ended.
    #[serde(default)]
    pub verifier_ended_at: Option<Timestamp>,
    /// What the step's verifier left in `/logs/verifier`, with names that begin with `verifier/`.
    /// The trial's own logs have none of it then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<LogsRecord>,
}

/// The environment of an execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnvironmentRecord {
    /// Provider.
    pub provider: String,
    /// The provider's name for the environment.
    pub id: String,
    /// Its image.
    pub image: String,
    /// Whether this execution built or pulled the image.
    pub image_made: bool,
    /// How the image was built, when it was built and that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_build: Option<ImageBuild>,
    /// How each limit was held: `enforced`, `measured` or `no`.
    pub limits: EnforcedLimits,
    /// How to get into the environment, when it was preserved.
    #[serde(default)]
    pub preserved: Option<String>,
}

/// How an image was built.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageBuild {
    /// The builder: `buildkit` or `classic`.
    pub builder: String,
    /// The images that it was built from, each as the Dockerfile names it, with its digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bases: BTreeMap<String, String>,
}

impl ImageBuild {
    /// A build by this builder.
    pub fn for_builder(builder: &str) -> Self {
        Self { builder: builder.to_owned(), bases: BTreeMap::new() }
    }
}

/// How the limits of an environment were held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcedLimits {
    /// Processors.
    pub cpus: LimitEnforcement,
    /// Memory.
    pub memory: LimitEnforcement,
    /// Number of processes.
    pub pids: LimitEnforcement,
    /// Storage.
    pub storage: LimitEnforcement,
}

/// How one limit was held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitEnforcement {
    /// Enforced by the kernel or the storage driver.
    Enforced,
    /// Watched: the environment is ended when it is seen above the limit.
    Measured,
    /// Not at all.
    #[default]
    No,
}

/// A captured file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFile {
    /// Path below the trial's directory, for instance `setup/stdout.txt`.
    pub path: String,
    /// What was kept.
    pub blob: BlobRef,
    /// Bytes that were written, kept or not.
    pub total_bytes: u64,
    /// Whether the middle was left out.
    pub truncated: bool,
}

/// The collected `/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogsRecord {
    /// A clean archive of regular files and directories.
    pub archive: BlobRef,
    /// Regular files and directories in it.
    pub entries: u64,
    /// Links, devices and other entries that were left out.
    pub skipped: u64,
    /// Whether a limit ended the collection early.
    pub truncated: bool,
}

/// The one terminal record of an item, one line of `records/<n>.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settlement {
    /// Item.
    pub item: ItemId,
    /// Its name.
    #[serde(flatten)]
    pub name: ItemName,
    /// The execution that settled it; absent when none did (a cancelled item that never ran).
    #[serde(default)]
    pub by: Option<Execution>,
    /// What it came to.
    pub verdict: Verdict,
    /// Executions that did not settle it, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub superseded: Vec<Execution>,
    /// When the coordinator settled it.
    pub settled_at: Timestamp,
    /// Commit of the task's repository, as the plan knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_git_commit_id: Option<String>,
}

impl Settlement {
    /// The name of the trial; nothing when another item was settled.
    pub const fn trial(&self) -> Option<&TrialName> {
        self.name.trial()
    }

    /// Commit of the task's repository: as the execution ran it, else as the plan knows it.
    pub fn task_commit<'a>(&'a self, record: Option<&'a TrialRecord>) -> Option<&'a str> {
        let ran = record.and_then(|record| record.task_git_commit_id.as_deref());
        ran.or(self.task_git_commit_id.as_deref())
    }
}

/// One execution as the coordinator knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Execution {
    /// Try.
    #[serde(rename = "try")]
    pub try_id: TryId,
    /// Execution.
    pub exec: ExecId,
    /// Worker.
    pub worker: WorkerId,
    /// How it ended.
    pub end: ExecutionEnd,
    /// Its record, when it has one beyond its report.
    #[serde(default)]
    pub record: Option<BlobRef>,
    /// Durations, when it ended with a report.
    #[serde(default)]
    pub durations: Option<Durations>,
    /// Times, when it ended with a report.
    #[serde(default)]
    pub timestamps: Option<Timestamps>,
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum ExecutionEnd {
    /// It reported a verdict.
    Reported {
        /// The verdict.
        verdict: Verdict,
    },
    /// It ended without a verdict.
    Lost {
        /// Why.
        reason: LostReason,
        /// Where it was.
        #[serde(default)]
        phase: Option<Phase>,
        /// What its environment cost, where that is known.
        #[serde(default, deserialize_with = "crate::cost::read")]
        cost: f64,
    },
    /// It had not ended when the item was settled.
    Open,
}

/// Why an execution ended without a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LostReason {
    /// Its worker process died.
    WorkerDied,
    /// No living worker shows it.
    Unreachable,
    /// No living worker shows it since the queue itself was out of reach: says nothing about the
    /// item.
    Outage,
    /// The run was stopped while it ran.
    Stopped,
    /// The process that was coordinator and worker in one died: says nothing about the item.
    ProcessDied,
}

impl LostReason {
    /// Whether it speaks against the item: only the death of a worker may be the item's doing.
    pub const fn is_death(self) -> bool {
        matches!(self, Self::WorkerDied)
    }

    /// Whether it counts against the bound of tries: what we ended ourselves does not.
    pub const fn counts(self) -> bool {
        matches!(self, Self::WorkerDied | Self::Unreachable)
    }
}
