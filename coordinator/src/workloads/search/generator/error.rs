//! Why there are no ideas.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::template::Unset;
use rollout_worker::archive::ArchiveError;
use rollout_worker::backoff::chain;
use rollout_worker::environment::{Failure, FailureKind};
use rollout_worker::secrets::Redactor;

use crate::workloads::search::driver::WorkError;
use crate::workloads::search::ids::NodeId;

/// Why there are no ideas for a node.
#[derive(Debug, thiserror::Error)]
#[error("the command `ideas` for node {node}")]
pub struct IdeasError {
    /// The node.
    pub node: NodeId,
    /// Why.
    #[source]
    pub fault: IdeasFault,
}

/// What went wrong with a command for ideas.
#[derive(Debug, thiserror::Error)]
pub enum IdeasFault {
    /// A user asked for a stop.
    #[error("stopped on request")]
    Stopped,
    /// Nothing makes its environment here.
    #[error("this process has no provider `{0}`")]
    NoProvider(ProviderKind),
    /// A variable that it refers to is not set.
    #[error("{0}: export it, or give it a default")]
    Unset(Unset),
    /// The local disk.
    #[error("cannot {action} {path}")]
    Disk {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// What it is given cannot be packed, or what it left not unpacked.
    #[error("{what}")]
    Archive {
        /// What of it.
        what: String,
        /// Why not.
        #[source]
        source: ArchiveError,
    },
    /// The environment.
    #[error("{doing}: {said}")]
    Environment {
        /// What was tried.
        doing: &'static str,
        /// Of what kind the failure is.
        kind: FailureKind,
        /// What the provider said.
        said: String,
    },
    /// It ended with a code other than 0.
    #[error("it ended with code {code}{}{}", memory(*.oom_killed), said(.last_words))]
    Exit {
        /// The code.
        code: i32,
        /// Whether memory ran out.
        oom_killed: bool,
        /// The last that it printed.
        last_words: String,
    },
    /// It took too long.
    #[error("it was ended after {limit:?}{}", said(.last_words))]
    TimedOut {
        /// How long it might have taken.
        limit: Duration,
        /// The last that it printed.
        last_words: String,
    },
    /// What it left could not be read to its end.
    #[error("what it wrote cannot be taken: {0}")]
    Unreadable(String),
    /// It left no idea.
    #[error("it wrote no idea{}{}", beside(*.left_out), said(.last_words))]
    Nothing {
        /// Files and other things that it left and that are none.
        left_out: usize,
        /// The last that it printed.
        last_words: String,
    },
    /// A defect of ours.
    #[error("a defect: {0}")]
    Defect(String),
}

impl IdeasError {
    /// The message with the chain of causes.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

impl IdeasFault {
    /// A failure of the environment.
    pub(super) fn environment(doing: &'static str, failure: &Failure, redactor: &Redactor) -> Self {
        Self::Environment { doing, kind: failure.kind, said: redactor.text(&failure.chain()) }
    }

    /// An error of the local disk.
    pub(super) fn disk(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Disk { action, path, source }
    }

    /// Whether the same may well succeed when it is done again.
    pub fn is_transient(&self) -> bool {
        use FailureKind::{Gone, NotStarted, Service, TimedOut, Unreachable};
        match self {
            Self::Environment { kind, .. } => {
                matches!(kind, Gone | NotStarted | Service | TimedOut | Unreachable)
            }
            _ => false,
        }
    }
}

impl From<IdeasError> for WorkError {
    fn from(error: IdeasError) -> Self {
        let what = error.to_string();
        match error.fault {
            IdeasFault::Stopped => Self::Stopped,
            _ => Self::Failed { reason: error.chain().split_off(what.len() + 2), what },
        }
    }
}

fn memory(oom_killed: bool) -> &'static str {
    if oom_killed { " (out of memory)" } else { "" }
}

fn said(last_words: &str) -> String {
    if last_words.is_empty() { String::new() } else { format!(": {last_words}") }
}

fn beside(count: usize) -> String {
    match count {
        0 => String::new(),
        _ => format!("; left out: {count}, as left_out.txt says"),
    }
}
