//! Patterns of task names: `task_names` and `exclude_task_names`, within bounds.
//!
//! A document may come from another user: without bounds, a document of a few megabytes makes its
//! reader match patterns for minutes.

use rollout_base::glob;

use super::super::diagnostics::ErrorKind;
use super::super::reader::Field;

/// Longest pattern, bytes: names of tasks are shorter.
const PATTERN_BYTES: usize = 1024;

/// Largest number of patterns in a list. Names without special characters are looked up, which costs
/// little.
const MAX_PATTERNS: usize = 100_000;

/// Largest number of patterns with special characters in a list: each is matched with each task.
const MAX_GLOBS: usize = 1000;

/// Most bytes of these in a list. A compiled pattern takes about a thousand times its size.
const GLOB_BYTES: usize = 64 * 1024;

/// Reads a list of patterns.
pub(super) fn read(field: &Field<'_>) -> Vec<String> {
    let items = field.items().unwrap_or_default();
    if items.len() > MAX_PATTERNS {
        let found = format!("{} patterns", items.len());
        field.reject(ErrorKind::TooLarge, found, format!("at most {MAX_PATTERNS} patterns"));
        return Vec::new();
    }
    let patterns: Vec<String> = items.iter().filter_map(pattern).collect();
    let globs = patterns.iter().filter(|pattern| glob::is_pattern(pattern)).map(String::len);
    let globs: Vec<usize> = globs.collect();
    let (count, bytes): (usize, usize) = (globs.len(), globs.iter().sum());
    if count > MAX_GLOBS || bytes > GLOB_BYTES {
        let found = format!("{count} patterns with `*`, `?`, `[` or `\\`, of {bytes} bytes");
        let most = format!("at most {MAX_GLOBS}, of {GLOB_BYTES} bytes, and plain names");
        field.reject(ErrorKind::TooLarge, found, most);
        return Vec::new();
    }
    patterns
}

fn pattern(item: &Field<'_>) -> Option<String> {
    let text = item.non_empty_string()?;
    if text.len() > PATTERN_BYTES {
        let found = format!("a pattern of {} bytes", text.len());
        item.reject(ErrorKind::TooLarge, found, format!("at most {PATTERN_BYTES} bytes"));
        return None;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::super::testing::read_field;
    use super::*;

    fn list(pattern: &str, count: usize) -> String {
        format!("[{}]", vec![format!("'{pattern}'"); count].join(", "))
    }

    #[test]
    fn patterns_beyond_a_bound_are_refused_at_their_key() {
        let (long, longer) = ("a".repeat(PATTERN_BYTES), "*".repeat(PATTERN_BYTES + 1));
        for (text, count, key) in [
            (list("a", MAX_PATTERNS), MAX_PATTERNS, None),
            (list("a", MAX_PATTERNS + 1), 0, Some("x")),
            (list("a*", MAX_GLOBS), MAX_GLOBS, None),
            (list("[ab]", MAX_GLOBS + 1), 0, Some("x")),
            (list(&"?".repeat(PATTERN_BYTES), 64), 64, None),
            (list(&"?".repeat(PATTERN_BYTES), 65), 0, Some("x")),
            (format!("[b, {long}]"), 2, None),
            (format!("[b, '{longer}', c]"), 2, Some("x[1]")),
        ] {
            let (patterns, faults, _) = read_field(&text, read);
            let expected: Vec<_> =
                key.into_iter().map(|key| (key.to_owned(), ErrorKind::TooLarge)).collect();
            assert_eq!((patterns.len(), faults), (count, expected), "{count} patterns");
        }
    }
}
