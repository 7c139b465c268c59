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
    /// Whether it is a guess.
    pub guessed: bool,
    /// Reason for the choice.
    pub reason: String,
}

impl FormatView {
    /// The display form of a choice.
    pub(crate) fn new(choice: &FormatChoice) -> Self {
        let FormatChoice { format, reason } = choice;
        Self { name: *format, guessed: reason.is_guess(), reason: reason.to_string() }
    }
}

/// The formats of the tasks of all datasets, in plan order.
pub fn formats(datasets: &[Dataset]) -> Vec<FormatView> {
    let tasks = datasets.iter().flat_map(|dataset| &dataset.tasks);
    tasks.map(|task: &DatasetTask| FormatView::new(&task.file.format)).collect()
}
