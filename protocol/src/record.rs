//! Records: the full results of executions and items, stored as blobs. The small message that
//! announces a record is the report ([`crate::wire::report`]).

mod atif;
mod eval;
mod execution;
mod format_doubt;
mod harness;
mod ideas;
mod model_call;
mod model_tokens;
mod settlement;
mod start_wait;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::artifact::ArtifactType;
use crate::blob::BlobRef;
use crate::digest::Digest;
use crate::error::TrialError;
use crate::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use crate::spec::budget::ModelUse;
use crate::spec::trial::TrialName;

pub use atif::{
    ATIF_PATH, ATIF_VERSION, AtifAgent, AtifFinalMetrics, AtifMetrics, AtifObservation, AtifResult,
    AtifSource, AtifStep, AtifToolCall, AtifTrajectory,
};
pub use eval::{CheckoutChanges, CommandRecord, EvalEnd, EvalRecord};
pub use execution::ExecutionRecord;
pub use format_doubt::FormatDoubt;
pub use harness::{
    HarnessEventCounts, HarnessEvents, HarnessRecord, HarnessSummary, OutputSource, StepEventLog,
};
pub use ideas::{IdeasEnd, IdeasRecord};
pub use model_call::{
    CallAttempt, CallBegun, CallBody, CallEnd, CallEnded, CallLatency, CallPolicy, GatewaySummary,
    ModelCallLine, ModelEndpoint, SessionCalls, TokenUsage,
};
pub use model_tokens::{
    CallTokens, ChoiceTokens, MissingTokens, TokenSection, TokenSections, TrajectoryBasis,
    TrajectoryRecord,
};
pub use settlement::{Execution, ExecutionEnd, LostReason, Settlement};
pub use start_wait::{StartWait, StartWaitEnd};

/// How an item ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemOutcome {
    /// The verifier ran and produced a reward, whatever its value.
    Completed,
    /// An error prevented a reward.
    Failed,
    /// Cancelled by the user.
    Cancelled,
    /// Ran to its end; the verifier is disabled.
    Unverified,
}

impl ItemOutcome {
    /// The name used in documents and on the terminal.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unverified => "unverified",
        }
    }
}

/// The result of an execution, in numbers: part of every report and record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// How it ended.
    pub outcome: ItemOutcome,
    /// The verifier's number; absent without a verdict (never 0 for that), and when none of several
    /// numbers is the reward.
    #[serde(default)]
    pub reward: Option<f64>,
    /// The verifier's numbers by their keys, when it gave more than a single number without a key.
    #[serde(default, skip_serializing_if = "Rewards::is_empty")]
    pub rewards: Rewards,
    /// Cost of the environment and of model calls, in the user's currency.
    #[serde(default, deserialize_with = "crate::cost::read")]
    pub cost: f64,
    /// The first cause of failure. With outcome `completed` it is an error of the teardown or of a
    /// collect hook, or one of the agent if the task is verified after agent errors.
    #[serde(default)]
    pub error: Option<TrialError>,
    /// Steps that ran and could not be verified. A trial that has one is not passed, whatever the
    /// reward of its other steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unverified_steps: Vec<String>,
    /// The result of the harness, if the agent is one; of the last step if there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harness: Option<Box<HarnessSummary>>,
    /// Use of its model calls; its cost is part of `cost`.
    #[serde(default, skip_serializing_if = "ModelUse::is_none")]
    pub model_use: ModelUse,
    /// Why the guessed format of the task decides this verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format_doubt: Option<FormatDoubt>,
}

/// Numbers of a verifier, by their keys.
pub type Rewards = BTreeMap<String, f64>;

/// The key of the single number of a verifier that gives no keys.
pub const REWARD_KEY: &str = "reward";

impl Verdict {
    /// A reward and nothing else.
    pub const fn completed(reward: f64) -> Self {
        Self {
            outcome: ItemOutcome::Completed,
            reward: Some(reward),
            rewards: Rewards::new(),
            cost: 0.0,
            error: None,
            unverified_steps: Vec::new(),
            harness: None,
            model_use: ModelUse::NONE,
            format_doubt: None,
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
            harness: None,
            model_use: ModelUse::NONE,
            format_doubt: None,
        }
    }

    /// Cancelled by the user, at this cost.
    pub const fn cancelled(cost: f64) -> Self {
        Self {
            outcome: ItemOutcome::Cancelled,
            reward: None,
            rewards: Rewards::new(),
            cost,
            error: None,
            unverified_steps: Vec::new(),
            harness: None,
            model_use: ModelUse::NONE,
            format_doubt: None,
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
    /// The worker started it.
    pub started_at: Timestamp,
    /// Environment setup (image build or pull, start, copies) started.
    pub environment_setup_started_at: Option<Timestamp>,
    /// … and ended.
    pub environment_setup_ended_at: Option<Timestamp>,
    /// Install started.
    pub agent_setup_started_at: Option<Timestamp>,
    /// … and ended.
    pub agent_setup_ended_at: Option<Timestamp>,
    /// Execute started.
    pub agent_execution_started_at: Option<Timestamp>,
    /// … and ended.
    pub agent_execution_ended_at: Option<Timestamp>,
    /// Verification started.
    pub verifier_started_at: Option<Timestamp>,
    /// … and ended.
    pub verifier_ended_at: Option<Timestamp>,
    /// The environment was removed (or preserved) and the record was complete.
    pub ended_at: Timestamp,
}

impl Timestamps {
    /// Only a start and an end.
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
    /// From the start on the worker to the end of the teardown.
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
    #[serde(deserialize_with = "crate::version::read")]
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
    /// The trial.
    pub trial: TrialName,
    /// Digest of everything it ran under.
    pub spec: Digest,
    /// Commit of the task's repository.
    pub task_git_commit_id: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// Errors after the first, and errors of collection and teardown, in chronological order.
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
    /// `/logs` of the environment as one clean archive, without the first path component.
    #[serde(default)]
    pub logs: Option<LogsRecord>,
    /// The end of the verifier's standard output.
    #[serde(default)]
    pub verifier_stdout: Option<String>,
    /// The end of the verifier's standard error.
    #[serde(default)]
    pub verifier_stderr: Option<String>,
    /// Files that the task or the job asks to keep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<ArtifactRecord>,
    /// The steps that ran, for a task with steps of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepRecord>,
    /// The separate environment of the verifier, if there was one; that of the last step if there
    /// were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verifier_environment: Option<EnvironmentRecord>,
    /// The result of the harness, if the agent is one; of the last step if there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harness: Option<Box<HarnessRecord>>,
    /// The calls to model servers through the gateway, if the job has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Box<GatewaySummary>>,
}

/// An artifact: files to keep, and their status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactRecord {
    /// Absolute path inside the environment.
    pub source: String,
    /// Path below the trial's directory.
    pub path: String,
    /// Service that it was taken from; the agent's environment when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Its status.
    pub status: ArtifactStatus,
    /// Whether it is a directory or a file, if it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ArtifactKind>,
    /// A clean archive of it: of the content of a directory, or of the single file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<BlobRef>,
    /// Its type.
    #[serde(default, skip_serializing_if = "ArtifactType::is_custom")]
    pub artifact_type: ArtifactType,
    /// Why it was not kept, or only in part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Variables whose values it holds and which look like secrets. It is kept unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub possible_secrets: Vec<String>,
}

/// Status of an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactStatus {
    /// Kept.
    Ok,
    /// Exists, but is empty.
    Empty,
    /// Does not exist.
    Skipped,
    /// Not kept, or only in part.
    Failed,
}

/// Kind of an artifact.
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
    /// The verifier's number; absent without a verdict, and when none of several numbers is the
    /// reward.
    #[serde(default)]
    pub reward: Option<f64>,
    /// The verifier's numbers by their keys.
    #[serde(default, skip_serializing_if = "Rewards::is_empty")]
    pub rewards: Rewards,
    /// The first cause of failure.
    #[serde(default)]
    pub error: Option<TrialError>,
    /// Execute started.
    #[serde(default)]
    pub agent_execution_started_at: Option<Timestamp>,
    /// … and ended.
    #[serde(default)]
    pub agent_execution_ended_at: Option<Timestamp>,
    /// Verification started.
    #[serde(default)]
    pub verifier_started_at: Option<Timestamp>,
    /// … and ended.
    #[serde(default)]
    pub verifier_ended_at: Option<Timestamp>,
    /// Files that the step's verifier left in `/logs/verifier`, with names that begin with
    /// `verifier/`. The logs of the trial do not contain them then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logs: Option<LogsRecord>,
    /// The result of the harness in this step, if the agent is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub harness: Option<Box<HarnessRecord>>,
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
    /// How the image was built, if it was built and the details are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_build: Option<ImageBuild>,
    /// How each limit was enforced: `enforced`, `measured` or `no`.
    pub limits: EnforcedLimits,
    /// How long its first command waited for it, and for what; absent without a wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_wait: Option<StartWait>,
    /// How to enter the environment, if it was preserved.
    #[serde(default)]
    pub preserved: Option<String>,
}

/// How an image was built.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageBuild {
    /// The builder: `buildkit` or `classic`.
    pub builder: String,
    /// Its base images, each as named in the Dockerfile, with its digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bases: BTreeMap<String, String>,
}

/// How the limits of an environment were enforced.
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

/// How one limit was enforced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitEnforcement {
    /// Enforced by the kernel or the storage driver.
    Enforced,
    /// Measured: the environment is ended when it is seen above the limit.
    Measured,
    /// Not enforced.
    #[default]
    No,
}

/// A captured file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFile {
    /// Path below the trial's directory, for instance `setup/stdout.txt`.
    pub path: String,
    /// The kept bytes.
    pub blob: BlobRef,
    /// Bytes written, kept or not.
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
