//! Rule on unfinished work: no marks of it in code, comments or documents.

use regex::Regex;

use crate::files::SourceFile;
use crate::{Violation, assert_none, files};

/// Marks of unfinished work.
const UNFINISHED: &str = r"\b(TODO|FIXME|XXX|HACK)\b";

/// Exempt files: this one names the marks, the other is generated.
const EXCEPT: &[&str] = &["tests/fast/tidy/unfinished_marks.rs", "Cargo.lock"];

fn unfinished(source: &SourceFile) -> Vec<Violation> {
    if EXCEPT.contains(&source.path.as_str()) {
        return Vec::new();
    }
    let pattern = Regex::new(UNFINISHED).expect("a pattern");
    let hit = |(at, line): (usize, &str)| {
        let what = format!("a mark of unfinished work: {}", line.trim());
        pattern.is_match(line).then(|| Violation::new(&source.path, at + 1, what))
    };
    source.text.lines().enumerate().filter_map(hit).collect()
}

#[test]
fn unfinished_marks_are_absent() {
    assert_none(&files::all().iter().flat_map(unfinished).collect::<Vec<_>>());
}

#[test]
fn unfinished_marks_are_found() {
    let found = |text| unfinished(&SourceFile::new("README.md", text)).len();
    for text in ["TODO: later", "// FIXME", "a HACK"] {
        assert_eq!(found(text), 1, "{text}");
    }
    for text in ["a todo list", "HACKING", "the fix"] {
        assert_eq!(found(text), 0, "{text}");
    }
}
