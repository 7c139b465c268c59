//! Rules on imports between modules: the layers of the coordinator, with its engine, and the worker.

use std::collections::BTreeSet;

use crate::files::SourceFile;
use crate::{Violation, assert_none, files};

/// A module with the other modules that it may import from. The most specific rule for a file
/// applies; a module may always import from itself.
type LayerRule = (&'static str, &'static [&'static str]);

/// The coordinator's modules, lowest first. A rule names modules of earlier rules only, so modules
/// form no cycle. `engine` is a crate of its own.
const COORDINATOR: &[LayerRule] = &[
    ("config", &[]),
    ("https", &[]),
    ("providers", &[]),
    ("sources", &["config", "https", "providers"]),
    ("plan", &["config", "sources"]),
    ("engine::core", &[]),
    ("engine", &["engine::core"]),
    ("results", &["plan", "engine::journal"]),
    ("results::view", &["plan", "engine", "results"]),
    ("events", &["results"]),
    ("workloads", &["config", "sources", "plan", "engine", "results"]),
    ("serve", &[]),
    ("traces", &["config", "https"]),
    (
        "launch",
        &["config", "providers", "sources", "plan", "engine", "results", "events", "workloads"],
    ),
    ("executor", &["plan", "engine", "results", "events", "workloads", "launch"]),
    ("bench", &["config", "sources", "plan", "engine", "results", "events", "workloads", "launch"]),
    (
        "daemon",
        &[
            "config",
            "sources",
            "plan",
            "engine",
            "results",
            "events",
            "workloads",
            "launch",
            "executor",
        ],
    ),
    ("api", &["results", "serve", "executor", "daemon"]),
    (
        "cli",
        &[
            "config",
            "https",
            "providers",
            "sources",
            "plan",
            "engine",
            "results",
            "events",
            "workloads",
            "launch",
            "bench",
            "serve",
            "traces",
            "daemon",
            "api",
        ],
    ),
    ("bin", &["cli"]),
];

/// The worker's modules, lowest layer first. A module imports from its own layer and lower ones.
const WORKER: &[&[&str]] =
    &[&["workspace_diff"], &["disk", "executor", "verifier"], &["spool", "work"], &["service"]];

/// Modules for tests, which may import everything.
const TESTING: &[&str] = &["testing", "contract"];

/// The module of a source file below `root`, such as `engine::core`; `None` for other files, test
/// code and the crate's root.
fn module(source: &SourceFile, root: &str) -> Option<String> {
    let path = source.path.strip_prefix(root)?.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let is_testing = path.split('/').any(|part| TESTING.contains(&part));
    (path != "lib" && !source.is_test() && !is_testing).then(|| path.replace('/', "::"))
}

/// Root of the engine's crate.
const ENGINE: &str = "coordinator/engine/src/";

/// The coordinator's module of a source file: a file of the engine's crate is below `engine`.
fn coordinator_module(source: &SourceFile) -> Option<String> {
    if source.path == format!("{ENGINE}lib.rs") {
        return Some("engine".to_owned());
    }
    let of_engine = module(source, ENGINE).map(|module| format!("engine::{module}"));
    of_engine.or_else(|| module(source, "coordinator/src/"))
}

/// Whether `path` is `module` or inside it.
fn is_in(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The imports of production code from its own crate and from the engine's, as paths from the crate's
/// root, with lines. The root of the engine's crate is `engine`.
fn imports(source: &SourceFile, module: &str) -> Vec<(usize, String)> {
    let code = source.production_code();
    let mut found = Vec::new();
    let root: &[&str] = if source.path.starts_with(ENGINE) { &["engine"] } else { &[] };
    for start in ["crate::", "super::", "rollout_engine::"] {
        for (at, _) in code.match_indices(start) {
            let before = &code[..at];
            let is_inside = |c: char| {
                c.is_alphanumeric() || c == '_' || (c == ':' && start != "rollout_engine::")
            };
            // A path to a crate may begin with `::`.
            if before.ends_with(is_inside) {
                continue;
            }
            let mut rest = &code[at..];
            let mut base: Vec<&str> = Vec::new();
            if let Some(after) = rest.strip_prefix("crate::") {
                base.extend(root);
                rest = after;
            } else if let Some(after) = rest.strip_prefix("rollout_engine::") {
                base.push("engine");
                rest = after;
            } else {
                base.extend(module.split("::"));
                while let Some(after) = rest.strip_prefix("super::") {
                    base.pop();
                    rest = after;
                }
            }
            let line = before.matches('\n').count() + 1;
            let mut paths = Vec::new();
            expand(&base.join("::"), rest, &mut paths);
            found.extend(paths.into_iter().map(|path| (line, path)));
        }
    }
    found
}

/// The lines of production code that name the engine's crate without a path inside it: another name for it, or
/// a plain import, hides from [`imports`] which of its modules are used.
fn whole_engine_imports(source: &SourceFile) -> Vec<usize> {
    let code = source.production_code();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let each = code.match_indices("rollout_engine").filter(|(at, name)| {
        let after = &code[at + name.len()..];
        !code[..*at].ends_with(is_word) && !after.starts_with(is_word) && !after.starts_with("::")
    });
    each.map(|(at, _)| code[..at].matches('\n').count() + 1).collect()
}

/// Adds the paths of a use tree that begins at `text` below `base`. Returns the length of the tree.
fn expand(base: &str, text: &str, paths: &mut Vec<String>) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut base = base.to_owned();
    let mut at = 0;
    loop {
        let rest = &text[at..];
        if rest.starts_with('{') {
            at += 1;
            while at < text.len() && !text[at..].starts_with('}') {
                let skipped =
                    text[at..].len() - text[at..].trim_start_matches([' ', '\n', ',']).len();
                at += skipped;
                if skipped == 0 || !text[at..].starts_with('}') {
                    at += expand(&base, &text[at..], paths).max(1);
                }
            }
            return at + 1;
        }
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let word = &rest[..length];
        at += length;
        if !word.is_empty() && word != "self" {
            base = if base.is_empty() { word.to_owned() } else { format!("{base}::{word}") };
        }
        let Some(after) = text[at..].strip_prefix("::") else { break };
        at = text.len() - after.len();
    }
    paths.push(base);
    // A renamed import ends before the comma or the brace.
    at + text[at..].find([',', '}', ';', '\n']).unwrap_or(0)
}

/// The imports of a source of the coordinator that its rules do not allow.
fn coordinator(source: &SourceFile) -> Vec<Violation> {
    let Some(module) = coordinator_module(source) else { return Vec::new() };
    let rules = COORDINATOR;
    let rule = rules.iter().filter(|(name, _)| is_in(&module, name)).max_by_key(|r| r.0.len());
    let Some((own, allowed)) = rule else {
        let what = format!("the module `{module}` is in no layer");
        return vec![Violation::new(&source.path, 0, what)];
    };
    let whole = whole_engine_imports(source).into_iter().map(|line| {
        let what = "`rollout_engine` must be used by paths inside it, under its own name";
        Violation::new(&source.path, line, what.to_owned())
    });
    let is_known = |path: &str| rules.iter().any(|(name, _)| is_in(path, name));
    let is_allowed =
        |path: &str| is_in(path, own) || allowed.iter().any(|allowed| is_in(path, allowed));
    let imports = imports(source, &module).into_iter();
    let forbidden = imports.filter(|(_, path)| is_known(path) && !is_allowed(path));
    let forbidden = forbidden.map(|(line, path)| {
        let what = format!("`{own}` must not import `{path}`");
        Violation::new(&source.path, line, what)
    });
    forbidden.chain(whole).collect()
}

/// Imports of the worker's modules from higher layers.
fn worker(source: &SourceFile) -> Vec<Violation> {
    let Some(module) = module(source, "worker/src/") else { return Vec::new() };
    let layer = |path: &str| {
        let top = path.split("::").next().unwrap_or(path);
        WORKER.iter().position(|modules| modules.contains(&top))
    };
    let Some(own) = layer(&module) else {
        let what = format!("the module `{module}` is in no layer");
        return vec![Violation::new(&source.path, 0, what)];
    };
    imports(source, &module)
        .into_iter()
        .filter(|(_, path)| layer(path).is_some_and(|other| other > own))
        .map(|(line, path)| {
            Violation::new(&source.path, line, format!("`{module}` must not import `{path}`"))
        })
        .collect()
}

/// The imports between top-level modules of a crate.
fn edges(sources: &[&SourceFile], root: &str) -> BTreeSet<(String, String)> {
    let top = |path: &str| path.split("::").next().unwrap_or(path).to_owned();
    let modules: Vec<_> =
        sources.iter().filter_map(|source| Some((*source, module(source, root)?))).collect();
    let tops: BTreeSet<_> = modules.iter().map(|(_, module)| top(module)).collect();
    let edge = |(source, module): &(&SourceFile, String)| {
        let imports = imports(source, module).into_iter();
        let edges = imports.map(|(_, path)| (top(module), top(&path)));
        edges.filter(|(own, other)| own != other && tops.contains(other)).collect::<Vec<_>>()
    };
    modules.iter().flat_map(edge).collect()
}

/// Top-level modules of a crate that import one another, directly or through others.
fn circles(sources: &[&SourceFile], root: &str) -> Vec<Violation> {
    let edges = edges(sources, root);
    let reaches = |from: &str, to: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(at) = open.pop() {
            for (_, next) in edges.iter().filter(|(own, _)| own == at) {
                if next == to {
                    return true;
                }
                if seen.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
        false
    };
    let found = edges.iter().filter(|(a, b)| reaches(b, a));
    let violation = |a, b| Violation::new(root, 0, format!("`{a}` and `{b}` import one another"));
    found.map(|(a, b)| violation(a, b)).collect()
}

#[test]
fn top_level_modules_form_no_cycle() {
    let sources: Vec<_> = files::rust().collect();
    // The coordinator's rules form none, see `layer_rules_form_no_cycle`.
    for root in [
        "protocol/src/",
        "worker/base/src/",
        "worker/queue/src/",
        "worker/store/src/",
        "worker/environment/src/",
        "worker/process/src/",
        "worker/gateway/src/",
        "worker/src/",
    ] {
        assert_none(&circles(&sources, root));
    }
}

#[test]
fn coordinator_imports_follow_layers() {
    assert_none(&files::rust().flat_map(coordinator).collect::<Vec<_>>());
}

#[test]
fn worker_imports_follow_layers() {
    assert_none(&files::rust().flat_map(worker).collect::<Vec<_>>());
}

#[test]
fn layer_rules_form_no_cycle() {
    for (index, (module, allowed)) in COORDINATOR.iter().enumerate() {
        for other in *allowed {
            let is_earlier = |rule: &LayerRule| is_in(other, rule.0) || is_in(rule.0, other);
            assert!(COORDINATOR[..index].iter().any(is_earlier), "{module} -> {other}");
        }
    }
}

#[test]
fn layer_violations_are_found() {
    let at = |path: &str, text: &str| SourceFile::new(path, text);
    let count = |path: &str, text: &str| coordinator(&at(path, text)).len();
    let core = "coordinator/engine/src/core/claim.rs";
    let config = "coordinator/src/config/fields.rs";
    assert_eq!(count(config, "use rollout_engine::Planner;"), 1);
    assert_eq!(count(config, "let x = crate::{results::view::{A, B as C}, plan};"), 3);
    assert_eq!(count(config, "use rollout_engine::{core::{A, B as C}, Planner};"), 3);
    let launch = "coordinator/src/launch/host.rs";
    for whole in [
        "use rollout_engine as e;",
        "use rollout_engine;",
        "pub(crate) use rollout_engine as engine;",
        "extern crate rollout_engine as e;",
        "use {rollout_engine as e, std::fs};",
    ] {
        assert_eq!((count(config, whole), count(launch, whole)), (1, 1), "{whole}");
    }
    assert_eq!(count(launch, "use rollout_engine::{Planner, core};\nlet rollout_engines = 1;"), 0);
    assert_eq!(count(config, "use ::rollout_engine::Planner;"), 1);
    assert_eq!(count(config, "use super::{problem, tree};\nuse crate::config::Job;"), 0);
    assert_eq!(count(config, "use super::super::plan::{\n    JobPlan,\n};"), 1);
    assert_eq!(count(config, "// crate::plan\nlet s = \"crate::plan\";"), 0);
    assert_eq!(count(config, "fn f() {}\n#[cfg(test)]\nmod tests { use crate::cli; }"), 0);
    assert_eq!(count(config, "mod x;\n#[cfg(test)]\nmod tests;\nuse crate::cli;"), 1);
    assert_eq!(count("coordinator/src/config/tests.rs", "use crate::cli;"), 0);
    assert_eq!(count(core, "use super::super::journal::Layout;\nuse super::row::Row;"), 1);
    assert_eq!(count(core, "use crate::{core::row::Row, journal::Layout};"), 1);
    assert_eq!(count("coordinator/engine/src/open.rs", "use super::core::Core;"), 0);
    assert_eq!(count("coordinator/engine/src/lib.rs", "use crate::core::Core;"), 0);
    assert_eq!(
        count(
            "coordinator/src/results/export/source.rs",
            "use rollout_engine::{\n    journal::Layout, Manifest};"
        ),
        1
    );
    assert_eq!(count("coordinator/src/unknown/mod.rs", ""), 1);
    assert_eq!(count("coordinator/src/workloads/search/x.rs", "use crate::launch::host;"), 1);

    let [a, b, c] = [("a", "use crate::b;"), ("b/x", "use crate::c::X;"), ("c", "use super::a;")]
        .map(|(name, text)| at(&format!("worker/src/{name}.rs"), text));
    let root = "worker/src/";
    assert_eq!(circles(&[&a, &b], root), []);
    assert_eq!(circles(&[&a, &b, &c], root).len(), 3);

    assert_eq!(worker(&at("worker/src/spool/mod.rs", "use crate::service::Worker;")).len(), 1);
    assert_eq!(worker(&at("worker/src/service/mod.rs", "use crate::{spool, work::trial};")), []);
    assert_eq!(worker(&at("worker/src/spool/testing/x.rs", "use crate::service::Worker;")), []);
    assert_eq!(worker(&at("worker/src/unknown.rs", "")).len(), 1);
}
