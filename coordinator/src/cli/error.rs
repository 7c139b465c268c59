//! Conversion of the errors of all modules into an exit code, a message, details and hints.

use std::error::Error;
use std::path::Path;

use rollout_base::backoff::error_chain;
use rollout_base::shortage::Shortage;
use rollout_base::shown_path::shown;
use rollout_engine::catalog::CatalogError;
use rollout_engine::journal::{JournalError, MirrorError};
use rollout_engine::{LockError, LockLostError, OpenError, ReopenSelection, RunError};
use rollout_protocol::exit::ExitCode;
use rollout_protocol::item_name::ItemName;
use rollout_queue::traits::QueueError;
use rollout_store::StoreError;
use rollout_store::host::WorkerDirError;

use super::hint_command::{self, CommandHint, HintedRun, RunAction, ShellCommand};
use super::output::quoted;
use crate::config::{ConfigErrors, ErrorKind, without_logins_of};
use crate::events::ReportError;
use crate::launch::LaunchError;
use crate::plan::BuildError;
use crate::results::files::TrialFilesError;
use crate::results::view::RunViewError;
use crate::sources::datasets::BundleError;

/// Hint for a run directory that is no longer where it was.
pub(super) const DIRECTORY_GONE_HINT: &str =
    "nothing was written to another directory; move it back, then resume it";

/// Hint for a full disk.
const FREE_SPACE: &str = "free space on this disk";

/// The error of a command.
#[derive(Debug)]
pub(super) struct CliError {
    /// Exit code.
    pub(super) code: ExitCode,
    /// The failed operation and its cause.
    pub(super) message: String,
    /// Details, one line each.
    pub(super) details: Vec<String>,
    /// Suggested actions.
    pub(super) hints: Vec<String>,
    /// Suggested commands, which are known where the run is.
    pub(super) command_hints: Vec<CommandHint>,
}

impl CliError {
    /// An error with an exit code.
    pub(super) fn new(code: ExitCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: Vec::new(),
            hints: Vec::new(),
            command_hints: Vec::new(),
        }
    }

    /// An invalid command line.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Usage, message)
    }

    /// An unexpected failure.
    pub(super) fn failure(what: impl Into<String>, cause: &(dyn Error + 'static)) -> Self {
        Self::from_cause(ExitCode::Failure, what, cause)
    }

    /// An error with an exit code, and its chain of causes in one line.
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

    /// Files of some trials that could not be written.
    pub(super) fn unwritten_files(count: u64, trial: &ItemName, error: &TrialFilesError) -> Self {
        let what = format!("cannot write the files of {count} trials, the first of them {trial}");
        Self::failure(what, error)
            .hint("their results are kept")
            .command_hint(CommandHint::new("write them").after(remedy(error)))
    }

    /// The Docker engine cannot be used, and nothing was started.
    #[cfg(feature = "docker")]
    pub(super) fn from_docker(failure: &rollout_environment::Failure) -> Self {
        use rollout_environment::FailureKind;
        match failure.kind {
            FailureKind::Unreachable => Self::new(ExitCode::Config, failure.chain())
                .hint("start the engine, or name another one in `DOCKER_HOST`"),
            _ => Self::new(ExitCode::Failure, failure.chain()),
        }
    }

    /// A request that cannot be fulfilled as given.
    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Config, message)
    }

    /// A fault that the user has to correct.
    pub(super) fn config(what: impl Into<String>, cause: &(dyn Error + 'static)) -> Self {
        Self::from_cause(ExitCode::Config, what, cause)
    }

    /// Adds a hint for a journal that cannot be read.
    pub(super) fn with_journal_hint(self, error: &JournalError) -> Self {
        match error {
            JournalError::Io { .. }
            | JournalError::Superseded { .. }
            | JournalError::Mirror(_)
            | JournalError::TooLong(_) => self,
            JournalError::Header { .. } | JournalError::Record { .. } => {
                self.hint("use a newer rollout")
            }
            JournalError::Damaged { path, .. }
            | JournalError::Changed { path }
            | JournalError::Missing { path }
            | JournalError::NoOpening { path } => {
                let root = shown(path.ancestors().nth(2).unwrap_or(Path::new("RUN_DIR")));
                self.hint(&format!(
                    "run `rollout repair {root} --dry-run` to see what can be restored, then run \
                     it without `--dry-run`: it keeps copies of the files that it changes"
                ))
            }
        }
    }

    /// Adds a hint for a document of the run directory that cannot be read.
    pub(super) fn with_document_hint(self, error: &RunError) -> Self {
        match error {
            RunError::Damaged { path, .. } => {
                self.hint(&repair_hint(path.parent().unwrap_or(path)))
            }
            RunError::Newer { .. } => self.hint("use a newer rollout"),
            _ => self,
        }
    }

    pub(super) fn hint(mut self, hint: &str) -> Self {
        self.hints.push(hint.to_owned());
        self
    }

    /// Adds a hint whose command is known where the run is.
    pub(super) fn command_hint(mut self, hint: CommandHint) -> Self {
        self.command_hints.push(hint);
        self
    }

    /// Completes the hints with commands that resume a run, unless it has not begun.
    pub(super) fn for_run(mut self, run: &HintedRun) -> Self {
        if !run.is_resumable() {
            return self;
        }
        let hints = std::mem::take(&mut self.command_hints);
        let (own, others) = hints.into_iter().partition(CommandHint::is_of_this_process);
        self.command_hints = others;
        let completed =
            self.complete(|hint| Some(hint_command::command(run, &hint.action(), hint.options)));
        Self { command_hints: own, ..completed }
    }

    /// Completes the hints with the command line of this process and further options.
    pub(super) fn for_this_command(self, further: &[String]) -> Self {
        self.complete(|hint| {
            let options = hint.options.iter().map(|word| (*word).to_owned());
            let options: Vec<String> = options.chain(further.iter().cloned()).collect();
            // Without its options, a run cannot be retried.
            let is_retry = matches!(hint.action(), RunAction::Retry(_));
            (!is_retry).then(|| hint_command::of_this_process(&options))
        })
    }

    /// The same where addresses among the words of the command line are shown without their logins.
    pub(super) fn without_logins_of(mut self, words: &[String]) -> Self {
        let texts = self.details.iter_mut().chain(&mut self.hints);
        for text in texts.chain(std::iter::once(&mut self.message)) {
            *text = without_logins_of(words, text);
        }
        self
    }

    fn complete(mut self, command: impl Fn(&CommandHint) -> Option<ShellCommand>) -> Self {
        for hint in std::mem::take(&mut self.command_hints) {
            self.hints.extend(command(&hint).map(|command| hint.text(&command)));
        }
        self
    }
}

impl From<ConfigErrors> for CliError {
    fn from(errors: ConfigErrors) -> Self {
        let count = errors.errors.len();
        let faults = if count == 1 { "an error" } else { &format!("{count} errors") };
        let what = if errors.errors.iter().all(|error| error.kind == ErrorKind::FetchFailed) {
            "cannot fetch the tasks"
        } else {
            &format!("{faults} in the configuration")
        };
        Self {
            code: ExitCode::Config,
            message: format!("{what}; nothing was started"),
            details: errors.lines(),
            hints: Vec::new(),
            command_hints: Vec::new(),
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
            BuildError::Bundle(BundleError::Scratch(error)) => {
                let hint = CommandHint::new("start again").after(remedy(&error));
                Self::failure("cannot pack the tasks", &error).command_hint(hint)
            }
            BuildError::Bundle(BundleError::Json(_)) | BuildError::Plan(_) => {
                Self::failure("cannot build the plan", &error)
            }
        }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        if let StoreError::DiskFull { path, source } = &error {
            return Self::failure(format!("cannot write to the blob store: {path}"), source)
                .command_hint(disk_full_hint());
        }
        let text = error_chain(&error);
        match &error {
            StoreError::Unanswered { .. } => Self::new(ExitCode::OutOfReach, text)
                .hint("check that the service runs, and the endpoint in `--store`"),
            StoreError::Refused { .. } => Self::new(ExitCode::Config, text).hint(
                "check the bucket in `--store` and the credentials: `AWS_ACCESS_KEY_ID` and \
                 `AWS_SECRET_ACCESS_KEY`, a profile, or those of the container or machine",
            ),
            _ => Self::failure("cannot use the blob store", &error)
                .hint("use `--store URL` to choose another blob store"),
        }
    }
}

impl From<ReportError> for CliError {
    fn from(error: ReportError) -> Self {
        let hint = CommandHint::new("write the missing files").after(remedy(&error));
        Self::failure("an output of the run failed; the run's results are kept", &error)
            .command_hint(hint)
    }
}

impl From<WorkerDirError> for CliError {
    fn from(error: WorkerDirError) -> Self {
        let WorkerDirError { action, path, source } = &error;
        let what = format!("cannot {action} the working directory {}", shown(path));
        let failed = Self::failure(what, source);
        match Shortage::from_io_error(source) {
            Some(Shortage::Disk) => failed.command_hint(disk_full_hint()),
            _ => failed,
        }
    }
}

impl From<MirrorError> for CliError {
    fn from(error: MirrorError) -> Self {
        match error {
            MirrorError::Store(error) => error.into(),
            MirrorError::Exists(_) | MirrorError::Superseded(_) => {
                Self::from_cause(ExitCode::LockLost, "cannot continue the run", &error)
            }
            MirrorError::Unusable(_) => {
                Self::from_cause(ExitCode::RunDamaged, "cannot use the catalog", &error)
            }
            MirrorError::NoConditionalWrites => {
                Self::from_cause(ExitCode::Config, "cannot keep the run in the catalog", &error)
                    .hint(
                        "two coordinators could own the run: use another service, or a server with \
                         `--nats`, which keeps them apart",
                    )
            }
            MirrorError::Interrupted => {
                Self::from_cause(ExitCode::Cancelled, "cannot begin the session", &error)
            }
            MirrorError::Abandoned => {
                Self::from_cause(ExitCode::OutOfReach, "cannot write to the catalog", &error)
                    .command_hint(CommandHint::new("resume").after("wait until the store answers"))
            }
        }
    }
}

impl From<CatalogError> for CliError {
    fn from(error: CatalogError) -> Self {
        let what = "cannot use the catalog";
        match error {
            CatalogError::Store(error) => error.into(),
            CatalogError::NoRun(_) | CatalogError::Ambiguous { .. } => {
                Self::from_cause(ExitCode::Config, "cannot find the run", &error)
                    .hint("`rollout list URL` shows the runs; name one as in `URL#RUN`")
            }
            CatalogError::Document { .. } | CatalogError::Gap { .. } => {
                Self::from_cause(ExitCode::RunDamaged, what, &error)
            }
            CatalogError::Interrupted => {
                let what = "cannot complete the run in the catalog";
                Self::from_cause(ExitCode::Cancelled, what, &error)
                    .hint("its results are durable")
                    .command_hint(CommandHint::new("complete it"))
            }
            CatalogError::File { .. } => Self::failure(what, &error),
        }
    }
}

impl From<RunError> for CliError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Journal(JournalError::Mirror(error)) => error.into(),
            RunError::Open(error) => error.into(),
            RunError::LockLost(LockLostError::DirectoryGone { .. }) => {
                Self::failure("cannot continue the run", &error).hint(DIRECTORY_GONE_HINT)
            }
            RunError::LockLost(LockLostError::TakenOver { .. }) => {
                Self::from_cause(ExitCode::LockLost, "cannot continue the run", &error).hint(
                    "work of this process since then is discarded; the new owner continues the run",
                )
            }
            RunError::Damaged { .. } | RunError::Newer { .. } => {
                Self::from_cause(ExitCode::RunDamaged, "cannot start the run", &error)
                    .with_document_hint(&error)
            }
            RunError::Queue(ref queue @ QueueError::Unreachable { .. }) => {
                Self::from_cause(ExitCode::OutOfReach, "cannot continue the run", queue)
                    .command_hint(CommandHint::new("resume").after("check that the server runs"))
            }
            RunError::Journal(_) | RunError::Queue(_) | RunError::File { .. } => {
                let hint = CommandHint::new("resume").after(remedy(&error));
                Self::failure("cannot continue the run", &error).command_hint(hint)
            }
            RunError::NotBuilt(_) => {
                Self::from_cause(ExitCode::Config, "cannot start the run", &error)
            }
            RunError::ProviderSettings(_) => {
                Self::new(ExitCode::Config, format!("{error}; nothing was started"))
            }
            RunError::NoAnswer { .. } => {
                Self::new(ExitCode::Config, format!("{error}; nothing was started")).hint(
                    "start the engine, name another one in `DOCKER_HOST`, or use an environment \
                     that needs none: `environment.type: process`, or `-e process` for a job",
                )
            }
            RunError::PartEnded(_) => Self::failure("cannot continue the run", &error)
                .hint("this is a bug")
                .command_hint(CommandHint::new("resume")),
        }
    }
}

impl From<RunViewError> for CliError {
    fn from(error: RunViewError) -> Self {
        let what = "cannot read the run";
        match &error {
            RunViewError::NotRunDirectory { what: "plan.json", .. } => {
                Self::from_cause(ExitCode::Config, what, &error)
                    .hint("a run that begins writes its plan in its first moments")
            }
            RunViewError::NotRunDirectory { .. } => {
                Self::from_cause(ExitCode::Config, what, &error)
                    .hint("`rollout list DIR` shows the runs in a directory")
            }
            RunViewError::List { .. } => {
                let message = Self::from_cause(ExitCode::Config, "", &error).message;
                Self::new(ExitCode::Config, message.trim_start_matches(": "))
            }
            RunViewError::Document(cause @ (RunError::Damaged { .. } | RunError::Newer { .. })) => {
                Self::from_cause(ExitCode::RunDamaged, what, &error).with_document_hint(cause)
            }
            RunViewError::Journal(JournalError::Io { .. }) | RunViewError::Document(_) => {
                Self::failure(what, &error)
            }
            RunViewError::Journal(cause) => {
                Self::from_cause(ExitCode::RunDamaged, what, &error).with_journal_hint(cause)
            }
        }
    }
}

impl From<LaunchError> for CliError {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::NoStore(error) => error.into(),
            LaunchError::Store(error) => error.into(),
            LaunchError::Catalog(error) => error.into(),
            LaunchError::LeavesCatalog => Self::new(ExitCode::Config, error.to_string())
                .hint("leave `--sink` out, or use `--name` for a new run"),
            #[cfg(feature = "nats")]
            LaunchError::Resume(error) => Self::config("cannot resume the run", &error),
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
            LaunchError::FarmSettings(_)
            | LaunchError::FarmAgents { .. }
            | LaunchError::OtherFarm { .. } => Self::new(ExitCode::Config, error.to_string()),
            LaunchError::Unregistered(_) => Self::new(ExitCode::Failure, error.to_string()),
            LaunchError::Report(error) => error.into(),
        }
    }
}

impl From<OpenError> for CliError {
    fn from(error: OpenError) -> Self {
        let (what, resuming) = ("cannot start the run", "cannot resume the run");
        let error = match error {
            OpenError::Journal { source: JournalError::Mirror(error) } => return error.into(),
            error => error,
        };
        match &error {
            OpenError::Lock(error) => from_lock(what, error, "`--name` for another run"),
            OpenError::NotSettled { .. } => Self::from_cause(ExitCode::Config, what, &error),
            OpenError::Changed { differences, .. } => {
                let mut refused = Self::from_cause(ExitCode::PlanMismatch, resuming, &error);
                refused.details.clone_from(differences);
                let retry = CommandHint::new(
                    "run failed trials again with the changes and keep the other results",
                );
                refused
                    .hint("use `--name` for a new run, or undo the changes to resume this one")
                    .command_hint(retry.retrying(ReopenSelection::Failed))
            }
            OpenError::Removed { differences, .. } => {
                let mut refused = Self::from_cause(ExitCode::PlanMismatch, resuming, &error);
                refused.details.clone_from(differences);
                let keep = CommandHint::new("keep these results, which then no longer count");
                refused
                    .hint("use `--name` for a new run, or undo the changes to resume this one")
                    .command_hint(keep.with_options(&["--accept-changed"]).of_this_process())
            }
            OpenError::Journal { source, .. } => {
                Self::from_cause(ExitCode::RunDamaged, resuming, &error).with_journal_hint(source)
            }
            OpenError::Directory { .. } => Self::failure(what, &error),
        }
    }
}

/// The error of taking a lock; `other` names the option for another run or search.
pub(super) fn from_lock(what: &str, error: &LockError, other: &str) -> CliError {
    let code = match error {
        LockError::Held { .. } | LockError::RunHeld { .. } => ExitCode::LockHeld,
        LockError::Copy { .. } => ExitCode::StaleCopy,
        LockError::Unreadable | LockError::Journal(_) => ExitCode::RunDamaged,
        LockError::Interrupted => ExitCode::Cancelled,
        LockError::KvStore(QueueError::Unreachable { .. }) => ExitCode::OutOfReach,
        LockError::KvStore(QueueError::Denied { .. }) => ExitCode::Config,
        LockError::KvStore(_) | LockError::Io { .. } => ExitCode::Failure,
    };
    let failed = CliError::from_cause(code, what, error);
    match error {
        LockError::Held { .. } | LockError::RunHeld { .. } => {
            let force = CommandHint::new("take this one over").with_options(&["--force"]);
            failed
                .hint(&format!("wait until its owner ends, or use {other}"))
                .command_hint(force.of_this_process())
        }
        LockError::Copy { .. } => {
            failed.hint(&format!("resume in the directory that has them, or use {other}"))
        }
        LockError::Unreadable => failed.hint("use a newer rollout"),
        LockError::Journal(error) => failed.with_journal_hint(error),
        _ => failed,
    }
}

/// The hint for a damaged document of a run directory.
pub(super) fn repair_hint(root: &Path) -> String {
    let next = match hint_command::resume_directory(root) {
        Some(resume) => format!("then run {resume}, which writes it again"),
        None => "the next session of the run writes it again".to_owned(),
    };
    format!("run `rollout repair {}` to move it aside; {next}", quoted(&root.to_string_lossy()))
}

/// The hint for a full disk.
fn disk_full_hint() -> CommandHint {
    CommandHint::new("try again").after(FREE_SPACE)
}

/// The first part of the hint of an error that the user can end: what to do about its cause.
pub(super) fn remedy(error: &(dyn Error + 'static)) -> &'static str {
    match Shortage::from_error(error) {
        Some(Shortage::Disk) => FREE_SPACE,
        _ => "remove the cause",
    }
}
