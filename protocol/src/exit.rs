//! Exit codes of the `rollout` program.

/// Exit codes of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitCode {
    /// The run completed, whatever the rewards; or the command succeeded.
    Success = 0,
    /// An unexpected failure: a bug, a full disk, a vanished directory.
    Failure = 1,
    /// Bad command line (also clap's own code).
    Usage = 2,
    /// Bad configuration, or a missing environment: nothing was started.
    Config = 3,
    /// The run completed, but trials failed because of the infrastructure; with `--fail-under`,
    /// only if they or trials with failures of tasks could change its verdict.
    Infrastructure = 4,
    /// The run completed, but the pass rate is under `--fail-under`, even if every trial with a
    /// failure of the infrastructure or the task had passed.
    FailUnder = 5,
    /// Another process owns the run.
    LockHeld = 6,
    /// The run directory holds another plan.
    PlanMismatch = 7,
    /// The run directory is damaged or of a newer format; or a blob that was read is damaged.
    RunDamaged = 8,
    /// Another process took the run over: changes of this process since then do not count.
    LockLost = 9,
    /// The run directory is an outdated copy: it lacks results of the run.
    StaleCopy = 10,
    /// The server was unreachable: for longer than the wait limit of a run or a worker, at once for
    /// other commands. Or the coordinator of a live run did not answer a command in time. Results that a worker finished and could not report are kept on its host.
    OutOfReach = 11,
    /// The pool uses another blob store than this worker.
    OtherStore = 12,
    /// Nothing was measured: the run ended without a scored trial, or every eval of the search
    /// failed.
    NothingMeasured = 13,
    /// The budget of a run or of an agent does not cover the rest of its trials: they were skipped.
    /// Another session with a larger budget runs them.
    OverBudget = 14,
    /// The run was stopped by a signal; `rollout resume` resumes it.
    Cancelled = 130,
}

impl ExitCode {
    /// Every code, ascending.
    pub const ALL: &[Self] = &[
        Self::Success,
        Self::Failure,
        Self::Usage,
        Self::Config,
        Self::Infrastructure,
        Self::FailUnder,
        Self::LockHeld,
        Self::PlanMismatch,
        Self::RunDamaged,
        Self::LockLost,
        Self::StaleCopy,
        Self::OutOfReach,
        Self::OtherStore,
        Self::NothingMeasured,
        Self::OverBudget,
        Self::Cancelled,
    ];

    /// The number.
    pub const fn code(self) -> u8 {
        self as u8
    }
}
