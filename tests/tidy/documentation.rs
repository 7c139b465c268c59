//! Documents explain exit codes, error types and dependencies, and their links resolve.

use rollout_protocol::error::ErrorType;
use rollout_protocol::exit::ExitCode;

use regex::Regex;

use crate::files::SourceFile;
use crate::{Violation, assert_none, files};

/// Explains exit codes and error types.
const RESULTS: &str = "docs/results.md";

/// Gives a reason for every dependency.
const CONTRIBUTING: &str = "CONTRIBUTING.md";

/// Exit codes and error types that `document` does not explain.
fn undocumented(document: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for code in ExitCode::ALL {
        let number = code.code();
        let row = |line: &str| {
            let first = line.trim_start_matches('|').split('|').next().unwrap_or_default();
            line.starts_with('|') && first.trim().trim_matches('`') == number.to_string()
        };
        if !document.lines().any(row) {
            let what = format!("no table row for exit code {number} ({code:?})");
            violations.push(Violation::new(RESULTS, 0, what));
        }
    }
    for kind in ErrorType::ALL {
        if !document.contains(&format!("`{kind}`")) {
            violations.push(Violation::new(RESULTS, 0, format!("does not mention `{kind}`")));
        }
    }
    violations
}

/// Crates of a manifest's `workspace.dependencies` that `document` does not give a reason for.
fn unexplained(manifest: &str, document: &str) -> Vec<Violation> {
    let manifest: toml::Table = manifest.parse().expect("Cargo.toml is TOML");
    let crates = manifest["workspace"]["dependencies"].as_table().expect("a table").keys();
    let rows = |name: &str| {
        let name = format!("`{name}`");
        let first = |line: &str| line.split('|').nth(1).unwrap_or_default().contains(&name);
        document.lines().any(|line| line.starts_with('|') && first(line))
    };
    crates
        .filter(|name| !name.starts_with("rollout-") && !rows(name))
        .map(|name| Violation::new(CONTRIBUTING, 0, format!("no reason for the crate `{name}`")))
        .collect()
}

/// Relative links of a document to files that do not exist.
fn dead_links(source: &SourceFile) -> Vec<Violation> {
    let link = Regex::new(r"\]\(([^)#:]+)(#[^)]*)?\)").expect("a pattern");
    let directory = files::root().join(&source.path);
    let directory = directory.parent().expect("a file has a directory");
    let targets = link.captures_iter(&source.text).map(|found| found[1].to_owned());
    targets
        .filter(|target| !directory.join(target).exists())
        .map(|target| Violation::new(&source.path, 0, format!("`{target}` does not exist")))
        .collect()
}

fn document(path: &str) -> &'static SourceFile {
    files::all().iter().find(|source| source.path == path).expect("the document")
}

#[test]
fn exit_codes_and_error_types_are_documented() {
    assert_none(&undocumented(&document(RESULTS).text));
}

#[test]
fn dependencies_have_a_documented_reason() {
    let manifest = std::fs::read_to_string(files::root().join("Cargo.toml")).expect("Cargo.toml");
    assert_none(&unexplained(&manifest, &document(CONTRIBUTING).text));
}

#[test]
fn document_links_have_targets() {
    let documents = files::all().iter().filter(|source| source.path.ends_with(".md"));
    assert_none(&documents.flat_map(dead_links).collect::<Vec<_>>());
}

#[test]
fn documentation_violations_are_found() {
    let all = ExitCode::ALL.len() + ErrorType::ALL.len();
    assert_eq!(undocumented("").len(), all);
    assert_eq!(
        undocumented("| Code | |\n| `0` | fine |\n| 130 | x |\n`task_invalid`").len(),
        all - 3
    );
    let manifest = "[workspace.dependencies]\nrollout-x = {}\none = \"1\"\ntwo = \"2\"\n";
    assert_eq!(unexplained(manifest, "| `one` | why |\n| x | `two` |").len(), 1);
    let text = "[a](README.md) [b](none.md#x) [c](https://example.org) [d](#here)";
    assert_eq!(dead_links(&SourceFile::new("docs/x.md", text)).len(), 2);
}
