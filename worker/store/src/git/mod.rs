//! Git: the only module that runs the program, and repositories made by Rollout.
//!
//! # Invariants
//! * No git command ever runs on a repository that an agent could write: its configuration names
//!   programs that git runs. Files that agents leave are data. Rollout compares and hashes them;
//!   git receives them as content of blobs and as names in lists, never as a directory to look
//!   into.
//! * Every call runs without hooks, monitors, filters, submodules and unneeded protocols, and has a
//!   time limit and an output limit.
//! * Calls on repositories of Rollout and of the user ([`Git::own_repository`],
//!   [`Git::user_repository`]) have a clean environment and no remote access. Only fetching
//!   ([`Git::remote`]) has it, with the environment and the configuration of the user, which hold
//!   the credentials. It prompts for nothing. Fetching for somebody else ([`Git::public`]) has neither,
//!   and connects through a proxy only.
//! * Repositories made by Rollout ([`BareRepository`]) are bare and configured only by Rollout.
//!   Their first commit is grafted: it has no parents there, so that no history is transferred.
//!   Git syncs references, packs and indexes there before it names them: after a power failure a
//!   new one may be missing, and none is empty.
//!
//! Commits are transferred as bundles ([`bundle`]): a root alone, every other commit relative to
//! its parent.

mod bare;
pub mod bundle;
mod damage;
mod git_config;
pub mod names;
mod orphans;
mod run;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rollout_base::shortage::Shortage;
use rollout_base::shown_path::shown;
use rustix::io::Errno;

pub use self::bare::{BareRepository, CommitIdentity, TreeEntry};
pub use self::damage::RepositoryDamage;
pub use self::orphans::end_orphans;
pub use self::run::{Git, GitCall};

/// Errors of git calls.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The program could not be started.
    #[error("cannot start git")]
    NotStarted(#[source] io::Error),
    /// It exited with a code other than 0.
    #[error("git {what} failed: {said}")]
    Failed {
        /// Its command.
        what: String,
        /// The end of its error output.
        said: String,
        /// Its exit code, unless a signal ended it.
        code: Option<i32>,
    },
    /// It reached its time limit.
    #[error("git {what} timed out after {limit:?}")]
    TimedOut {
        /// Its command.
        what: String,
        /// The time limit.
        limit: Duration,
    },
    /// It wrote more than allowed.
    #[error("git {what} wrote more than {max_bytes} bytes")]
    TooLarge {
        /// Its command.
        what: String,
        /// The maximum.
        max_bytes: u64,
    },
    /// It wrote unexpected output.
    #[error("unexpected output of git {what}: {answer}")]
    Unexpected {
        /// Its command.
        what: String,
        /// The unexpected output.
        answer: String,
    },
    /// An invalid bundle.
    #[error("cannot use the bundle {}: {reason}", shown(path))]
    BadBundle {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// An error of the local disk.
    #[error("cannot {action} {}", shown(path))]
    Io {
        /// The failed action, as an infinitive.
        action: &'static str,
        /// The path it failed on.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl GitError {
    /// An error of the local disk.
    pub fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Io { action, path: path.into(), source: source.into() }
    }

    /// The resource that the host ran out of, if known.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            Self::NotStarted(source) | Self::Io { source, .. } => Shortage::from_io_error(source),
            Self::Failed { said, .. } => Shortage::from_text(said),
            _ => None,
        }
    }

    /// Whether the host failed and not the input: the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::NotStarted(source) | Self::Io { source, .. } => is_transient_io(source),
            // Killed, or a program that it started was; 129 is a bug in the call.
            Self::Failed { code, said, .. } => {
                code.is_none_or(|code| code > 129)
                    || SYSTEM_ERROR_TEXTS.iter().any(|words| said.contains(words))
            }
            Self::TooLarge { .. } | Self::Unexpected { .. } | Self::BadBundle { .. } => false,
        }
    }

    /// Whether git rejected its input.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::BadBundle { .. } => true,
            Self::Failed { code, .. } => {
                code.is_some_and(|code| REFUSAL_EXIT_CODES.contains(&code)) && !self.is_transient()
            }
            _ => false,
        }
    }
}

/// Exit codes with which git rejects its input.
const REFUSAL_EXIT_CODES: [i32; 2] = [1, 128];

/// Error texts of git for failures of the system or of one of its child processes.
const SYSTEM_ERROR_TEXTS: [&str; 13] = [
    "No space left on device",
    "Disk quota exceeded",
    "Input/output error",
    "Read-only file system",
    "Cannot allocate memory",
    "ut of memory",
    "Resource temporarily unavailable",
    "Too many open files",
    "Stale file handle",
    "died of signal",
    "unable to fork",
    "unable to create thread",
    "unable to create async thread",
];

/// Whether a system error may pass without a change to its path: something is exhausted or busy, or
/// hardware fails.
pub fn is_transient_io(error: &io::Error) -> bool {
    use io::ErrorKind::{
        Interrupted, ReadOnlyFilesystem, ResourceBusy, StaleNetworkFileHandle, TimedOut, WouldBlock,
    };
    let kind = matches!(
        error.kind(),
        Interrupted
            | ReadOnlyFilesystem
            | ResourceBusy
            | StaleNetworkFileHandle
            | TimedOut
            | WouldBlock
    );
    let faulty = error.raw_os_error() == Some(Errno::IO.raw_os_error());
    kind || faulty || Shortage::from_io_error(error).is_some()
}

/// Whether a text is a commit id: 40 or 64 lower-case hexadecimal digits.
pub fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64)
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}
