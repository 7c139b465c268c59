//! Name patterns of shells, Dockerfiles and `.dockerignore`.
//!
//! These patterns match characters, and `globset` matches bytes: its `?` and its classes miss every
//! name that is not ASCII (a test below shows it). It has no `**` inside of a name either. So
//! patterns of characters become regular expressions here; patterns of bytes go to `globset` and
//! `ignore` with [`for_globset`].

use std::iter::Peekable;
use std::str::Chars;

use regex::Regex;

/// A pattern syntax.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Whole names as shells match them: `*` and `?` match any characters, `[!a]` and `[^a]` all
    /// but `a`. An unfinished class and a `\` at the end are literal.
    Shell,
    /// [`Dialect::Shell`] as in Go, where only `[^a]` is negated: parts of paths in Dockerfiles.
    Go,
    /// Paths in `.dockerignore`: `*` and `?` stop at `/`, `**` does not, `\` works inside of
    /// classes, and nothing may be unfinished.
    Docker,
}

/// The regular expression that matches whole texts as the pattern does; `None` when the pattern is
/// not valid.
pub fn compile(pattern: &str, dialect: Dialect) -> Option<Regex> {
    Regex::new(&translate(pattern, dialect)?).ok()
}

/// Whether a text of [`Dialect::Shell`] may match another name than its own.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

fn translate(pattern: &str, dialect: Dialect) -> Option<String> {
    let docker = dialect == Dialect::Docker;
    let mut regex = String::from("^(?s:");
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '*' if docker && rest.next_if_eq(&'*').is_some() => {
                rest.next_if_eq(&'/');
                regex.push_str(if rest.peek().is_none() { ".*" } else { "(?:.*/)?" });
            }
            '*' => regex.push_str(if docker { "[^/]*" } else { ".*" }),
            '?' => regex.push_str(if docker { "[^/]" } else { "." }),
            '\\' => match rest.next() {
                Some(c) => regex.push_str(&escaped(c)),
                None if docker => return None,
                None => regex.push_str(&escaped(c)),
            },
            '[' => match class(&mut rest, dialect) {
                Some(class) => regex.push_str(&class),
                None if docker => return None,
                None => regex.push_str(&escaped(c)),
            },
            c => regex.push_str(&escaped(c)),
        }
    }
    regex.push_str(")$");
    Some(regex)
}

/// Reads a class after its `[`. Reads nothing when the class is unfinished.
fn class(rest: &mut Peekable<Chars<'_>>, dialect: Dialect) -> Option<String> {
    let docker = dialect == Dialect::Docker;
    let mut ahead = rest.clone();
    let is_negation = |c: &char| *c == '^' || (*c == '!' && dialect == Dialect::Shell);
    let negated = ahead.next_if(is_negation).is_some();
    // Characters, and whether a `\` was in front of them.
    let mut members = Vec::new();
    loop {
        match ahead.next()? {
            ']' if !members.is_empty() => break,
            // In the other dialects a `]` that comes first is literal.
            ']' if docker => return None,
            '\\' if docker => members.push((ahead.next()?, true)),
            c => members.push((c, false)),
        }
    }
    let mut set = String::new();
    let mut members = members.as_slice();
    while let Some(((low, _), after)) = members.split_first() {
        let (high, after) = match after {
            [('-', false), (high, _), after @ ..] => (high, after),
            _ => (low, after),
        };
        members = after;
        if low <= high {
            set.push_str(&format!("{}-{}", escaped(*low), escaped(*high)));
        } else if docker {
            return None;
        }
    }
    *rest = ahead;
    Some(match (set.is_empty(), negated) {
        (true, false) => r"[^\s\S]".to_owned(),
        (true, true) => ".".to_owned(),
        (false, negated) => format!("[{}{set}]", if negated { "^" } else { "" }),
    })
}

fn escaped(c: char) -> String {
    regex::escape(c.encode_utf8(&mut [0; 4]))
}

/// A pattern of bytes for `globset` and `ignore`: braces and a `\` at the end are literal. Several
/// `*` mean one unless `has_double_star`.
pub fn for_globset(pattern: &str, has_double_star: bool) -> String {
    let mut glob = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '\\' if rest.len() == 1 => {
                glob.push('\\');
                1
            }
            '\\' => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            '[' => 1 + class_length(&rest[1..]).unwrap_or(0),
            '{' | '}' => {
                glob.push('\\');
                1
            }
            '*' if !has_double_star => {
                rest = rest.trim_start_matches('*');
                glob.push('*');
                continue;
            }
            c => c.len_utf8(),
        };
        let (part, after) = rest.split_at(length);
        glob.push_str(part);
        rest = after;
    }
    glob
}

/// Length in bytes of a class after its `[`, including its end.
fn class_length(after: &str) -> Option<usize> {
    let negation = usize::from(after.starts_with(['!', '^']));
    let first = negation + after[negation..].chars().next()?.len_utf8();
    Some(first + after[first..].find(']')? + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str, dialect: Dialect) -> bool {
        compile(pattern, dialect).expect("valid").is_match(text)
    }

    #[test]
    fn glob_patterns_match_like_shell() {
        for (pattern, text, expected) in [
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
            ("h[^ae]llo", "hxllo", true),
            ("task-[0-9]", "task-7", true),
            ("task-[0-9]", "task-x", false),
            ("[0-9a-]", "-", true),
            ("a[", "a[", true),
            ("[]]", "]", true),
            ("[]x]", "x", true),
            ("[a", "a", false),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("\\", "\\", true),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("ä?", "äö", true),
            ("[ä-ö]", "ö", true),
            ("[z-a]", "m", false),
            ("[!z-a]", "m", true),
            ("[\\]", "\\", true),
            ("a.c", "abc", false),
            ("{a,b}", "a", false),
            ("{a,b}", "{a,b}", true),
            ("*", "a/b\nc", true),
        ] {
            assert_eq!(matches(pattern, text, Dialect::Shell), expected, "{pattern} {text}");
        }
        assert!(matches("[!a]", "!", Dialect::Go) && !matches("[!a]", "b", Dialect::Go));
    }

    #[test]
    fn glob_with_many_stars_finishes() {
        let long = "a".repeat(5000);
        let pattern = "*a".repeat(50).replace("a*", "a*a*");
        assert!(!matches(&pattern, &format!("{long}b"), Dialect::Shell));
    }

    #[test]
    fn globset_differs_on_utf8_and_inner_double_star() {
        let matches = |pattern: &str, text: &str| {
            let glob = globset::GlobBuilder::new(pattern).literal_separator(true).build();
            glob.expect("valid").compile_matcher().is_match(text)
        };
        assert!(!matches("ä?", "äö"));
        assert!(!matches("[ä]", "ä"));
        assert!(!matches("a**b", "ax/b") && super::tests::matches("a**b", "ax/b", Dialect::Docker));
    }

    #[test]
    fn glob_for_globset_escapes_braces_and_stars() {
        for (pattern, double_star, glob) in [
            ("a{b,c}", true, r"a\{b,c\}"),
            ("[{]{", true, r"[{]\{"),
            ("[]{]x", true, "[]{]x"),
            ("[!]{]x", true, "[!]{]x"),
            ("[{", true, r"[\{"),
            (r"\{\ä", true, r"\{\ä"),
            ("a\\", true, r"a\\"),
            ("a/**/b**", true, "a/**/b**"),
            ("a/**/b**", false, "a/*/b*"),
            (r"\**", false, r"\**"),
        ] {
            assert_eq!(for_globset(pattern, double_star), glob, "{pattern}");
        }
    }
}
