//! Task formats recorded in the plan of a run.

use std::path::Path;

use rollout_protocol::spec::task::TaskFormat;
use serde::Deserialize;

use super::PlannedFormats;
use crate::config::PlannedFormat;

/// The fields of a plan that hold formats.
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
    #[serde(default)]
    format_guessed: bool,
}

/// The formats recorded in a plan document; empty if the file is missing or unreadable. Resuming
/// the run reads the plan again and refuses an unreadable one.
pub fn read_planned_formats(plan: &Path) -> PlannedFormats {
    let bytes = std::fs::read(plan).unwrap_or_default();
    let Ok(plan) = serde_json::from_slice::<PlannedFormatsDocument>(&bytes) else {
        return PlannedFormats::new();
    };
    let format = |task: PlannedTaskFormat| {
        let recorded = match task.format_guessed {
            true => PlannedFormat::Guessed,
            false => PlannedFormat::Recorded,
        };
        let format = task.format.map_or(PlannedFormat::ByKeys, recorded);
        ((task.dataset, task.name), format)
    };
    plan.tasks.into_iter().map(format).collect()
}
