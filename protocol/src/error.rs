//! Errors of trials: a stable type, a finer code, a class and a retry class.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limits;
use crate::phase::Phase;

macro_rules! error_types {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $phase:ident;)*) => {
        /// The error types of the Rollout format: a closed list of 17.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum ErrorType {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)*
        }

        impl ErrorType {
            /// Every type, in phase order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name used in `result.json`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// The phase the type belongs to (`internal_error` may happen in any).
            pub const fn phase(self) -> Phase {
                match self { $(Self::$variant => Phase::$phase),* }
            }
        }
    };
}

error_types! {
    /// The task directory does not exist.
    TaskNotFound = "task_not_found", Queued;
    /// The task lacks a required file or cannot run as it is.
    TaskInvalid = "task_invalid", Queued;
    /// The image build failed.
    EnvironmentBuildFailed = "environment_build_failed", EnvironmentSetup;
    /// The image build exceeded `environment.build_timeout_sec`.
    EnvironmentBuildTimeout = "environment_build_timeout", EnvironmentSetup;
    /// The image named by `environment.docker_image` could not be pulled.
    EnvironmentImagePullFailed = "environment_image_pull_failed", EnvironmentSetup;
    /// The environment did not start.
    EnvironmentStartFailed = "environment_start_failed", EnvironmentSetup;
    /// The platform cannot provide the requested cpus, memory or storage.
    EnvironmentResourceAllocationFailed = "environment_resource_allocation_failed", EnvironmentSetup;
    /// The install script ended with a non-zero code: the infrastructure's failure.
    AgentInstallFailed = "agent_install_failed", AgentSetup;
    /// The install script exceeded `agent.install_timeout_sec`.
    AgentInstallTimeout = "agent_install_timeout", AgentSetup;
    /// The execute script ended with a non-zero code.
    AgentExecutionFailed = "agent_execution_failed", AgentExecution;
    /// The execute script exceeded `agent.timeout_sec`.
    AgentExecutionTimeout = "agent_execution_timeout", AgentExecution;
    /// The test script ended with a non-zero code; its reward file is ignored.
    VerifierFailed = "verifier_failed", Verification;
    /// The test script exceeded the verifier's timeout.
    VerifierTimeout = "verifier_timeout", Verification;
    /// The test script left no `/logs/verifier/reward.txt`.
    VerifierRewardMissing = "verifier_reward_missing", Verification;
    /// The reward file is not one finite number.
    VerifierRewardInvalid = "verifier_reward_invalid", Verification;
    /// The environment could not be stopped or removed. Never changes the reward.
    EnvironmentTeardownFailed = "environment_teardown_failed", Teardown;
    /// Anything unexpected, in any phase.
    InternalError = "internal_error", Queued;
}

impl fmt::Display for ErrorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The party that caused a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// Rollout or the provider: says nothing about agent or task, never scores.
    Infrastructure,
    /// The agent.
    Agent,
    /// The verifier.
    Verifier,
    /// The task's definition.
    Task,
}

impl ErrorClass {
    /// The name used in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Infrastructure => "infrastructure",
            Self::Agent => "agent",
            Self::Verifier => "verifier",
            Self::Task => "task",
        }
    }
}

/// Whether a retry can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryClass {
    /// A retry may succeed: counts against the retry policy.
    Transient,
    /// A retry would fail the same way, or the outcome must not be repeated silently.
    Permanent,
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $name: Self = Self(Cow::Borrowed($text));)*
            /// Every code that this version uses; the list is open.
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

/// A finer reason than [`ErrorType`], in `snake_case`. The list is open: readers must accept codes
/// they do not know.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ErrorCode(Cow<'static, str>);

error_codes! {
    /// A script ended with a non-zero code.
    NON_ZERO_EXIT = "non_zero_exit";
    /// A script was ended by a signal.
    KILLED_BY_SIGNAL = "killed_by_signal";
    /// The environment's memory limit killed a process.
    OOM_KILLED = "oom_killed";
    /// A time limit of the task or job was reached.
    TIMED_OUT = "timed_out";
    /// The output of a harness states an error, or the harness left no valid output.
    TRIAL_OUTPUT_ERROR = "trial_output_error";
    /// The command could not be started in the environment.
    EXEC_NOT_STARTED = "exec_not_started";
    /// A required file of the task is missing.
    MISSING_FILE = "missing_file";
    /// A directory or file of the task disappeared or changed after planning.
    SOURCE_CHANGED = "source_changed";
    /// The Dockerfile has an instruction that this environment does not support.
    UNSUPPORTED_INSTRUCTION = "unsupported_instruction";
    /// The task requires something that its environment does not support: certain GPUs, an
    /// allowlist of hosts, Windows. Says nothing about the agent.
    UNSUPPORTED_BY_ENVIRONMENT = "unsupported_by_environment";
    /// The provider refused the request: not found, denied, syntax.
    REFUSED = "refused";
    /// The provider did not answer.
    UNREACHABLE = "unreachable";
    /// A model server behind the gateway did not answer the last request of a conversation.
    MODEL_UNREACHABLE = "model_unreachable";
    /// A model server behind the gateway refused the key or the model, and the agent gave up.
    MODEL_REFUSED = "model_refused";
    /// The model calls of an execution used up its budget.
    BUDGET_EXCEEDED = "budget_exceeded";
    /// The provider's answer is invalid.
    PROVIDER_ERROR = "provider_error";
    /// The request exceeds the resources of the host.
    UNPLACEABLE = "unplaceable";
    /// The environment disappeared while it was in use.
    ENVIRONMENT_LOST = "environment_lost";
    /// The worker died.
    WORKER_LOST = "worker_lost";
    /// The item killed its worker too often.
    POISONED = "poisoned";
    /// The host ran out of open files, memory or processes.
    HOST_EXHAUSTED = "host_exhausted";
    /// A disk is full.
    DISK_FULL = "disk_full";
    /// A disk of the host takes no writes, or files on it are gone.
    DISK_FAILED = "disk_failed";
    /// The environment's storage limit was exceeded.
    STORAGE_EXCEEDED = "storage_exceeded";
    /// The reward file is missing.
    REWARD_MISSING = "reward_missing";
    /// The reward file is not one finite number, not a regular file, or too large.
    REWARD_INVALID = "reward_invalid";
    /// The environment's healthcheck never succeeded.
    UNHEALTHY = "unhealthy";
    /// `/logs` could not be collected, or only in part.
    COLLECTION_FAILED = "collection_failed";
    /// Processes of the agent were still alive after every attempt to end them.
    PROCESSES_LEFT = "processes_left";
    /// The blob store failed, or lacks a blob that it should hold.
    STORE_FAILED = "store_failed";
    /// The host's kernel forbids an operation that the environment needs.
    NOT_PERMITTED = "not_permitted";
    /// A variable that the trial needs was not exported to trials by the worker's operator.
    VARIABLE_UNSET = "variable_unset";
    /// A registry does not have the package of an agent.
    PACKAGE_MISSING = "package_missing";
    /// A bug in Rollout.
    BUG = "bug";
}

impl ErrorCode {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One error of a trial, as written in records, reports and `result.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialError {
    /// One of the 17 types.
    #[serde(rename = "type")]
    pub kind: ErrorType,
    /// The failure, its place and reason, and how to fix it; at most
    /// [`limits::ERROR_MESSAGE_BYTES`].
    pub message: String,
    /// The finer reason.
    pub code: ErrorCode,
    /// The party that caused it.
    pub class: ErrorClass,
    /// The phase in which it happened.
    pub phase: Phase,
    /// Whether a retry could help.
    pub retry: RetryClass,
    /// The failure is the task's, and no command of the agent had begun: it says nothing about the
    /// agent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub before_agent: bool,
}

impl TrialError {
    /// An error in the phase of its type. The message is shortened to its limit, with its end if it has
    /// several lines.
    pub fn new(
        kind: ErrorType,
        code: ErrorCode,
        class: ErrorClass,
        retry: RetryClass,
        message: impl Into<String>,
    ) -> Self {
        let message = limits::shorten_lines(message.into(), limits::ERROR_MESSAGE_BYTES);
        Self { kind, message, code, class, phase: kind.phase(), retry, before_agent: false }
    }

    /// The task requires something that its environment does not support.
    pub fn unsupported(message: impl Into<String>) -> Self {
        let (kind, code) = (ErrorType::TaskInvalid, ErrorCode::UNSUPPORTED_BY_ENVIRONMENT);
        Self::new(kind, code, ErrorClass::Task, RetryClass::Permanent, message)
    }

    /// Whether the task requires something that its environment does not support.
    pub fn is_unsupported(&self) -> bool {
        self.code == ErrorCode::UNSUPPORTED_BY_ENVIRONMENT
    }

    /// An infrastructure failure that a retry may avoid.
    pub fn transient(kind: ErrorType, code: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(kind, code, ErrorClass::Infrastructure, RetryClass::Transient, message)
    }

    /// The same error, in another phase.
    #[must_use]
    pub fn in_phase(mut self, phase: Phase) -> Self {
        self.phase = phase;
        self
    }

    /// Whether the retry policy applies: only to transient infrastructure failures.
    pub fn is_retryable(&self) -> bool {
        self.class == ErrorClass::Infrastructure && self.retry == RetryClass::Transient
    }
}

impl fmt::Display for TrialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_type_serialized_equals_as_str() {
        assert_eq!(ErrorType::ALL.len(), 17);
        for kind in ErrorType::ALL {
            let text = serde_json::to_string(kind).expect("serializable");
            assert_eq!(text, format!("\"{}\"", kind.as_str()));
        }
    }

    #[test]
    fn error_retryable_only_if_transient_infrastructure() {
        let error = TrialError::transient(
            ErrorType::EnvironmentStartFailed,
            ErrorCode::UNREACHABLE,
            "x".repeat(5000),
        );
        assert!(error.is_retryable());
        assert!(error.message.len() <= limits::ERROR_MESSAGE_BYTES);
        let agent = TrialError { class: ErrorClass::Agent, ..error };
        assert!(!agent.is_retryable());
    }

    #[test]
    fn error_of_failed_command_keeps_the_end_of_its_output() {
        let printed = "Collecting package\n".repeat(200);
        let message = format!("cannot build the image: exit code 1\n{printed}ERROR: not found");
        let error = TrialError::unsupported(message);
        assert!(error.message.starts_with("cannot build the image: exit code 1\n"));
        assert!(error.message.ends_with("\nERROR: not found"), "{}", error.message);
        assert!(error.message.len() <= limits::ERROR_MESSAGE_BYTES);
    }

    #[test]
    fn error_for_unsupported_task_is_not_retryable() {
        let error = TrialError::unsupported("no graphics processors");
        assert!(error.is_unsupported() && !error.is_retryable());
        let found = (error.kind, error.class, error.code.as_str());
        let code = "unsupported_by_environment";
        assert_eq!(found, (ErrorType::TaskInvalid, ErrorClass::Task, code));
    }

    #[test]
    fn error_of_earlier_program_counts_for_the_agent() {
        let error = TrialError::unsupported("no graphics processors");
        let error = serde_json::to_value(error).expect("serializable");
        assert!(error.get("before_agent").is_none(), "{error}");
        let read: TrialError = serde_json::from_value(error).expect("an error");
        assert!(!read.before_agent);
        let early = TrialError { before_agent: true, ..read };
        assert_eq!(serde_json::to_value(early).expect("serializable")["before_agent"], true);
    }

    #[test]
    fn error_code_unknown_is_accepted() {
        let code: ErrorCode = serde_json::from_str("\"from_the_future\"").expect("open list");
        assert_eq!(code.as_str(), "from_the_future");
    }
}
