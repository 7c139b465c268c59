//! What a user meets must be in the README.

use rollout_protocol::error::ErrorType;
use rollout_protocol::exit::ExitCode;

use crate::{Violation, assert_none, files};

/// Exit codes and error types that `readme` does not explain.
fn undocumented(readme: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for code in ExitCode::ALL {
        let number = code.code();
        let row = |line: &str| {
            let first = line.trim_start_matches('|').split('|').next().unwrap_or_default();
            line.starts_with('|') && first.trim().trim_matches('`') == number.to_string()
        };
        if !readme.lines().any(row) {
            let what = format!("no table row for exit code {number} ({code:?})");
            violations.push(Violation::new("README.md", 0, what));
        }
    }
    for kind in ErrorType::ALL {
        if !readme.contains(&format!("`{kind}`")) {
            violations.push(Violation::new("README.md", 0, format!("does not mention `{kind}`")));
        }
    }
    violations
}

#[test]
fn codes_and_errors_are_documented() {
    // Until there is a README there is nothing to compare with.
    if let Some(readme) = files::all().iter().find(|source| source.path == "README.md") {
        assert_none(&undocumented(&readme.text));
    }
}

#[test]
fn catches_violations() {
    let all = ExitCode::ALL.len() + ErrorType::ALL.len();
    assert_eq!(undocumented("").len(), all);
    assert_eq!(
        undocumented("| Code | |\n| `0` | fine |\n| 130 | x |\n`task_invalid`").len(),
        all - 3
    );
}
