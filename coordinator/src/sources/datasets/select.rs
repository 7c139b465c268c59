//! Selection of a dataset's tasks. It needs only their names: tasks that are not selected are not
//! fetched.

use std::collections::HashSet;

use regex::Regex;
use rollout_base::glob::{self, Dialect};

use crate::config::{
    ConfigError, ConfigWarning, DatasetRef, Diagnostics, ErrorKind, Job, TaskSelection, nearest,
};

/// Patterns without a match that a similar name is looked for: each is compared with all names.
const MAX_HINTS: usize = 5;

/// Patterns that the message about a dataset without a selected task shows.
const MAX_PATTERNS_SHOWN: usize = 10;

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
/// warnings; a dataset without a selected task is an error. None are kept, without an error, once
/// `has_ended` is true: the reading of tasks ends then.
pub(super) fn select_tasks<T>(
    (job, reference, name): (&Job, &DatasetRef, &str),
    tasks: Vec<NamedTask<T>>,
    has_ended: &dyn Fn() -> bool,
    problems: &mut Diagnostics,
) -> Vec<NamedTask<T>> {
    // Its patterns may take long to compile.
    if has_ended() {
        return Vec::new();
    }
    let DatasetRef { selection, location, pattern_locations, .. } = reference;
    let names: Vec<String> = tasks.iter().map(|task| task.name.clone()).collect();
    let (chosen, unmatched) = select(selection, tasks, has_ended);
    if has_ended() {
        return Vec::new();
    }
    let near: Vec<Option<&str>> = (unmatched.iter().take(MAX_HINTS))
        .map(|pattern| nearest(pattern, names.iter().map(String::as_str)))
        .collect();
    for (at, pattern) in unmatched.iter().enumerate() {
        let near = near.get(at).copied().flatten();
        let near = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
        problems.warning(ConfigWarning {
            file: job.file.clone(),
            line: location.line,
            key: location.key.clone(),
            message: format!("no task of `{name}` matches `{pattern}`{near}"),
        });
    }
    if chosen.is_empty() {
        let unmatched: HashSet<&str> = unmatched.into_iter().collect();
        let patterns_unmatched = selection.names.iter().all(|p| unmatched.contains(p.as_str()));
        let (location, message) = if patterns_unmatched && !selection.names.is_empty() {
            let s = if names.len() == 1 { "" } else { "s" };
            let message = format!(
                "no task of `{name}` matches {} (it has {} task{s})",
                some_of(&selection.names),
                names.len()
            );
            (&pattern_locations.names, message)
        } else {
            let message = format!("every selected task of `{name}` is excluded");
            (&pattern_locations.exclude, message)
        };
        let error = location.failure(&job.file, ErrorKind::NoTasks, message);
        let hint = near.into_iter().flatten().next();
        let hint = hint.map(|near| format!("did you mean `{near}`?"));
        problems.error(ConfigError { hint, ..error });
    }
    chosen
}

/// The first patterns of a list, and the number of the others.
fn some_of(patterns: &[String]) -> String {
    let mut shown: Vec<String> =
        patterns.iter().take(MAX_PATTERNS_SHOWN).map(|pattern| format!("`{pattern}`")).collect();
    if patterns.len() > MAX_PATTERNS_SHOWN {
        shown.push(format!("{} more", patterns.len() - MAX_PATTERNS_SHOWN));
    }
    shown.join(" or ")
}

/// The selected tasks, by name, and the patterns that matched no task. Both say little if the
/// reading of tasks ends meanwhile.
fn select<'a, T>(
    selection: &'a TaskSelection,
    tasks: Vec<NamedTask<T>>,
    has_ended: &dyn Fn() -> bool,
) -> (Vec<NamedTask<T>>, Vec<&'a str>) {
    let mut names = NamePatterns::new(&selection.names);
    let mut exclude = NamePatterns::new(&selection.exclude);
    let mut chosen = Vec::new();
    for task in tasks {
        if has_ended() {
            break;
        }
        let is_selected = names.select(&task, has_ended) || selection.names.is_empty();
        // Also for a task that is not selected: it tells which patterns match a task.
        let is_excluded = exclude.select(&task, has_ended);
        if is_selected && !is_excluded {
            chosen.push(task);
        }
    }
    chosen.sort_by(|a, b| a.name.cmp(&b.name));
    chosen.truncate(selection.max_tasks.unwrap_or(usize::MAX));
    let unmatched = names.unmatched().chain(exclude.unmatched()).collect();
    (chosen, unmatched)
}

/// The patterns of a list.
struct NamePatterns<'a> {
    texts: &'a [String],
    /// Those without special characters: names.
    plain: HashSet<&'a str>,
    /// The others. A pattern that is too large is not here: it matches no name.
    globs: Vec<(&'a str, Regex)>,
    /// Those that matched a task.
    matched: HashSet<&'a str>,
}

impl<'a> NamePatterns<'a> {
    fn new(texts: &'a [String]) -> Self {
        let (globs, plain): (Vec<&str>, Vec<&str>) =
            texts.iter().map(String::as_str).partition(|text| glob::is_pattern(text));
        let compile = |text: &'a str| Some((text, glob::compile(text, Dialect::Shell)?));
        Self {
            texts,
            plain: plain.into_iter().collect(),
            globs: globs.into_iter().filter_map(compile).collect(),
            matched: HashSet::new(),
        }
    }

    /// Whether one of them matches a name of a task: that in the results, or that with an
    /// organization, with or without it. Several tasks may have the last one in common.
    fn select<T>(&mut self, task: &NamedTask<T>, has_ended: &dyn Fn() -> bool) -> bool {
        let full = task.full_name.as_deref();
        let names = [Some(task.name.as_str()), full, full.map(last_part)];
        let names = || names.into_iter().flatten();
        let plain = names().filter_map(|name| self.plain.get(name).copied());
        let plain: Vec<&str> = plain.collect();
        let mut is_selected = !plain.is_empty();
        self.matched.extend(plain);
        for &(text, ref regex) in &self.globs {
            if has_ended() {
                break;
            }
            // Another match of a pattern tells nothing about a task that is selected.
            if is_selected && self.matched.contains(text) {
                continue;
            }
            if names().any(|name| regex.is_match(name)) {
                is_selected = true;
                self.matched.insert(text);
            }
        }
        is_selected
    }

    /// Those that matched no task yet, in the order of the list.
    fn unmatched(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.texts.iter().map(String::as_str).filter(move |text| !self.matched.contains(text))
    }
}

/// A name without its organization.
pub(super) fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

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
        let (chosen, unmatched) = select(&selection, tasks, &|| false);
        let chosen: Vec<&str> = chosen.iter().map(|task| task.name.as_str()).collect();
        assert_eq!((chosen, unmatched), (vec!["aa", "ad"], vec!["zz", "q?"]));
    }

    #[test]
    fn task_with_organization_is_selected_by_either_name() {
        for (pattern, chosen) in [("alpha", 1), ("org/alpha", 1), ("org/*", 1), ("other/*", 0)] {
            let selection =
                TaskSelection { names: vec![pattern.to_owned()], ..TaskSelection::default() };
            let tasks = vec![named("alpha", Some("org/alpha")), named("beta", None)];
            assert_eq!(select(&selection, tasks, &|| false).0.len(), chosen, "{pattern}");
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
            let (chosen, unmatched) = select(&selection, tasks(), &|| false);
            let chosen: Vec<&str> = chosen.iter().map(|task| task.name.as_str()).collect();
            assert_eq!((chosen.as_slice(), unmatched), (expected, vec![]), "{pattern}");
            let selection = TaskSelection { exclude: names, ..TaskSelection::default() };
            let left = select(&selection, tasks(), &|| false).0.len();
            assert_eq!(left, 3 - expected.len(), "{pattern}");
        }
    }

    #[test]
    fn selection_ends_when_the_reading_of_tasks_does() {
        let selection = TaskSelection {
            names: (0..1000).map(|at| format!("{at}*")).collect(),
            ..TaskSelection::default()
        };
        let tasks: Vec<_> = (0..1000).map(|at| named(&format!("a{at}"), None)).collect();
        let looks = Cell::new(0);
        let has_ended = || {
            looks.set(looks.get() + 1);
            looks.get() > 100
        };
        let (chosen, _) = select(&selection, tasks, &has_ended);
        assert!(chosen.is_empty());
        assert!(looks.get() < 110, "{} looks", looks.get());
    }

    #[test]
    fn message_shows_the_first_patterns_of_a_long_list() {
        let names: Vec<String> = (0..12).map(|at| at.to_string()).collect();
        assert_eq!(some_of(&names[..2]), "`0` or `1`");
        assert!(some_of(&names).ends_with("`9` or 2 more"), "{}", some_of(&names));
    }
}
