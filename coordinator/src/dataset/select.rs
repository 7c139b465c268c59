//! Which tasks of a dataset are run.

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

/// Whether a name matches a pattern as shells have it: `*`, `?`, `[abc]`, `[a-z]`, `[!abc]`.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    // Where the last `*` stood, and how much of the name it has taken.
    let mut star: Option<(usize, usize)> = None;
    let (mut p, mut n) = (0, 0);
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, n));
            p += 1;
        } else if let Some(next) = one(&pattern, p, name[n]) {
            (p, n) = (next, n + 1);
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            (p, n) = (at + 1, taken + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Where the pattern goes on when its part at `p` matches `c`.
fn one(pattern: &[char], p: usize, c: char) -> Option<usize> {
    match pattern.get(p)? {
        '?' => Some(p + 1),
        '[' => match set(pattern, p + 1, c) {
            Some((end, matched)) => matched.then_some(end),
            None => (c == '[').then_some(p + 1),
        },
        literal => (*literal == c).then_some(p + 1),
    }
}

/// Where a set ends that begins at `begin`, and whether `c` is in it; none when it does not end.
fn set(pattern: &[char], begin: usize, c: char) -> Option<(usize, bool)> {
    let negated = matches!(pattern.get(begin), Some('!' | '^'));
    let first = begin + usize::from(negated);
    let length = pattern.get(first + 1..)?.iter().position(|c| *c == ']')?;
    let members = &pattern[first..=first + length];
    let mut found = false;
    let mut at = 0;
    while at < members.len() {
        if at + 2 < members.len() && members[at + 1] == '-' {
            found |= (members[at]..=members[at + 2]).contains(&c);
            at += 3;
        } else {
            found |= members[at] == c;
            at += 1;
        }
    }
    Some((first + length + 2, found != negated))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("hello", "hello", true),
            ("hello", "hello-world", false),
            ("hello*", "hello-world", true),
            ("*world", "hello-world", true),
            ("*o*o*", "hello-world", true),
            ("*x*", "hello-world", false),
            ("h?llo", "hallo", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[!ae]llo", "hallo", false),
            ("task-[0-9]", "task-7", true),
            ("task-[0-9]", "task-x", false),
            ("a[", "a[", true),
            ("[]]", "]", true),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("ä?", "äö", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
        let long = "a".repeat(5000);
        assert!(!matches(&"*a".repeat(50).replace("a*", "a*a*"), &format!("{long}b")));
    }

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
