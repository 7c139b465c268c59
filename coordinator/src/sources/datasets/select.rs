//! Selection of a dataset's tasks.

use regex::Regex;
use rollout_worker::glob::{self, Dialect};

use crate::config::TaskSelection;

/// The selected tasks, by name, and the patterns that matched no task.
pub(super) fn select<T>(
    selection: &TaskSelection,
    mut tasks: Vec<T>,
    name: impl Fn(&T) -> &str,
) -> (Vec<T>, Vec<&str>) {
    let (names, exclude) = (compile(&selection.names), compile(&selection.exclude));
    let any = |patterns: &[NamePattern], name: &str| patterns.iter().any(|p| p.matches(name));
    let unmatched: Vec<&str> = names
        .iter()
        .chain(&exclude)
        .filter(|pattern| !tasks.iter().any(|task| pattern.matches(name(task))))
        .map(|pattern| pattern.text)
        .collect();
    tasks.retain(|task| {
        let name = name(task);
        (names.is_empty() || any(&names, name)) && !any(&exclude, name)
    });
    tasks.sort_by(|a, b| name(a).cmp(name(b)));
    tasks.truncate(selection.max_tasks.unwrap_or(usize::MAX));
    (tasks, unmatched)
}

struct NamePattern<'a> {
    text: &'a str,
    /// `None` if the pattern is too large: it matches no name.
    regex: Option<Regex>,
}

impl NamePattern<'_> {
    fn matches(&self, name: &str) -> bool {
        self.regex.as_ref().is_some_and(|regex| regex.is_match(name))
    }
}

fn compile(patterns: &[String]) -> Vec<NamePattern<'_>> {
    let compile = |text: &str| glob::compile(text, Dialect::Shell);
    patterns.iter().map(|text| NamePattern { text, regex: compile(text) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_selection_is_sorted_and_lists_unmatched_patterns() {
        let selection = TaskSelection {
            names: vec!["a*".to_owned(), "c".to_owned(), "zz".to_owned()],
            exclude: vec!["ab".to_owned(), "q?".to_owned()],
            max_tasks: Some(2),
        };
        let tasks = vec!["c", "ad", "ab", "aa", "b"];
        assert_eq!(select(&selection, tasks, |t| t), (vec!["aa", "ad"], vec!["zz", "q?"]));
    }
}
