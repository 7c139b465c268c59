//! Which tasks of a dataset are run.

use rollout_worker::glob;

use crate::config::Selection;

/// The tasks that a selection names, by name, and patterns that no task matched.
pub(super) fn select<T>(
    selection: &Selection,
    mut tasks: Vec<T>,
    name: impl Fn(&T) -> &str,
) -> (Vec<T>, Vec<&str>) {
    let any = |patterns: &[String], name: &str| patterns.iter().any(|p| matches(p, name));
    let matched = |pattern: &&String| tasks.iter().any(|task| matches(pattern, name(task)));
    let unmatched: Vec<&str> = selection
        .names
        .iter()
        .chain(&selection.exclude)
        .filter(|pattern| !matched(pattern))
        .map(String::as_str)
        .collect();
    tasks.retain(|task| {
        let name = name(task);
        (selection.names.is_empty() || any(&selection.names, name))
            && !any(&selection.exclude, name)
    });
    tasks.sort_by(|a, b| name(a).cmp(name(b)));
    tasks.truncate(selection.most.unwrap_or(usize::MAX));
    (tasks, unmatched)
}

fn matches(pattern: &str, name: &str) -> bool {
    glob::matches_text(pattern, name, glob::SHELL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_selected_is_in_order_and_what_matched_nothing_is_told() {
        let selection = Selection {
            names: vec!["a*".to_owned(), "c".to_owned(), "zz".to_owned()],
            exclude: vec!["ab".to_owned(), "q?".to_owned()],
            most: Some(2),
        };
        let tasks = vec!["c", "ad", "ab", "aa", "b"];
        assert_eq!(select(&selection, tasks, |t| t), (vec!["aa", "ad"], vec!["zz", "q?"]));
    }
}
