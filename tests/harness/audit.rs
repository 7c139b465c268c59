//! Comparison of a cluster run's results with those of an undisturbed run.

use std::collections::BTreeMap;
use std::fs;

use rollout_protocol::record::{ExecutionEnd, Settlement};

use crate::load::Load;
use crate::results::Results;

/// Terminal records of a run, in settlement order.
///
/// # Panics
/// When a line is not a terminal record.
pub fn settlements(results: &Results) -> Vec<Settlement> {
    let entries = fs::read_dir(results.path().join("records")).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.sort();
    let text = |path| fs::read_to_string(path).expect("a record file");
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    files.into_iter().flat_map(|f| text(f).lines().map(parse).collect::<Vec<_>>()).collect()
}

/// Short names of all executions in the records.
pub fn executions(settlements: &[Settlement]) -> Vec<String> {
    let all = settlements.iter().flat_map(|s| s.by.iter().chain(&s.superseded));
    all.map(|execution| execution.exec.short()).collect()
}

/// Executions that did not settle their items, by how they ended.
pub fn superseded(settlements: &[Settlement]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for execution in settlements.iter().flat_map(|settlement| &settlement.superseded) {
        let how = match &execution.end {
            ExecutionEnd::Reported { .. } => "reported".to_owned(),
            ExecutionEnd::Open => "open".to_owned(),
            ExecutionEnd::Lost { reason, .. } => format!("lost: {reason:?}"),
        };
        *counts.entry(how).or_default() += 1;
    }
    counts
}

/// Differences between a load's results and those of an undisturbed run.
pub fn differences(load: &Load, results: &Results) -> Vec<String> {
    let mut differences = Vec::new();
    let items = u64::from(load.items);
    let counts = [
        ("total", items),
        ("completed", items),
        ("failed", 0),
        ("cancelled", 0),
        ("unverified", 0),
        ("skipped", 0),
    ];
    for (name, expected) in counts {
        let got = results.count(&format!("{name}_trials"));
        if got != expected {
            differences.push(format!("{got} trials are {name}, not {expected}"));
        }
    }
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for settlement in settlements(results) {
        let trial = settlement.trial().expect("a trial");
        *lines.entry(trial.task.clone()).or_default() += 1;
    }
    let trials = results.trials();
    let trials: BTreeMap<_, _> =
        trials.iter().map(|t| (t.result["task_name"].as_str().unwrap_or_default(), t)).collect();
    for number in 1..=load.items {
        let task = load.task(number);
        let records = lines.remove(&task).unwrap_or_default();
        if records != 1 {
            differences.push(format!("{task} has {records} terminal records"));
        }
        match trials.get(task.as_str()) {
            None => differences.push(format!("{task} has no result")),
            Some(trial) if trial.reward() != Some(Load::reward(number)) => differences
                .push(format!("{task} has reward {:?}: {}", trial.reward(), trial.result["error"])),
            Some(trial) if !trial.result["error"].is_null() => {
                differences.push(format!("{task} has an error: {}", trial.result["error"]));
            }
            Some(_) => {}
        }
    }
    differences.extend(lines.into_keys().map(|task| format!("{task} does not belong to this run")));
    differences
}
