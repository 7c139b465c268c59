//! Rule on registration: every source file belongs to a module or a listed target.

use std::collections::BTreeSet;

use regex::Regex;

use crate::files::SourceFile;
use crate::{Violation, assert_none, files};

/// Whether a file is the root of a crate, by its name or by `tests/Cargo.toml`.
fn is_root(path: &str, listed: &BTreeSet<String>) -> bool {
    ["lib.rs", "main.rs", "build.rs"].iter().any(|name| path.ends_with(&format!("/src/{name}")))
        || path.contains("/src/bin/")
        || listed.contains(path)
}

/// Paths of all targets and of the build script in `tests/Cargo.toml`, relative to the repository.
fn listed(manifest: &str) -> BTreeSet<String> {
    let manifest: toml::Table = manifest.parse().expect("tests/Cargo.toml is TOML");
    let script = manifest.get("package").and_then(|package| package.get("build"));
    let path = |path: &toml::Value| format!("tests/{}", path.as_str().expect("a path"));
    ["bin", "test", "bench"]
        .iter()
        .filter_map(|kind| manifest.get(*kind)?.as_array())
        .flatten()
        .chain(manifest.get("lib"))
        .map(|target| &target["path"])
        .chain(script)
        .map(path)
        .collect()
}

/// Files that may declare a file's `mod name;`.
fn parents(path: &str) -> Vec<String> {
    let path = path.strip_suffix("/mod.rs").or_else(|| path.strip_suffix(".rs")).unwrap_or(path);
    let Some((directory, _)) = path.rsplit_once('/') else { return Vec::new() };
    let mut parents: Vec<_> =
        ["mod.rs", "lib.rs", "main.rs"].map(|name| format!("{directory}/{name}")).into();
    parents.push(format!("{directory}.rs"));
    parents
}

fn orphans(sources: &[SourceFile], listed: &BTreeSet<String>) -> Vec<Violation> {
    let orphan = |source: &&SourceFile| {
        let stem = source.path.strip_suffix("/mod.rs").unwrap_or(&source.path);
        let name = stem.rsplit('/').next().unwrap_or(stem).trim_end_matches(".rs");
        let declaration = Regex::new(&format!(r"\bmod {name};")).expect("a pattern");
        !parents(&source.path).iter().any(|parent| {
            sources.iter().any(|s| s.path == *parent && declaration.is_match(&s.masked.code))
        })
    };
    let rust = sources.iter().filter(|s| s.is_rust() && !is_root(&s.path, listed));
    rust.filter(orphan)
        .map(|s| Violation::new(&s.path, 0, "no module or target names it"))
        .collect()
}

fn absent(sources: &[SourceFile], listed: &BTreeSet<String>) -> Vec<Violation> {
    let exists = |path: &String| sources.iter().any(|source| source.path == *path);
    let missing = listed.iter().filter(|path| !exists(path));
    missing
        .map(|path| Violation::new("tests/Cargo.toml", 0, format!("{path} is missing")))
        .collect()
}

/// Folders whose targets have `test = false`.
const WITHOUT_TESTS: &[&str] = &["tests/harness/", "tests/bin/", "tests/bench/"];

/// Tests that no test program has.
fn stray_tests(source: &SourceFile) -> Option<Violation> {
    let is_without = WITHOUT_TESTS.iter().any(|folder| source.path.starts_with(folder));
    let test = Regex::new(r"#\[(tokio::)?test\b").expect("a pattern");
    (is_without && test.is_match(&source.masked.code))
        .then(|| Violation::new(&source.path, 0, "no test program runs its tests"))
}

#[test]
fn tests_are_all_run() {
    assert_none(&files::rust().filter_map(stray_tests).collect::<Vec<_>>());
}

#[test]
fn source_files_are_all_compiled() {
    let manifest = files::all().iter().find(|source| source.path == "tests/Cargo.toml");
    let listed = listed(&manifest.expect("tests/Cargo.toml").text);
    assert!(listed.contains("tests/fast/tidy/main.rs"), "{listed:?}");
    assert_none(&orphans(files::all(), &listed));
    assert_none(&absent(files::all(), &listed));
}

#[test]
fn registration_violations_are_found() {
    let listed = listed(
        "[package]\nbuild = 'build.rs'\n\
         [[test]]\npath = 'real/main.rs'\n[[test]]\npath = 'gone/main.rs'\n",
    );
    let sources = [
        SourceFile::new("worker/src/lib.rs", "mod a;\nmod d; // mod c;"),
        SourceFile::new("worker/src/a.rs", "mod b;"),
        SourceFile::new("worker/src/a/b.rs", ""),
        SourceFile::new("worker/src/d/mod.rs", ""),
        SourceFile::new("worker/src/c.rs", ""),
        SourceFile::new("tests/build.rs", ""),
        SourceFile::new("tests/real/main.rs", "mod e2e;"),
        SourceFile::new("tests/real/e2e/mod.rs", ""),
        SourceFile::new("tests/other/main.rs", ""),
    ];
    let orphans = orphans(&sources, &listed);
    let paths: Vec<_> = orphans.iter().map(|violation| violation.path.as_str()).collect();
    assert_eq!(paths, ["worker/src/c.rs", "tests/other/main.rs"]);
    assert_eq!(absent(&sources, &listed).len(), 1);

    let is_stray = |path, text| stray_tests(&SourceFile::new(path, text)).is_some();
    assert!(is_stray("tests/harness/kube/quantity.rs", "#[test]\nfn f() {}"));
    assert!(is_stray("tests/bin/rollout/main.rs", "#[tokio::test(flavor = \"x\")]\n"));
    assert!(!is_stray("tests/fast/harness/quantity.rs", "#[test]\nfn f() {}"));
}
