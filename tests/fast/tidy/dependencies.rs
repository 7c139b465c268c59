//! Rules on dependencies: direction between the workspace's crates, and banned crates.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::{Violation, assert_none, files};

/// The workspace's crates with those that they may use:
/// `protocol <- base <- queue, store <- environment <- gateway <- worker <- coordinator <- tests`,
/// `queue, store <- engine <- coordinator`, and `environment <- docker, process, kubernetes <- coordinator`.
const DIRECTION: &[(&str, &[&str])] = &[
    ("rollout-protocol", &[]),
    ("rollout-base", &["rollout-protocol"]),
    ("rollout-queue", &["rollout-protocol", "rollout-base"]),
    ("rollout-store", &["rollout-protocol", "rollout-base"]),
    ("rollout-environment", &["rollout-protocol", "rollout-base", "rollout-store"]),
    ("rollout-docker", &["rollout-protocol", "rollout-base", "rollout-environment"]),
    (
        "rollout-process",
        &["rollout-protocol", "rollout-base", "rollout-store", "rollout-environment"],
    ),
    ("rollout-kubernetes", &["rollout-protocol", "rollout-base", "rollout-environment"]),
    ("rollout-gateway", &["rollout-protocol", "rollout-base", "rollout-environment"]),
    (
        "rollout-worker",
        &[
            "rollout-protocol",
            "rollout-base",
            "rollout-queue",
            "rollout-store",
            "rollout-environment",
            "rollout-gateway",
        ],
    ),
    ("rollout-engine", &["rollout-protocol", "rollout-base", "rollout-queue", "rollout-store"]),
    (
        "rollout-coordinator",
        &[
            "rollout-protocol",
            "rollout-base",
            "rollout-queue",
            "rollout-store",
            "rollout-environment",
            "rollout-docker",
            "rollout-process",
            "rollout-kubernetes",
            "rollout-gateway",
            "rollout-worker",
            "rollout-engine",
        ],
    ),
    (
        "rollout-tests",
        &[
            "rollout-protocol",
            "rollout-base",
            "rollout-queue",
            "rollout-store",
            "rollout-environment",
            "rollout-docker",
            "rollout-process",
            "rollout-kubernetes",
            "rollout-gateway",
            "rollout-worker",
            "rollout-engine",
            "rollout-coordinator",
        ],
    ),
];

/// Dependencies between the workspace's crates that `DIRECTION` forbids, development dependencies
/// included.
fn direction(crates: &BTreeMap<String, Vec<String>>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (name, dependencies) in crates {
        let Some((_, allowed)) = DIRECTION.iter().find(|(known, _)| known == name) else {
            violations.push(Violation::new("Cargo.toml", 0, format!("unknown member {name}")));
            continue;
        };
        for dependency in dependencies {
            if DIRECTION.iter().any(|(ours, _)| ours == dependency)
                && !allowed.contains(&dependency.as_str())
            {
                let what = format!("{name} must not depend on {dependency}");
                violations.push(Violation::new("Cargo.toml", 0, what));
            }
        }
    }
    violations
}

/// Permissions in `DIRECTION` of which no dependency makes use: a crate could take one up unseen.
fn unused_permissions(crates: &BTreeMap<String, Vec<String>>) -> Vec<Violation> {
    let unused = |(name, allowed): &(&str, &[&'static str])| {
        let used = crates.get(*name).cloned().unwrap_or_default();
        let unused = allowed.iter().filter(|other| !used.iter().any(|on| on == *other));
        let what = unused.map(|other| format!("{name} may depend on {other}, but does not"));
        what.map(|what| Violation::new("Cargo.toml", 0, what)).collect::<Vec<_>>()
    };
    DIRECTION.iter().filter(|(name, _)| crates.contains_key(*name)).flat_map(unused).collect()
}

/// Packages of a lock file that the `bans.deny` list of a cargo-deny configuration forbids.
fn banned(lock: &str, configuration: &str) -> Vec<Violation> {
    let lock: toml::Table = lock.parse().expect("Cargo.lock is TOML");
    let configuration: toml::Table = configuration.parse().expect(".deny.toml is TOML");
    let text = |table: &toml::Value, key: &str| table[key].as_str().expect("text").to_owned();
    let list = |value: &toml::Value| value.as_array().expect("a list").clone();
    let mut violations = Vec::new();
    for package in list(&lock["package"]) {
        let (name, version) = (text(&package, "name"), text(&package, "version"));
        for ban in list(&configuration["bans"]["deny"]) {
            if forbids(&text(&ban, "crate"), &name, &version) {
                let what = format!("{name} {version} is banned: {}", text(&ban, "reason"));
                violations.push(Violation::new("Cargo.lock", 0, what));
            }
        }
    }
    violations
}

/// Whether `ban`, a `name` or `name@<VERSION`, forbids a package.
fn forbids(ban: &str, name: &str, version: &str) -> bool {
    match ban.split_once("@<") {
        None => ban == name,
        Some((banned, first_allowed)) => banned == name && parts(version) < parts(first_allowed),
    }
}

fn parts(version: &str) -> Vec<u64> {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    release.split('.').map(|part| part.parse().expect("a number")).collect()
}

#[test]
fn crate_dependencies_point_one_way() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--no-deps", "--format-version", "1"])
        .current_dir(files::root())
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let name = |value: &serde_json::Value| value["name"].as_str().expect("a name").to_owned();
    let list = |value: &serde_json::Value| value.as_array().expect("a list").clone();
    let crates: BTreeMap<_, _> = list(&metadata["packages"])
        .iter()
        .map(|package| (name(package), list(&package["dependencies"]).iter().map(name).collect()))
        .collect();
    assert_eq!(crates.len(), DIRECTION.len(), "{crates:?}");
    assert_none(&direction(&crates));
    assert_none(&unused_permissions(&crates));
}

#[test]
fn banned_crates_are_absent() {
    let read = |name| fs::read_to_string(files::root().join(name)).expect(name);
    assert_none(&banned(&read("Cargo.lock"), &read(".deny.toml")));
}

/// Packages that only a feature of the coordinator brings in: clients of services, and providers.
const OPTIONAL: &[&str] = &[
    "async-nats",
    "aws-sdk-s3",
    "bollard",
    "rollout-docker",
    "rollout-kubernetes",
    "rollout-process",
];

/// Packages among `OPTIONAL` in a tree of `cargo tree --prefix none`.
fn optional(tree: &str) -> Vec<&'static str> {
    let has = |name: &&&str| tree.lines().any(|line| line.split(' ').next() == Some(name));
    OPTIONAL.iter().filter(has).copied().collect()
}

#[test]
fn coordinator_without_features_has_no_clients_of_services_and_no_provider() {
    let tree = |features: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--offline", "-p", "rollout-coordinator", "-e", "normal"])
            .args(["--prefix", "none", "--no-default-features"])
            .args(features)
            .current_dir(files::root())
            .output()
            .expect("cargo tree");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    assert_eq!(optional(&tree(&[])), Vec::<&str>::new());
    assert_eq!(optional(&tree(&["--features", "docker,kubernetes,nats,process,s3"])), OPTIONAL);
}

#[test]
fn dependency_violations_are_found() {
    let crates = [("rollout-engine", "rollout-coordinator"), ("rollout-new", "serde")];
    let crates = crates.map(|(name, on)| (name.to_owned(), vec![on.to_owned()])).into();
    assert_eq!(direction(&crates).len(), 2);
    let queue = |on: &[&str]| {
        let on: Vec<String> = on.iter().map(|&name| name.to_owned()).collect();
        unused_permissions(&[("rollout-queue".to_owned(), on)].into()).len()
    };
    assert_eq!(
        (queue(&["rollout-base", "serde"]), queue(&["rollout-protocol", "rollout-base"])),
        (1, 0)
    );

    let found = |ban, name, version| {
        let lock = format!("[[package]]\nname='{name}'\nversion='{version}'\n");
        let configuration = format!("[bans]\ndeny=[{{crate='{ban}', reason='x'}}]\n");
        banned(&lock, &configuration).len()
    };
    assert_eq!((found("backoff", "backoff", "0.4.0"), found("backoff", "backon", "1.0.0")), (1, 0));
    assert_eq!((found("h2@<0.4", "h2", "0.3.27"), found("h2@<0.4", "h2", "0.4.0")), (1, 0));
    assert_eq!(
        (found("tar@<0.4.45", "tar", "0.4.9"), found("tar@<0.4.45", "tar", "0.4.46")),
        (1, 0)
    );
}
