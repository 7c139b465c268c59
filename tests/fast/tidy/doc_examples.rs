//! Rule on examples in doc comments: none is Rust code, because no command runs doc-tests. The
//! libraries have `doctest = false`, which saves a program that links everything for each of them.

use crate::files::SourceFile;
use crate::{Violation, assert_none, files};

/// Languages of blocks that `rustdoc` does not take for Rust.
const LANGUAGES: &[&str] = &["text", "sh", "json", "toml", "yaml", "python"];

/// Blocks in doc comments that would be doc-tests: fenced without one of [`LANGUAGES`], or indented.
fn doc_tests(source: &SourceFile) -> Vec<Violation> {
    let (mut violations, mut in_block, mut after_blank) = (Vec::new(), false, false);
    for (number, line) in (1..).zip(source.masked.comments.lines()) {
        let line = line.trim_start();
        let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            (in_block, after_blank) = (false, false);
            continue;
        };
        if let Some(language) = text.trim_start().strip_prefix("```") {
            in_block = !in_block;
            if in_block && !LANGUAGES.contains(&language) {
                let what = format!("`{language}` is no language of an example that nothing runs");
                violations.push(Violation::new(&source.path, number, what));
            }
        } else if !in_block && after_blank && text.starts_with("     ") {
            let what = "an indented block is an example that nothing runs";
            violations.push(Violation::new(&source.path, number, what));
        }
        after_blank = text.trim().is_empty();
    }
    violations
}

#[test]
fn doc_comments_have_no_examples_that_nothing_runs() {
    assert_none(&files::rust().flat_map(doc_tests).collect::<Vec<_>>());
}

#[test]
fn doc_example_violations_are_found() {
    let found = |text| doc_tests(&SourceFile::new("worker/src/a.rs", text)).len();
    for text in [
        "/// ```\n/// f();\n/// ```\nfn f() {}",
        "//! ```no_run\n//! ```",
        "/// A.\n///\n///     f();",
    ] {
        assert_eq!(found(text), 1, "{text}");
    }
    for text in [
        "/// ```text\n/// a\n///\n///     b\n/// ```\n// ```",
        "/// * one\n///       and\nfn f() {}",
        "let text = \"\n/// ```\n\";",
    ] {
        assert_eq!(found(text), 0, "{text}");
    }
}
