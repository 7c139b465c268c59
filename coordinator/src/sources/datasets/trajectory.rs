//! The conversations that agents continue.

use std::path::{Path, PathBuf};

use rollout_base::confined::ConfinedDir;
use rollout_protocol::spec::task::StepSpec;

use super::layout;

/// Name of the file, beside the instruction of its step.
pub(super) const FILE_NAME: &str = "trajectory.json";

/// The file of a step, by its path in the directory of its task. The first step may also have that of
/// the task.
pub(super) fn find(task: &Path, index: usize, step: &StepSpec) -> Option<PathBuf> {
    let task = ConfinedDir::open(task).ok()?;
    let own = layout::step_dir(step).join(FILE_NAME);
    let of_task = (index == 0).then(|| PathBuf::from(FILE_NAME));
    [Some(own), of_task].into_iter().flatten().find(|file| task.has_file(file))
}
