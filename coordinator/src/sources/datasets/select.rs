//! Selection of a dataset's tasks. It needs only their names: tasks that are not selected are not
//! fetched.

use regex::Regex;
use rollout_worker::glob::{self, Dialect};

use crate::config::{
    ConfigError, ConfigWarning, DatasetRef, Diagnostics, ErrorKind, Job, TaskSelection, nearest,
};

/// A task that may be selected.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NamedTask<T> {
    /// Its name in the results.
    pub(super) name: String,
    /// Its name with an organization, `org/name`, if it has one.
    pub(super) full_name: Option<String>,
    /// The task.
    pub(super) task: T,
}

/// Keeps the tasks of the dataset `name` that the job selects. Patterns without a match are
/// warnings; a dataset without a selected task is an error.
pub(super) fn select_tasks<T>(
    (job, reference, name): (&Job, &DatasetRef, &str),
    tasks: Vec<NamedTask<T>>,
    problems: &mut Diagnostics,
) -> Vec<NamedTask<T>> {
    let DatasetRef { selection, location, pattern_locations, .. } = reference;
    let names: Vec<String> = tasks.iter().map(|task| task.name.clone()).collect();
    let (chosen, unmatched) = select(selection, tasks);
    for pattern in &unmatched {
        let near = nearest(pattern, names.iter().map(String::as_str));
        let near = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
        problems.warning(ConfigWarning {
            file: job.file.clone(),
            line: location.line,
            key: location.key.clone(),
            message: format!("no task of `{name}` matches `{pattern}`{near}"),
        });
    }
    if chosen.is_empty() {
        let near = unmatched.iter().find_map(|p| nearest(p, names.iter().map(String::as_str)));
        let patterns_unmatched = selection.names.iter().all(|p| unmatched.contains(&p.as_str()));
        let (location, message) = if patterns_unmatched && !selection.names.is_empty() {
            let patterns: Vec<String> = selection.names.iter().map(|p| format!("`{p}`")).collect();
            let s = if names.len() == 1 { "" } else { "s" };
            let message = format!(
                "no task of `{name}` matches {} (it has {} task{s})",
                patterns.join(" or "),
                names.len()
            );
            (&pattern_locations.names, message)
        } else {
            let message = format!("every selected task of `{name}` is excluded");
            (&pattern_locations.exclude, message)
        };
        let error = location.failure(&job.file, ErrorKind::NoTasks, message);
        let hint = near.map(|near| format!("did you mean `{near}`?"));
        problems.error(ConfigError { hint, ..error });
    }
    chosen
}

/// The selected tasks, by name, and the patterns that matched no task.
fn select<T>(
    selection: &TaskSelection,
    mut tasks: Vec<NamedTask<T>>,
) -> (Vec<NamedTask<T>>, Vec<&str>) {
    let (names, exclude) = (compile(&selection.names), compile(&selection.exclude));
    let any = |patterns: &[NamePattern], task: &NamedTask<T>| {
        patterns.iter().any(|pattern| pattern.selects(task))
    };
    let unmatched: Vec<&str> = names
        .iter()
        .chain(&exclude)
        .filter(|pattern| !tasks.iter().any(|task| pattern.selects(task)))
        .map(|pattern| pattern.text)
        .collect();
    tasks.retain(|task| (names.is_empty() || any(&names, task)) && !any(&exclude, task));
    tasks.sort_by(|a, b| a.name.cmp(&b.name));
    tasks.truncate(selection.max_tasks.unwrap_or(usize::MAX));
    (tasks, unmatched)
}

struct NamePattern<'a> {
    text: &'a str,
    /// `None` if the pattern is too large: it matches no name.
    regex: Option<Regex>,
}

impl NamePattern<'_> {
    /// Whether it matches a name of a task: that in the results, or that with an organization, with or
    /// without it. Several tasks may have the last one in common.
    fn selects<T>(&self, task: &NamedTask<T>) -> bool {
        let of_organization = |full: &String| self.matches(full) || self.matches(last_part(full));
        self.matches(&task.name) || task.full_name.as_ref().is_some_and(of_organization)
    }

    fn matches(&self, name: &str) -> bool {
        self.regex.as_ref().is_some_and(|regex| regex.is_match(name))
    }
}

/// A name without its organization.
pub(super) fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn compile(patterns: &[String]) -> Vec<NamePattern<'_>> {
    let compile = |text: &str| glob::compile(text, Dialect::Shell);
    patterns.iter().map(|text| NamePattern { text, regex: compile(text) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, full_name: Option<&str>) -> NamedTask<()> {
        NamedTask { name: name.to_owned(), full_name: full_name.map(str::to_owned), task: () }
    }

    #[test]
    fn task_selection_is_sorted_and_lists_unmatched_patterns() {
        let selection = TaskSelection {
            names: vec!["a*".to_owned(), "c".to_owned(), "zz".to_owned()],
            exclude: vec!["ab".to_owned(), "q?".to_owned()],
            max_tasks: Some(2),
        };
        let tasks = ["c", "ad", "ab", "aa", "b"].map(|name| named(name, None)).to_vec();
        let (chosen, unmatched) = select(&selection, tasks);
        let chosen: Vec<&str> = chosen.iter().map(|task| task.name.as_str()).collect();
        assert_eq!((chosen, unmatched), (vec!["aa", "ad"], vec!["zz", "q?"]));
    }

    #[test]
    fn task_with_organization_is_selected_by_either_name() {
        for (pattern, chosen) in [("alpha", 1), ("org/alpha", 1), ("org/*", 1), ("other/*", 0)] {
            let selection =
                TaskSelection { names: vec![pattern.to_owned()], ..TaskSelection::default() };
            let tasks = vec![named("alpha", Some("org/alpha")), named("beta", None)];
            assert_eq!(select(&selection, tasks).0.len(), chosen, "{pattern}");
        }
    }

    #[test]
    fn tasks_of_several_organizations_are_selected_by_the_name_in_common() {
        let tasks = || {
            vec![
                named("org__alpha", Some("org/alpha")),
                named("other__alpha", Some("other/alpha")),
                named("beta", Some("org/beta")),
            ]
        };
        let both = &["org__alpha", "other__alpha"][..];
        for (pattern, expected) in [
            ("alpha", both),
            ("alph?", both),
            ("org/alpha", &both[..1]),
            ("other__alpha", &both[1..]),
        ] {
            let names = vec![pattern.to_owned()];
            let selection = TaskSelection { names: names.clone(), ..TaskSelection::default() };
            let (chosen, unmatched) = select(&selection, tasks());
            let chosen: Vec<&str> = chosen.iter().map(|task| task.name.as_str()).collect();
            assert_eq!((chosen.as_slice(), unmatched), (expected, vec![]), "{pattern}");
            let selection = TaskSelection { exclude: names, ..TaskSelection::default() };
            let left = select(&selection, tasks()).0.len();
            assert_eq!(left, 3 - expected.len(), "{pattern}");
        }
    }
}
