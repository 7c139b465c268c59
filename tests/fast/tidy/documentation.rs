//! Documents explain exit codes, error types and dependencies, and their links resolve.

use std::collections::BTreeSet;
use std::fs;

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

/// Relative links of a document to files or headings that do not exist.
fn dead_links(source: &SourceFile) -> Vec<Violation> {
    let link = Regex::new(r"\]\(([^)#:]*)(?:#([^)]*))?\)").expect("a pattern");
    let faults = link.captures_iter(&source.text).filter_map(|found| {
        let anchor = found.get(2).map(|anchor| anchor.as_str());
        dead_link(source, &found[1], anchor)
    });
    faults.map(|what| Violation::new(&source.path, 0, what)).collect()
}

/// The fault of a link to a file, or to the document itself if `target` is empty.
fn dead_link(source: &SourceFile, target: &str, anchor: Option<&str>) -> Option<String> {
    let own = files::root().join(&source.path);
    let file = own.parent().expect("a file has a directory").join(target);
    if !target.is_empty() && !file.exists() {
        return Some(format!("`{target}` does not exist"));
    }
    let anchor = anchor?;
    let text = match target {
        "" => source.text.clone(),
        _ if target.ends_with(".md") => fs::read_to_string(&file).expect("a readable document"),
        _ => return None,
    };
    (!anchors(&text).contains(anchor)).then(|| format!("`{target}` has no heading `#{anchor}`"))
}

/// The anchors of a document's headings. A repeated one gets a number, as on GitHub.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut found, mut in_code) = (BTreeSet::<String>::new(), false);
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if in_code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let first = slug(heading);
        let numbered = (1..).map(|n| format!("{first}-{n}"));
        let mut names = std::iter::once(first.clone()).chain(numbered);
        let free = names.find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

/// The anchor of a heading by GitHub's rule: lower case, no punctuation, hyphens for blanks.
fn slug(heading: &str) -> String {
    let text = heading.trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
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
    let manifest = fs::read_to_string(files::root().join("Cargo.toml")).expect("Cargo.toml");
    assert_none(&unexplained(&manifest, &document(CONTRIBUTING).text));
}

#[test]
fn document_links_have_targets() {
    let documents = files::all().iter().filter(|source| source.path.ends_with(".md"));
    assert_none(&documents.flat_map(dead_links).collect::<Vec<_>>());
}

#[test]
fn dashboard_shows_documented_metrics() {
    let dashboard = files::root().join("examples/grafana/rollout.json");
    let dashboard = std::fs::read_to_string(dashboard).expect("readable");
    let operations = document("docs/operations.md");
    let metric = Regex::new(r"\brollout_[a-z_]+").expect("a pattern");
    let mut seen = 0;
    for name in metric.find_iter(&dashboard).map(|found| found.as_str()) {
        let name = name.trim_end_matches("_bucket");
        assert!(operations.text.contains(&format!("`{name}`")), "{name} is not documented");
        seen += 1;
    }
    assert!(seen > 10, "{seen} metrics");
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
}

#[test]
fn dead_links_and_anchors_are_found() {
    let faults = |text| dead_links(&SourceFile::new("docs/x.md", text)).len();
    assert_eq!(faults("[a](README.md) [b](none.md#x) [c](https://example.org/#x)"), 2);
    assert_eq!(faults("[a](../README.md) [b](results.md#exit-codes) [c](results.md#none)"), 1);
    assert_eq!(faults("# The `--json` of 2 runs\n[a](#the---json-of-2-runs) [b](#json)"), 1);
    let headings = anchors("# A.\n```sh\n# comment\n```\n## a\n#no\n### It's A_b, c\n");
    assert_eq!(headings, BTreeSet::from(["a", "a-1", "its-a_b-c"].map(str::to_owned)));
}
