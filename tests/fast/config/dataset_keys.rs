//! Keys of `datasets` and `tasks`, whose effect is in a plan.

use serde_json::json;

use crate::config::keys::KeyCase;

/// The keys.
pub(crate) const DATASET_CASES: &[KeyCase] = &[
    (
        "datasets[].git_commit_id",
        "datasets: [{path: tasks, git_commit_id: '1111111111111111111111111111111111111111'}]",
        "/plan/tasks/0/git_commit_id",
        || json!("1".repeat(40)),
    ),
    ("datasets[].name", "datasets: [{path: tasks, name: d}]", "/shown/tasks/0/dataset", || {
        json!("d")
    }),
    (
        "datasets[].version",
        "datasets: [{path: tasks, version: 3}]",
        "/shown/config/datasets/0/version",
        || json!("3"),
    ),
    (
        "datasets[].format",
        "datasets: [{path: tasks, format: harbor}]",
        "/shown/tasks/0/format/name",
        || json!("harbor"),
    ),
    (
        "datasets[].exclude_task_names",
        "datasets: [{path: tasks, exclude_task_names: ['b*']}]",
        "/shown/tasks/0/task",
        || json!("named"),
    ),
    ("datasets[].n_tasks", "datasets: [{path: tasks, n_tasks: 1}]", "/shown/counts/tasks", || {
        json!(1)
    }),
    (
        "datasets[].registry.path",
        "datasets: [{registry: {path: registry.json}, name: r}]",
        "/shown/tasks/0/dataset",
        || json!("r"),
    ),
    (
        "datasets[].registry.url",
        "datasets: [{registry: {url: 'file://@HERE@/registry.json'}, name: r}]",
        "/shown/tasks/0/dataset",
        || json!("r"),
    ),
    (
        "tasks[].path",
        "tasks: [{path: tasks/built}]\ndatasets: []",
        "/shown/tasks/0/dataset",
        || json!("tasks"),
    ),
    (
        "tasks[].format",
        "tasks: [{path: tasks/built, format: harbor}]\ndatasets: []",
        "/shown/tasks/0/format/name",
        || json!("harbor"),
    ),
];
