//! The project speaks of itself only, and of what is, not of what might be done.

use regex::RegexSet;

use crate::files::Source;
use crate::{Violation, assert_none, files};

/// Patterns that stand nowhere, in code, comments or documents.
const FORBIDDEN: &[&str] = &[
    r"\bS00\d-\d+",
    r"\(C\d\d\)|\bC\d\d (row|line|says)|\b(row|rule|reading) C\d\d\b",
    r"(?i)\b(the|our|in|of) seeds?\b(?: (?:0\d\d|document|spec|says|interface))|\bseeds?/0\d\d|\bseed 0\d\d\b",
    r"(?i)\bissue #?\d+\b",
    r"\b(TODO|FIXME|XXX|HACK)\b",
    r"\b(DESIGN|PROTOCOL|REQUIREMENTS|SCHEMAS|STYLE|CRATES|DOCKER|FIELD)\.md\b",
    r"\bDESIGN\b",
    r"(?i)\bco-authored-by\b|\bgenerated (by|with) (an? )?(ai|llm|model)\b",
    r"/work/(wt|main|shared)\b",
    r"\b(deb\.debian\.org|registry-1\.docker\.io|ghcr\.io|static\.crates\.io)\b",
];

/// This file names them all.
const EXCEPT: &[&str] = &["tests/tidy/words.rs", "Cargo.lock"];

fn forbidden(source: &Source) -> Vec<Violation> {
    if EXCEPT.contains(&source.path.as_str()) {
        return Vec::new();
    }
    let patterns = RegexSet::new(FORBIDDEN).expect("patterns");
    let hit = |(at, line): (usize, &str)| {
        let pattern = patterns.matches(line).iter().next()?;
        let what = format!("forbidden words ({}): {}", FORBIDDEN[pattern], line.trim());
        Some(Violation::new(&source.path, at + 1, what))
    };
    source.text.lines().enumerate().filter_map(hit).collect()
}

#[test]
fn no_forbidden_words() {
    assert_none(&files::all().iter().flat_map(forbidden).collect::<Vec<_>>());
}

#[test]
fn catches_violations() {
    let found = |text| forbidden(&Source::new("README.md", text)).len();
    for text in [
        "as S002-17 says",
        "rounded up (C01)",
        "by row C12",
        "the seed interface",
        "see issue #12",
        "TODO: later",
        "DESIGN section 6",
        "Co-authored-by: x",
    ] {
        assert_eq!(found(text), 1, "{text}");
    }
    for text in ["seed of the random generator", "let seed = 7;", "the C11 standard", "an issue"] {
        assert_eq!(found(text), 0, "{text}");
    }
}
