//! Rules on purity: no clock, randomness, task or IO in deterministic modules, no printing in
//! libraries, no permission to read this host for documents of others, no silenced tests or lints.

use regex::Regex;

use crate::files::SourceFile;
use crate::{Violation, assert_none, files};

/// Modules that must be pure: the protocol, and the deciding parts of the control plane.
const PURE: &[&str] = &[
    "protocol/src/",
    "coordinator/engine/src/core",
    "coordinator/src/plan",
    "coordinator/src/results/metrics",
    "coordinator/src/results/view/events",
    "coordinator/src/results/view/fold",
    "coordinator/src/results/view/run",
    "coordinator/src/results/view/sessions",
    "coordinator/src/results/view/trials",
    "coordinator/src/workloads/farm/core",
    "coordinator/src/workloads/farm/outcome",
    "coordinator/src/workloads/search/policy",
    "coordinator/src/workloads/search/score",
];

const IMPURE: &str = r"\b(Instant|SystemTime|rand::|tokio::|(Timestamp|Zoned)::now|std::(fs|net|env|thread|process)\b)|\buse std::\{[^}]*\b(fs|net|env|thread|process)\b";

/// Directories whose code may print.
const PRINTING: &[&str] = &["coordinator/src/cli/", "coordinator/src/bin/"];

fn matches(source: &SourceFile, code: &str, pattern: &str, what: &str) -> Vec<Violation> {
    let pattern = Regex::new(pattern).expect("a pattern");
    let violation = |at: regex::Match<'_>| {
        let line = code[..at.start()].matches('\n').count() + 1;
        Violation::new(&source.path, line, format!("{what}: `{}`", at.as_str()))
    };
    pattern.find_iter(code).map(violation).collect()
}

fn impure(source: &SourceFile) -> Vec<Violation> {
    if source.is_test() || !PURE.iter().any(|path| source.path.starts_with(path)) {
        return Vec::new();
    }
    matches(source, source.production_code(), IMPURE, "must be pure")
}

fn printing(source: &SourceFile) -> Vec<Violation> {
    if source.is_test() || PRINTING.iter().any(|path| source.path.starts_with(path)) {
        return Vec::new();
    }
    matches(source, source.production_code(), r"\be?print(ln)?!", "only the command line prints")
}

/// Where documents may name every file of this host: their authors start the program.
const HOST_READERS: &[&str] = &[
    "coordinator/src/cli/",
    "coordinator/src/config/elements/testing.rs",
    "coordinator/src/config/gateway_file.rs",
    "coordinator/src/config/resolve.rs",
    "coordinator/src/config/tree_file/options.rs",
    "coordinator/src/sources/check/",
];

fn host_reading(source: &SourceFile) -> Vec<Violation> {
    if source.is_test() || HOST_READERS.iter().any(|path| source.path.starts_with(path)) {
        return Vec::new();
    }
    let pattern = r"\bHostAccess::Everything\b|::for_command_line\b";
    let what = "only documents of the command line name every file of this host";
    matches(source, source.production_code(), pattern, what)
}

fn silenced(source: &SourceFile) -> Vec<Violation> {
    let code = &source.masked.code;
    let mut violations = matches(source, code, r"#\[ignore\b", "no test is ignored");
    violations.extend(matches(source, code, r"#!?\[allow\(", "use #[expect(…, reason)]"));
    violations
}

#[test]
fn core_modules_are_pure() {
    assert_none(&files::rust().flat_map(impure).collect::<Vec<_>>());
}

#[test]
fn library_code_does_not_print() {
    assert_none(&files::rust().flat_map(printing).collect::<Vec<_>>());
}

#[test]
fn only_command_line_documents_name_every_file_of_the_host() {
    assert_none(&files::rust().flat_map(host_reading).collect::<Vec<_>>());
}

#[test]
fn lints_are_not_silenced() {
    assert_none(&files::rust().flat_map(silenced).collect::<Vec<_>>());
}

/// Paths of rules that no source file has.
fn unmatched(paths: &[&str]) -> Vec<Violation> {
    let has_file = |path: &str| files::rust().any(|source| source.path.starts_with(path));
    let unmatched = paths.iter().filter(|path| !has_file(path));
    unmatched.map(|path| Violation::new(path, 0, "a rule names it, and no file has it")).collect()
}

#[test]
fn paths_of_purity_rules_have_files() {
    assert_none(&unmatched(&[PURE, PRINTING, HOST_READERS].concat()));
    assert_eq!(unmatched(&["coordinator/src/none/"]).len(), 1);
}

#[test]
fn purity_violations_are_found() {
    let at = |path, text| SourceFile::new(path, text);
    let core = "coordinator/engine/src/core/state.rs";
    for text in ["let t = Instant::now();", "use std::{io, fs};", "tokio::spawn(x);", "rand::rng()"]
    {
        assert_eq!(impure(&at(core, text)).len(), 1, "{text}");
    }
    assert_eq!(impure(&at(core, "// no Instant here\nlet s = \"tokio::\";")), []);
    assert_eq!(impure(&at(core, "let x = 1;\n#[cfg(test)]\nmod tests { use std::fs; }")), []);
    assert_eq!(impure(&at("coordinator/engine/src/event_loop/mod.rs", "tokio::select!")), []);
    assert_eq!(printing(&at("worker/src/x.rs", "println!(\"\")")).len(), 1);
    assert_eq!(printing(&at("coordinator/src/cli/output.rs", "println!(\"\")")), []);
    let reader = "let options = JobOptions::for_command_line(&is_set);";
    assert_eq!(host_reading(&at("coordinator/src/daemon/submit.rs", reader)).len(), 1);
    assert_eq!(host_reading(&at("coordinator/src/cli/run.rs", reader)), []);
    assert_eq!(silenced(&at("worker/src/x.rs", "#[ignore]\n#[allow(dead_code)]")).len(), 2);
}
