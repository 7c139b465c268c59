//! Errors of scripts: the agent's, and those that verify its work.

use std::time::Duration;

use rollout_base::secrets::Redactor;
use rollout_environment::{Failure, FailureKind as Kind, with_words};
use rollout_gateway::agents::{INSTALL_PACKAGE_MISSING, INSTALL_UNSUPPORTED};
use rollout_protocol::error::{
    ErrorClass as Class, ErrorCode as Code, ErrorType as Type, RetryClass as Retry, TrialError,
};

use super::{
    BUG, ErrorReason, INFRASTRUCTURE, UNSUPPORTED, environment_lost_reason, placement_reason,
    trial_error,
};
use crate::executor::files::FilesError;

/// The stage of a script: it decides the types and the class of its errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptStage {
    /// A step's own setup.
    Prepare,
    /// `has_codes`: the script ends with the codes of [`rollout_gateway::agents`] for their reasons.
    Install {
        has_codes: bool,
    },
    Execute,
    Verify,
}

impl ScriptStage {
    const fn failed_type(self) -> Type {
        match self {
            Self::Prepare => Type::EnvironmentStartFailed,
            Self::Install { .. } => Type::AgentInstallFailed,
            Self::Execute => Type::AgentExecutionFailed,
            Self::Verify => Type::VerifierFailed,
        }
    }

    const fn timed_out_type(self) -> Type {
        match self {
            Self::Prepare => Type::EnvironmentStartFailed,
            Self::Install { .. } => Type::AgentInstallTimeout,
            Self::Execute => Type::AgentExecutionTimeout,
            Self::Verify => Type::VerifierTimeout,
        }
    }

    const fn class(self) -> Class {
        match self {
            Self::Prepare => Class::Task,
            // An outage while an agent is installed says nothing about the agent.
            Self::Install { .. } => INFRASTRUCTURE,
            Self::Execute => Class::Agent,
            Self::Verify => Class::Verifier,
        }
    }

    /// Whether a script that failed may succeed at the next try.
    const fn retry(self) -> Retry {
        match self {
            Self::Install { .. } => Retry::Transient,
            Self::Prepare | Self::Execute | Self::Verify => Retry::Permanent,
        }
    }

    /// Whether an exit code is one that the install script of an agent ends with for a reason.
    fn ends_with_code(self, code: i32, reason: i32) -> bool {
        self == Self::Install { has_codes: true } && code == reason
    }

    const fn script(self) -> &'static str {
        match self {
            Self::Prepare => "the step's setup script",
            Self::Install { .. } => "the install script",
            Self::Execute => "the execute script",
            Self::Verify => "the test script",
        }
    }

    /// Directory of the script's output, below the trial's directory.
    pub(crate) const fn directory(self) -> &'static str {
        match self {
            Self::Prepare | Self::Install { .. } => "setup",
            Self::Execute => "command",
            Self::Verify => "logs/verifier",
        }
    }
}

/// A script, as named in messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScriptSubject<'a> {
    /// Prefix of every message.
    pub(crate) prefix: &'a str,
    /// The script.
    pub(crate) script: &'a str,
}

/// Why a script failed.
#[derive(Debug)]
pub(crate) enum ScriptError {
    /// It ended with a code other than 0; with the end of its standard error.
    Exit { code: i32, oom_killed: bool, last_words: String },
    /// It reached a time limit: its own, unless `whose` names another.
    TimedOut { limit: Duration, whose: Option<&'static str> },
    /// It was ended because it ignored a `stop` for this grace time.
    StopIgnored { grace: Duration },
    /// It could not be run, or its end is unknown.
    Exec(Failure),
    /// Files that it needs could not be placed.
    Place { what: &'static str, failure: Failure },
    /// The task's files are not available.
    Files(FilesError),
    /// Processes of an earlier script could not be killed.
    ProcessesLeft(Failure),
    /// The network policy could not be set.
    Network(Failure),
    /// The proxy of this process did not serve the hosts of its allowlist.
    Unserved(String),
    /// The work to verify is incomplete.
    Incomplete(IncompleteWork),
}

/// Why a part of the work to verify is missing or incomplete although it existed.
#[derive(Debug)]
pub(crate) enum IncompleteWork {
    /// It is larger than allowed.
    TooLarge(String),
    /// It could not be read.
    Unreadable(String),
}

impl ScriptError {
    /// The end of a script. If the proxy of the allowed hosts failed meanwhile for a cause of this process,
    /// the end says nothing about the script: it may have needed a host.
    pub(crate) fn blame_proxy<T>(fault: Option<String>, ended: Result<T, Self>) -> Result<T, Self> {
        match (fault, ended) {
            (Some(fault), Ok(_) | Err(Self::Exit { .. } | Self::TimedOut { .. })) => {
                Err(Self::Unserved(fault))
            }
            (_, ended) => ended,
        }
    }

    /// The error of a stage's script.
    pub(crate) fn into_error(self, stage: ScriptStage, redactor: &Redactor) -> TrialError {
        self.into_error_for(stage, ScriptSubject { prefix: "", script: stage.script() }, redactor)
    }

    /// The error of a script with a name of its own.
    pub(crate) fn into_error_for(
        self,
        stage: ScriptStage,
        subject: ScriptSubject<'_>,
        redactor: &Redactor,
    ) -> TrialError {
        let message = format!("{}{}", subject.prefix, self.message(subject.script));
        trial_error(self.reason(stage), &message, redactor)
    }

    fn reason(&self, stage: ScriptStage) -> ErrorReason {
        let (failed, class) = (stage.failed_type(), stage.class());
        match self {
            Self::Exit { code, .. } if stage.ends_with_code(*code, INSTALL_UNSUPPORTED) => {
                UNSUPPORTED
            }
            Self::Exit { code, .. } if stage.ends_with_code(*code, INSTALL_PACKAGE_MISSING) => {
                (failed, Code::PACKAGE_MISSING, class, Retry::Permanent)
            }
            Self::Exit { code, oom_killed, .. } => {
                (failed, exit_code_meaning(*code, *oom_killed).0, class, stage.retry())
            }
            Self::TimedOut { .. } | Self::StopIgnored { .. } => {
                (stage.timed_out_type(), Code::TIMED_OUT, class, stage.retry())
            }
            Self::Exec(failure) => exec_reason(stage, failure.kind),
            Self::Place { failure, .. } => placement_reason(failed, failure.kind),
            Self::Files(files) => files.as_reason(failed),
            Self::ProcessesLeft(_) => {
                (failed, Code::PROCESSES_LEFT, INFRASTRUCTURE, Retry::Transient)
            }
            Self::Network(failure) => match failure.kind {
                // The script must not run with more access than allowed. The task needs what the
                // provider of the job cannot do.
                Kind::Refused => (failed, Code::REFUSED, Class::Task, Retry::Permanent),
                Kind::Unsupported => UNSUPPORTED,
                Kind::NotPermitted => {
                    (failed, Code::NOT_PERMITTED, INFRASTRUCTURE, Retry::Permanent)
                }
                kind => placement_reason(failed, kind),
            },
            Self::Unserved(_) => (failed, Code::PROVIDER_ERROR, INFRASTRUCTURE, Retry::Transient),
            Self::Incomplete(IncompleteWork::TooLarge(_)) => {
                (failed, Code::STORAGE_EXCEEDED, Class::Agent, Retry::Permanent)
            }
            Self::Incomplete(IncompleteWork::Unreadable(_)) => {
                (failed, Code::COLLECTION_FAILED, INFRASTRUCTURE, Retry::Transient)
            }
        }
    }

    fn message(&self, script: &str) -> String {
        match self {
            Self::Exit { code, oom_killed, last_words } => {
                let (_, how) = exit_code_meaning(*code, *oom_killed);
                with_words(format!("{script} ended with code {code}{how}"), last_words)
            }
            Self::TimedOut { limit, whose: None } => {
                format!("{script} exceeded its time limit of {limit:?}")
            }
            Self::TimedOut { limit, whose: Some(whose) } => {
                format!("{script} exceeded {whose} time limit of {limit:?}")
            }
            Self::StopIgnored { grace } => {
                format!(
                    "{script} acknowledged no `stop` and was ended after its grace time of {grace:?}"
                )
            }
            Self::Exec(failure) => format!("{script}: {}", failure.chain()),
            Self::Place { what, failure } => format!("cannot place {what}: {}", failure.chain()),
            Self::Files(files) => files.chain(),
            Self::ProcessesLeft(failure) => {
                format!("cannot kill the agent's processes: {}", failure.chain())
            }
            Self::Network(failure) => {
                format!("cannot set the network policy of {script}: {}", failure.chain())
            }
            Self::Unserved(why) => {
                format!("the proxy of the allowed hosts failed while {script} ran: {why}")
            }
            Self::Incomplete(IncompleteWork::TooLarge(why) | IncompleteWork::Unreadable(why)) => {
                format!("cannot collect the work to verify: {why}")
            }
        }
    }
}

/// The code for an exit code other than 0, and the text after the code in messages.
fn exit_code_meaning(code: i32, oom_killed: bool) -> (Code, String) {
    match code {
        137 if oom_killed => (Code::OOM_KILLED, " (out of memory)".to_owned()),
        129..=192 => (Code::KILLED_BY_SIGNAL, format!(" (signal {})", code - 128)),
        _ => (Code::NON_ZERO_EXIT, String::new()),
    }
}

fn exec_reason(stage: ScriptStage, kind: Kind) -> ErrorReason {
    let (failed, class) = (stage.failed_type(), stage.class());
    match kind {
        // The image has no shell, or not that of the agent.
        Kind::NotStarted | Kind::Unusable if matches!(stage, ScriptStage::Install { .. }) => {
            UNSUPPORTED
        }
        Kind::NotStarted | Kind::Unusable => {
            (failed, Code::EXEC_NOT_STARTED, class, Retry::Permanent)
        }
        Kind::Refused => (failed, Code::REFUSED, class, Retry::Permanent),
        Kind::Unsupported => UNSUPPORTED,
        Kind::StorageExceeded => (failed, Code::STORAGE_EXCEEDED, class, Retry::Permanent),
        Kind::Gone => environment_lost_reason(failed),
        Kind::Unreachable => (failed, Code::UNREACHABLE, INFRASTRUCTURE, Retry::Transient),
        Kind::NotPermitted => (failed, Code::NOT_PERMITTED, INFRASTRUCTURE, Retry::Permanent),
        Kind::DiskFull => (failed, Code::DISK_FULL, INFRASTRUCTURE, Retry::Transient),
        Kind::Exhausted => (failed, Code::HOST_EXHAUSTED, INFRASTRUCTURE, Retry::Transient),
        // The environment exists: the host lacks resources, and only temporarily.
        Kind::Resources | Kind::TimedOut | Kind::Service | Kind::LeftBehind => {
            (failed, Code::PROVIDER_ERROR, INFRASTRUCTURE, Retry::Transient)
        }
        Kind::Bug => BUG,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_beside_a_failed_proxy_has_no_verdict() {
        let fault = || Some("a bug".to_owned());
        let failed = |code| ScriptError::Exit { code, oom_killed: false, last_words: "why".into() };
        for stage in [ScriptStage::Execute, ScriptStage::Verify] {
            for ended in [Ok(()), Err(failed(1))] {
                let error = ScriptError::blame_proxy(fault(), ended).expect_err("no verdict");
                let error = error.into_error(stage, &Redactor::default());
                assert_eq!(error.class, Class::Infrastructure);
                let expected = (Code::PROVIDER_ERROR, Retry::Transient);
                assert_eq!((error.code, error.retry), expected);
            }
        }
        let lost = Err::<(), _>(ScriptError::ProcessesLeft(Failure::new(Kind::Gone, "x")));
        assert!(matches!(
            ScriptError::blame_proxy(fault(), lost),
            Err(ScriptError::ProcessesLeft(_))
        ));
        assert!(matches!(
            ScriptError::blame_proxy(None, Err::<(), _>(failed(3))),
            Err(ScriptError::Exit { code: 3, .. })
        ));
    }
}
