//! Names of the tasks of a registry, known before anything is fetched.

use std::collections::HashMap;
use std::path::Path;

use rollout_protocol::name::fold_case;

use super::select::{NamedTask, last_part};
use crate::sources::registry::{Origin, TaskEntry};

/// Names the tasks of a registry whose relative addresses are relative to `base`. The name is that of
/// the entry, or that of the directory. Of `org/name`, the name in the results is `name`, or
/// `org__name` if several tasks have that name.
pub(super) fn named(tasks: Vec<TaskEntry>, base: &Path) -> Vec<NamedTask<TaskEntry>> {
    let full: Vec<String> = tasks.iter().map(|task| written_name(task, base)).collect();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for name in &full {
        *counts.entry(fold_case(last_part(name))).or_default() += 1;
    }
    let name_task = |(task, full): (TaskEntry, String)| {
        let last = last_part(&full);
        let is_unique = counts.get(&fold_case(last)) == Some(&1);
        let name = if is_unique { last.to_owned() } else { full.replace('/', "__") };
        let full_name = full.contains('/').then_some(full);
        NamedTask { name, full_name, task }
    };
    tasks.into_iter().zip(full).map(name_task).collect()
}

fn written_name(task: &TaskEntry, base: &Path) -> String {
    let written = task.name.as_deref().map(|name| name.trim_matches('/'));
    match written.filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        None => directory_name(task.git_url.as_deref(), task.path.as_deref(), base),
    }
}

/// The name of a directory of a repository, or of one below `base`; of the whole without a path.
pub(super) fn directory_name(git_url: Option<&str>, path: Option<&str>, base: &Path) -> String {
    let mut parts = path.unwrap_or_default().split('/');
    if let Some(last) = parts.rfind(|part| !matches!(*part, "" | ".")) {
        return last.to_owned();
    }
    match git_url {
        Some(url) => Origin::new(url, base).name().to_owned(),
        None => {
            base.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: Option<&str>, path: Option<&str>) -> TaskEntry {
        TaskEntry {
            name: name.map(str::to_owned),
            git_url: Some("https://example.org/tasks.git".to_owned()),
            git_commit_id: None,
            path: path.map(str::to_owned),
        }
    }

    #[test]
    fn registry_task_is_named_by_entry_or_directory() {
        let tasks = vec![
            entry(Some("org/alpha"), Some("x")),
            entry(Some("a/same"), Some("x")),
            entry(Some("b/same"), Some("x")),
            entry(None, Some("./tasks/beta/")),
            entry(None, None),
        ];
        let named = named(tasks, Path::new("/base"));
        let names: Vec<_> =
            named.iter().map(|task| (task.name.as_str(), task.full_name.as_deref())).collect();
        assert_eq!(
            names,
            [
                ("alpha", Some("org/alpha")),
                ("a__same", Some("a/same")),
                ("b__same", Some("b/same")),
                ("beta", None),
                ("tasks", None),
            ]
        );
    }
}
