//! Reasons why a run directory cannot be opened.

use std::path::PathBuf;

use rollout_base::shown_path::shown;

use super::lock::LockError;
use crate::journal::JournalError;

/// Why a run directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be created.
    #[error("cannot create the run directory {}", shown(path))]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Another process owns the run.
    #[error(transparent)]
    Lock(LockError),
    /// The journal is damaged.
    #[error(transparent)]
    Journal {
        /// Why.
        source: JournalError,
    },
    /// Trials were settled with other settings or files than the plan's.
    #[error(
        "{} of {} ran with other settings or files: {}",
        settled_trials(*count),
        shown(root),
        first_names(names, *count)
    )]
    Changed {
        /// The run directory.
        root: PathBuf,
        /// Number of trials.
        count: usize,
        /// Names of the first ones.
        names: Vec<String>,
        /// Differences from the plan of the last session, one per line.
        differences: Vec<String>,
    },
    /// Trials were settled that the plan lacks.
    #[error(
        "the plan lacks {} of {}: {}",
        settled_trials(*count),
        shown(root),
        first_names(names, *count)
    )]
    Removed {
        /// The run directory.
        root: PathBuf,
        /// Number of trials.
        count: usize,
        /// Names of the first ones.
        names: Vec<String>,
        /// Differences from the plan of the last session, one per line.
        differences: Vec<String>,
    },
    /// Trials to run again that have no result.
    #[error("the run in {} has no settled trial {unsettled}", shown(root))]
    NotSettled {
        /// The run directory.
        root: PathBuf,
        /// Their names, as given, or those of their agents and tasks, and which names there are.
        unsettled: String,
    },
}

/// `1 settled trial`, `2 settled trials`.
fn settled_trials(count: usize) -> String {
    if count == 1 { "1 settled trial".to_owned() } else { format!("{count} settled trials") }
}

/// The names of the first of `count` trials, and the number of the others.
pub(super) fn first_names(names: &[String], count: usize) -> String {
    let named = names.join(", ");
    match count.saturating_sub(names.len()) {
        0 => named,
        others => format!("{named} and {others} more"),
    }
}

impl OpenError {
    pub(super) fn from_lock(error: LockError) -> Self {
        match error {
            LockError::Journal(source) => Self::Journal { source },
            error => Self::Lock(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(count: usize, names: &[&str]) -> String {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let root = PathBuf::from("jobs/demo");
        OpenError::Changed { root, count, names, differences: Vec::new() }.to_string()
    }

    #[test]
    fn refusal_of_other_plan_counts_and_names_trials() {
        assert_eq!(
            refusal(1, &["a/d/t__1"]),
            "1 settled trial of jobs/demo ran with other settings or files: a/d/t__1"
        );
        assert_eq!(
            refusal(5, &["a/d/t__1", "a/d/t__2"]),
            "5 settled trials of jobs/demo ran with other settings or files: a/d/t__1, a/d/t__2 \
             and 3 more"
        );
    }

    #[test]
    fn refusal_of_lacking_plan_counts_and_names_trials() {
        let names = vec!["a/d/t__1".to_owned()];
        let (root, differences) = (PathBuf::from("jobs/demo"), Vec::new());
        assert_eq!(
            OpenError::Removed { root, count: 2, names, differences }.to_string(),
            "the plan lacks 2 settled trials of jobs/demo: a/d/t__1 and 1 more"
        );
    }

    #[test]
    fn refusal_of_damaged_journal_names_file_once() {
        let source = JournalError::Damaged {
            path: "jobs/demo/journal/000001.log".into(),
            offset: 4252,
            durable_bytes: 10926,
            records_behind: 6,
        };
        assert_eq!(
            OpenError::Journal { source }.to_string(),
            "jobs/demo/journal/000001.log is damaged at byte 4252 of 10926 (6 intact records \
             follow)"
        );
    }
}
