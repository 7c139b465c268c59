//! Every error as a kind, a message, details and hints: the one place that turns errors of all
//! modules into words.

use std::error::Error;
use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_protocol::item_name::ItemName;
use rollout_worker::host::WorkerDirError;
use rollout_worker::store::StoreError;

use crate::config::ConfigErrors;
use crate::engine::journal::JournalError;
use crate::engine::{LockError, OpenError, RunError};
use crate::events::ReportError;
use crate::launch::LaunchError;
use crate::plan::BuildError;
use crate::results::files::TrialFilesError;
use crate::sources::datasets::BundleError;

/// Why a command failed.
#[derive(Debug)]
pub(super) struct CliError {
    /// The kind.
    pub(super) code: ExitCode,
    /// What failed.
    pub(super) message: String,
    /// More of it, a line each.
    pub(super) details: Vec<String>,
    /// What to do.
    pub(super) hints: Vec<String>,
}

impl CliError {
    /// An error of a kind.
    pub(super) fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Vec::new(), hints: Vec::new() }
    }

    /// A command line that means nothing.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Usage, message)
    }

    /// Something unexpected.
    pub(super) fn failure(what: impl Into<String>, cause: &(dyn Error + 'static)) -> Self {
        Self::from_cause(ExitCode::Failure, what, cause)
    }

    /// An error of a kind, its causes in one line.
    pub(super) fn from_cause(
        code: ExitCode,
        what: impl Into<String>,
        cause: &(dyn Error + 'static),
    ) -> Self {
        let mut message = what.into();
        let mut next = Some(cause);
        while let Some(cause) = next {
            message = format!("{message}: {cause}");
            next = cause.source();
        }
        Self::new(code, message)
    }

    /// The files of some trials could not be written.
    pub(super) fn unwritten_files(count: u64, trial: &ItemName, error: &TrialFilesError) -> Self {
        let what = format!("the files of {count} trials could not be written, first {trial}");
        Self::failure(what, error).hint(
            "their results are kept; the same command writes the files when the cause is gone",
        )
    }

    /// An environment provider failed outside a trial.
    #[cfg(feature = "docker")]
    pub(super) fn from_environment(failure: &rollout_worker::environment::Failure) -> Self {
        Self::new(ExitCode::Failure, failure.chain())
    }

    /// Something that cannot be done as it was asked for.
    #[cfg(feature = "nats")]
    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Config, message)
    }

    /// Something that the user has to correct.
    #[cfg(feature = "nats")]
    pub(super) fn config(what: impl Into<String>, cause: &(dyn Error + 'static)) -> Self {
        Self::from_cause(ExitCode::Config, what, cause)
    }

    /// Adds what to do about a journal that cannot be read.
    fn with_journal_hint(self, error: &JournalError) -> Self {
        match error {
            JournalError::Io { .. } => self,
            JournalError::Header { .. } | JournalError::Record { .. } => {
                self.hint("use a newer rollout")
            }
            JournalError::Damaged { path, .. }
            | JournalError::Changed { path }
            | JournalError::Missing { path }
            | JournalError::NoOpening { path } => {
                let root = path.ancestors().nth(2).unwrap_or(Path::new("RUN_DIR")).display();
                self.hint(&format!(
                    "`rollout repair {root} --dry-run` shows what can be restored; without \
                     `--dry-run` it keeps a copy of what it changes and restores it"
                ))
            }
        }
    }

    pub(super) fn hint(mut self, hint: &str) -> Self {
        self.hints.push(hint.to_owned());
        self
    }
}

impl From<ConfigErrors> for CliError {
    fn from(errors: ConfigErrors) -> Self {
        let count = errors.errors.len();
        let faults = if count == 1 { "a fault" } else { &format!("{count} faults") };
        Self {
            code: ExitCode::Config,
            message: format!("{faults} in the configuration; nothing was started"),
            details: errors.lines(),
            hints: Vec::new(),
        }
    }
}

impl From<BuildError> for CliError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Config(errors) | BuildError::Bundle(BundleError::Config(errors)) => {
                errors.into()
            }
            BuildError::Bundle(BundleError::Store(error)) => error.into(),
            BuildError::Bundle(BundleError::Json(_)) | BuildError::Plan(_) => {
                Self::failure("cannot make the plan", &error)
            }
        }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        Self::failure("the blob store failed", &error)
            .hint("`--store DIR` names another directory for blobs")
    }
}

impl From<ReportError> for CliError {
    fn from(error: ReportError) -> Self {
        Self::failure("an output of the run failed, its results are kept", &error)
            .hint("the same command writes the missing files when the cause is gone")
    }
}

impl From<WorkerDirError> for CliError {
    fn from(error: WorkerDirError) -> Self {
        Self::failure("cannot use a working directory", &error)
    }
}

impl From<RunError> for CliError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Open(error) => error.into(),
            RunError::LockLost(_) => {
                Self::from_cause(ExitCode::LockLost, "the run was interrupted", &error)
                    .hint("what this process did since does not count; the new owner goes on")
            }
            RunError::Damaged { ref path, .. } => {
                let root = path.parent().unwrap_or(path).display();
                let hint = format!("`rollout repair {root}` puts it aside: it is written again");
                Self::from_cause(ExitCode::RunDamaged, "the run cannot be started", &error)
                    .hint(&hint)
            }
            RunError::Newer { .. } => {
                Self::from_cause(ExitCode::RunDamaged, "the run cannot be started", &error)
                    .hint("use a newer rollout")
            }
            RunError::Journal(_) | RunError::Queue(_) | RunError::File { .. } => {
                Self::failure("the run was interrupted", &error)
                    .hint("the same command goes on with it when the cause is gone")
            }
            RunError::NotBuilt(_) => {
                Self::from_cause(ExitCode::Config, "the run cannot be started", &error)
            }
            RunError::NoAnswer { .. } => {
                Self::from_cause(ExitCode::Config, "nothing was started", &error).hint(
                    "start the engine, name another one in `DOCKER_HOST`, or use an environment \
                     that needs none: `environment.type: process`, which is `-e process` for a job",
                )
            }
            RunError::PartEnded(_) => Self::failure("the run was interrupted", &error)
                .hint("this is a defect; the same command goes on with the run"),
        }
    }
}

impl From<LaunchError> for CliError {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::NoStore(error) => error.into(),
            LaunchError::Store(error) => error.into(),
            LaunchError::Plan(error) => error.into(),
            LaunchError::Directory(error) => error.into(),
            LaunchError::Outputs(ref cause)
            | LaunchError::Signals(ref cause)
            | LaunchError::Program(ref cause) => Self::failure(error.to_string(), cause),
            #[cfg(feature = "nats")]
            LaunchError::Server(error) => error.into(),
            LaunchError::Interrupted => Self::new(ExitCode::Cancelled, error.to_string()),
            LaunchError::Run(error) => error.into(),
            LaunchError::Search(error) => error.into(),
            LaunchError::Report(error) => error.into(),
        }
    }
}

impl From<OpenError> for CliError {
    fn from(error: OpenError) -> Self {
        let what = "the run cannot be started";
        match &error {
            OpenError::Lock(error) => from_lock(what, error),
            OpenError::NotSettled { .. } => Self::from_cause(ExitCode::Config, what, &error),
            OpenError::Changed { differences, .. } => {
                let mut refused = Self::from_cause(ExitCode::PlanMismatch, what, &error);
                refused.details.clone_from(differences);
                refused
                    .hint("give `--name` for a new run, or undo the changes to go on with this one")
            }
            OpenError::Journal { source, .. } => {
                Self::from_cause(ExitCode::RunDamaged, what, &error).with_journal_hint(source)
            }
            OpenError::Directory { .. } => Self::failure(what, &error),
        }
    }
}

pub(super) fn from_lock(what: &str, error: &LockError) -> CliError {
    let code = match error {
        LockError::Held { .. } | LockError::Elsewhere { .. } => ExitCode::LockHeld,
        LockError::Copy { .. } => ExitCode::StaleCopy,
        LockError::Unreadable | LockError::Journal(_) => ExitCode::RunDamaged,
        LockError::Interrupted => ExitCode::Cancelled,
        LockError::Board(_) | LockError::Io { .. } => ExitCode::Failure,
    };
    let failed = CliError::from_cause(code, what, error);
    match error {
        LockError::Held { .. } | LockError::Elsewhere { .. } => failed.hint(
            "wait for it to end, or give `--name` for another run; `--force` takes this one over",
        ),
        LockError::Copy { .. } => {
            failed.hint("go on in the directory that has them, or give `--name` for another run")
        }
        LockError::Unreadable => failed.hint("use a newer rollout"),
        LockError::Journal(error) => failed.with_journal_hint(error),
        _ => failed,
    }
}

#[cfg(feature = "nats")]
mod nats {
    use rollout_worker::queue::nats::{BindError, ConnectError, NatsOptionsError, NatsSetupError};
    use rollout_worker::queue::traits::QueueError;

    use super::{CliError, ExitCode};
    use crate::launch::nats::ServerError;

    impl From<ServerError> for CliError {
        fn from(error: ServerError) -> Self {
            match error {
                ServerError::Connect(error) => error.into(),
                ServerError::Setup(error) => error.into(),
                ServerError::Bind(error) => error.into(),
                ServerError::Queue(error) => error.into(),
            }
        }
    }

    impl From<NatsOptionsError> for CliError {
        fn from(error: NatsOptionsError) -> Self {
            Self::config("the NATS server cannot be used", &error)
        }
    }

    impl From<ConnectError> for CliError {
        fn from(error: ConnectError) -> Self {
            match &error {
                ConnectError::Unreachable { .. } => {
                    Self::failure("there is no connection to NATS", &error)
                }
                _ => Self::config("the NATS server cannot be used", &error),
            }
        }
    }

    impl From<NatsSetupError> for CliError {
        fn from(error: NatsSetupError) -> Self {
            Self::config("the NATS server is not set up", &error)
                .hint("`rollout doctor` shows what differs; `rollout setup` makes what is missing")
        }
    }

    impl From<BindError> for CliError {
        fn from(error: BindError) -> Self {
            match error {
                BindError::Queue(error) => error.into(),
                error @ BindError::Elsewhere { .. } => Self::config(
                    "the workers of the pool use another blob store",
                    &error,
                )
                .hint(
                    "give the same `--store` everywhere, another `pool:` in the job, or bind the \
                         pool anew: `rollout setup --pool NAME --store DIR --rebind`",
                ),
            }
        }
    }

    impl From<QueueError> for CliError {
        fn from(error: QueueError) -> Self {
            let code = match error {
                QueueError::Denied { .. } => ExitCode::Config,
                _ => ExitCode::Failure,
            };
            Self::from_cause(code, "the queue failed", &error)
        }
    }
}
