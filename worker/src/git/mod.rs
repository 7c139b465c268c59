//! Git: the only place that runs the program, and repositories of ours.
//!
//! # What must hold
//! * No git command ever runs on a repository that an agent could write: its configuration names
//!   programs that git runs. What agents leave is data. It is compared and hashed by us; git gets it
//!   as content of blobs and as names in lists, never as a directory to look into.
//! * Every call has no hooks, no monitors, no filters, no submodules, no protocols beyond the ones
//!   it needs, a time limit, and a bound on what it may print.
//! * Calls on repositories of ours and of the user ([`Git::ours`], [`Git::of_user`]) have a clean
//!   environment and reach no other machine. Only fetching ([`Git::remote`]) does, with the
//!   environment and the configuration of the user, where credentials are. It asks nobody anything.
//! * Repositories of ours ([`BareRepository`]) are bare, and their configuration is ours. Their first commit
//!   is grafted: it has no parents there, so that no history travels.
//!
//! Commits travel as bundles ([`bundle`]): a root alone, every other commit relative to its parent.

mod bare;
pub mod bundle;
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

use rustix::io::Errno;

use crate::shortage::Shortage;

pub use self::bare::{BareRepository, CommitIdentity, TreeEntry};
pub use self::orphans::end_orphans;
pub use self::run::{Git, GitCall};

/// Why git did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// The program cannot be started.
    #[error("git cannot be started")]
    Absent(#[source] io::Error),
    /// It ended with a code other than 0.
    #[error("git {what} failed: {said}")]
    Failed {
        /// Its command.
        what: String,
        /// The end of what it said.
        said: String,
        /// Its exit code, if no signal ended it.
        code: Option<i32>,
    },
    /// It took too long.
    #[error("git {what} took longer than {limit:?}")]
    TimedOut {
        /// Its command.
        what: String,
        /// How long it might have taken.
        limit: Duration,
    },
    /// It wrote more than is accepted.
    #[error("git {what} wrote more than {max_bytes} bytes")]
    TooLarge {
        /// Its command.
        what: String,
        /// How much is accepted.
        max_bytes: u64,
    },
    /// It wrote something that it should not.
    #[error("git {what} answered something unexpected: {answer}")]
    Unexpected {
        /// Its command.
        what: String,
        /// What was not understood.
        answer: String,
    },
    /// A bundle that is not what it should be.
    #[error("{path} is not the bundle it should be: {reason}")]
    BadBundle {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The local disk.
    #[error("{action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
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

    /// What the host ran out of, as far as that can be told.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            Self::Absent(source) | Self::Io { source, .. } => Shortage::from_io_error(source),
            Self::Failed { said, .. } => Shortage::from_text(said),
            _ => None,
        }
    }

    /// Whether this host failed, not what git was given: the same call may succeed when it is made
    /// again.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            Self::Absent(source) | Self::Io { source, .. } => is_transient_io(source),
            // Killed, or a program that it started was; 129 is a defect of the call.
            Self::Failed { code, said, .. } => {
                code.is_none_or(|code| code > 129)
                    || SYSTEM_ERROR_TEXTS.iter().any(|words| said.contains(words))
            }
            Self::TooLarge { .. } | Self::Unexpected { .. } | Self::BadBundle { .. } => false,
        }
    }

    /// Whether git says that something is wrong with what it was given.
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

/// Exit codes with which git says that it does not like what it was given.
const REFUSAL_EXIT_CODES: [i32; 2] = [1, 128];

/// What git says when the system failed it, or one of the processes that it started.
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

/// Whether an error of the system may pass without anybody doing anything about the path that it
/// is about: something is exhausted or busy, or hardware fails.
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

/// Whether a text is the name of a commit: 40 or 64 lower-case hexadecimal digits.
pub fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64)
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}
