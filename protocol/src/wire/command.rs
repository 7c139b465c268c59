//! Commands: requests of a user to the coordinator of a run, from any host. Every command is
//! answered with a receipt.

use std::time::Duration;

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

use crate::spec::trial::TrialName;

/// Pause before a command is repeated whose receipt says [`CommandReceipt::in_progress`]: short beside
/// the seconds after which coordinators answer so. One that answers at once is not asked without end.
pub const IN_PROGRESS_PAUSE: Duration = Duration::from_millis(200);

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunCommand {
    /// Cancel trials permanently: they settle as cancelled.
    Cancel {
        /// The trials.
        selection: TrialSelection,
    },
    /// Begin no more trials; running ones go on.
    Pause,
    /// End a pause.
    Continue,
    /// Give settled trials another try within the session.
    Retry {
        /// Chosen at random by the sender. A command that is sent again under the same number has no
        /// further effect: it is answered with the same receipt.
        request: u64,
        /// The trials.
        selection: ReopenSelection,
    },
    /// Read a part of a file of the run, which changes nothing.
    ReadFile {
        /// The file.
        file: RunFile,
        /// Bytes before the part.
        offset: u64,
        /// Most bytes of the part, if fewer than usual fit into a message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_bytes: Option<u64>,
    },
}

/// A file that readers of a run on other hosts need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunFile {
    /// `plan.json`.
    Plan,
    /// `manifest.json`.
    Manifest,
    /// `run.lock.json`.
    Owner,
    /// `store.json`.
    Store,
    /// The durable part of the segment of an epoch.
    Segment(u32),
}

/// A part of a file of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFilePart {
    /// Length of the file, or of its durable part; `None` if it does not exist.
    pub file_bytes: Option<u64>,
    /// Bytes from the offset on, at most [`RUN_FILE_PART_BYTES`](crate::limits::RUN_FILE_PART_BYTES),
    /// in Base64.
    content: String,
    /// Epochs of the journal's segments, ascending.
    pub epochs: Vec<u32>,
}

impl RunFilePart {
    /// A part of a file of this length.
    pub fn new(file_bytes: Option<u64>, bytes: &[u8], epochs: Vec<u32>) -> Self {
        Self { file_bytes, content: BASE64.encode(bytes), epochs }
    }

    /// The bytes; `None` if they are not in Base64.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        BASE64.decode(self.content.as_bytes()).ok()
    }
}

/// Trials by name. Absent fields select everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialSelection {
    /// Agent.
    #[serde(default)]
    pub agent: Option<String>,
    /// Dataset.
    #[serde(default)]
    pub dataset: Option<String>,
    /// Task.
    #[serde(default)]
    pub task: Option<String>,
    /// Attempt, from 1.
    #[serde(default)]
    pub attempt: Option<u32>,
}

/// Settled trials to run again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReopenSelection {
    /// All that failed.
    Failed,
    /// All that failed because of the infrastructure.
    Infrastructure,
    /// These, whatever their result: by name (`agent/dataset/task__attempt`) or by item.
    Trials(Vec<String>),
    /// Those of some agents and tasks.
    Filtered(TrialFilter),
}

/// Settled trials by agent, task and outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialFilter {
    /// Which outcomes.
    #[serde(default)]
    pub outcome: OutcomeFilter,
    /// Agents; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// Tasks, as `task` or `dataset/task`; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<String>,
}

/// Outcomes of settled trials.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeFilter {
    /// All.
    #[default]
    Any,
    /// Failed.
    Failed,
    /// Failed because of the infrastructure.
    Infrastructure,
}

impl TrialFilter {
    /// Whether a trial is of its agents and tasks.
    pub fn names(&self, trial: &TrialName) -> bool {
        let is_agent = |agent: &String| *agent == trial.agent;
        let is_task = |task: &String| is_task(task, trial);
        (self.agents.is_empty() || self.agents.iter().any(is_agent))
            && (self.tasks.is_empty() || self.tasks.iter().any(is_task))
    }

    /// Removes the agent and the task of a trial: those of no trial remain.
    pub fn remove(&mut self, trial: &TrialName) {
        self.agents.retain(|agent| *agent != trial.agent);
        self.tasks.retain(|task| !is_task(task, trial));
    }
}

/// Whether a user's name of a task, as `task` or `dataset/task`, is that of a trial.
fn is_task(task: &str, trial: &TrialName) -> bool {
    let of_dataset = task.strip_suffix(&*trial.task).and_then(|rest| rest.strip_suffix('/'));
    task == trial.task || of_dataset == Some(&*trial.dataset)
}

/// Result of a command. Sent once the command is journalled: it takes effect even if a process dies
/// then. A command that changes nothing is not journalled.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandReceipt {
    /// Trials that the command names; for a pause and its end, those without a result.
    pub named: u64,
    /// Of these, trials that already had a result, which is kept.
    pub settled: u64,
    /// Of these, trials that the command cancels, or that were cancelled before.
    pub ended: u64,
    /// For a pause, trials of which an execution goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u64>,
    /// For a retry, trials that run again. It names the settled trials of its selection, and those
    /// that another retry reopened before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reopened: Option<u64>,
    /// Whether the command is still being handled: a repetition asks for its result. The numbers are
    /// those so far.
    #[serde(default, skip_serializing_if = "is_false")]
    pub in_progress: bool,
    /// For [`RunCommand::ReadFile`]: the part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<RunFilePart>,
    /// Why the command was refused, if it was.
    #[serde(default)]
    pub refused: Option<String>,
}

impl CommandReceipt {
    /// The receipt of a command that was refused.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self { refused: Some(reason.into()), ..Self::default() }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}
