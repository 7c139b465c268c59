//! The formats that the plan of a run records.

use std::path::Path;

use rollout_protocol::spec::task::TaskFormat;
use serde::Deserialize;

use super::PlannedFormats;
use crate::config::PlannedFormat;

/// The part of a plan that says formats.
#[derive(Deserialize)]
struct PlannedFormatsDocument {
    tasks: Vec<PlannedTaskFormat>,
}

#[derive(Deserialize)]
struct PlannedTaskFormat {
    dataset: String,
    name: String,
    #[serde(default)]
    format: Option<TaskFormat>,
}

/// The formats that a plan document records; none when the file is missing. A plan that cannot be
/// read is found again by those who resume the run, and refused there.
pub fn read_planned_formats(plan: &Path) -> PlannedFormats {
    let bytes = std::fs::read(plan).unwrap_or_default();
    let Ok(plan) = serde_json::from_slice::<PlannedFormatsDocument>(&bytes) else {
        return PlannedFormats::new();
    };
    let format = |task: PlannedTaskFormat| {
        let format = task.format.map_or(PlannedFormat::ByKeys, PlannedFormat::Recorded);
        ((task.dataset, task.name), format)
    };
    plan.tasks.into_iter().map(format).collect()
}
