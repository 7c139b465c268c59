//! Display form of task formats.

use rollout_protocol::spec::task::TaskFormat;
use serde::Serialize;

use super::{Dataset, DatasetTask};
use crate::config::FormatChoice;

/// The format of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FormatView {
    /// The format.
    pub name: TaskFormat,
    /// Reason for the choice.
    pub reason: String,
}

/// The formats of the tasks of all datasets, in plan order.
pub fn formats(datasets: &[Dataset]) -> Vec<FormatView> {
    let tasks = datasets.iter().flat_map(|dataset| &dataset.tasks);
    let view = |task: &DatasetTask| {
        let FormatChoice { format, reason } = &task.file.format;
        FormatView { name: *format, reason: reason.to_string() }
    };
    tasks.map(view).collect()
}
