//! Rules on the source code that a compiler does not check: dependencies, layers, names, sizes,
//! purity of the core, unlisted files, unfinished work, hints, documentation. Each rule is a
//! function from sources to violations, with a test that shows it finding one.

mod build_size;
mod dependencies;
mod doc_examples;
mod documentation;
mod files;
mod hints;
mod layers;
mod mask;
mod names;
mod purity;
mod registration;
mod sizes;
mod unfinished_marks;

use std::fmt;

/// A place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    /// File, relative to the repository.
    path: String,
    /// Line, from 1; 0 when it is the file as a whole.
    line: usize,
    /// Description of the problem.
    what: String,
}

impl Violation {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Fails with every violation at once.
#[track_caller]
fn assert_none(violations: &[Violation]) {
    let list: String = violations.iter().map(|v| format!("\n  {v}")).collect();
    assert!(violations.is_empty(), "{} violations:{list}", violations.len());
}
