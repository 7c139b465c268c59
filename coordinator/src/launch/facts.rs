//! Facts of a job's datasets, for the header and the results of its run.

use std::collections::BTreeMap;

use crate::config::{FormatReason, Job};
use crate::results::report::DatasetFacts;
use crate::sources::datasets::{Dataset, DatasetTask};

/// The datasets of a job and how their tasks were read; `previous` are those of the last session.
pub fn dataset_facts(
    job: &Job,
    datasets: &[Dataset],
    previous: &[DatasetFacts],
) -> Vec<DatasetFacts> {
    let calls_models = job.agents.iter().any(|agent| agent.spec.kind.calls_models());
    let unsupported = |task: &&DatasetTask| {
        let of_models = task.model_fault.as_ref().filter(|_| calls_models);
        let mut faults = task.fault.iter().chain(of_models);
        faults.any(|fault| fault.is_unsupported())
    };
    let facts = |dataset: &Dataset| {
        let tasks = || dataset.tasks.iter();
        let mut formats = BTreeMap::new();
        for task in tasks() {
            *formats.entry(task.file.format.format.as_str().to_owned()).or_insert(0) += 1;
        }
        DatasetFacts {
            dataset_name: dataset.name.clone(),
            version: dataset.version.clone(),
            description: dataset.description.clone(),
            tasks: dataset.tasks.len(),
            formats,
            guessed: guessed(dataset, previous),
            unsupported: tasks().filter(unsupported).map(|task| task.name.clone()).collect(),
        }
    };
    datasets.iter().map(facts).collect()
}

/// The tasks whose format was guessed in this session, or in the one that made the plan.
fn guessed(dataset: &Dataset, previous: &[DatasetFacts]) -> usize {
    let reasons = || dataset.tasks.iter().map(|task| &task.file.format.reason);
    let planned = reasons().filter(|reason| **reason == FormatReason::Planned).count();
    let mut former = previous
        .iter()
        .filter(|former| former.dataset_name == dataset.name && former.version == dataset.version);
    let former = former.next().map_or(0, |former| former.guessed);
    reasons().filter(|reason| reason.is_guess()).count() + former.min(planned)
}
