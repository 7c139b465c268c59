//! Size of the build, as far as it can be counted without a clock: crates, duplicate versions, test
//! programs, bytes of the program. A number that falls is lowered here; one that rises needs a reason
//! in the change that raises it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use rollout_tests::ignored::report_ignored;

use crate::{Violation, assert_none, files};

/// Packages of the default build of `rollout` on Linux, those of build scripts and macros included.
const PACKAGES: usize = 292;

/// Packages of which the default build has several versions, their number, and what needs the older ones.
const DUPLICATES: &[(&str, usize, &str)] = &[
    ("base64", 2, "async-nats, axum, bollard"),
    ("block-buffer", 2, "digest 0.10"),
    ("const-oid", 2, "der, for nkeys"),
    ("cpufeatures", 2, "curve25519-dalek and sha2 0.10, for nkeys"),
    ("crypto-common", 2, "digest 0.10"),
    ("digest", 2, "curve25519-dalek, sha2 0.10, signature, for nkeys"),
    ("getrandom", 3, "0.2: ring, rand_core 0.6; 0.3: ahash, for parquet"),
    ("hashbrown", 2, "imara-diff"),
    ("rand", 2, "nkeys and nuid, for async-nats"),
    ("rand_core", 2, "rand 0.8"),
    ("sha2", 2, "ed25519-dalek, for nkeys"),
    ("syn", 2, "macros"),
];

/// Those that only the build of all tests has, or has more versions of.
const DUPLICATES_OF_TESTS: &[(&str, usize, &str)] = &[
    ("foldhash", 2, "hashbrown 0.15"),
    ("lru", 2, "aws-sdk-s3"),
    ("rand", 3, "0.9: opentelemetry_sdk, tungstenite 0.29"),
    ("rand_chacha", 2, "rand 0.8, rand 0.9"),
    ("rand_core", 3, "rand 0.9"),
    ("sha1", 2, "axum and tungstenite 0.29, for the double of the Kubernetes API"),
    ("tokio-tungstenite", 2, "axum, for the double of the Kubernetes API"),
    ("tungstenite", 2, "tokio-tungstenite 0.29"),
];

/// Test programs of the workspace: five of `tests`, and the unit tests of twelve libraries.
const TEST_PROGRAMS: usize = 17;

/// Bytes of the default build's program on x86-64 Linux, which may be 5 % more.
const PROGRAM_BYTES: u64 = 46_000_000;

/// Output of cargo in the repository, offline.
fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--locked", "--offline"])
        .current_dir(files::root())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Versions of each package in a tree of `cargo tree --prefix none`.
fn versions(tree: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut versions: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for line in tree.lines() {
        let mut words = line.split(' ');
        if let (Some(name), Some(version)) = (words.next(), words.next()) {
            versions.entry(name).or_default().insert(version);
        }
    }
    versions
}

/// The tree of a build on Linux.
fn tree(of: &[&str]) -> String {
    let how = ["--target=x86_64-unknown-linux-gnu", "--prefix=none"];
    cargo(&[&["tree"], of, &how].concat())
}

/// The packages with several versions, and their number.
fn doubled<'a>(versions: &BTreeMap<&'a str, BTreeSet<&str>>) -> BTreeMap<&'a str, usize> {
    let numbers = versions.iter().map(|(name, of)| (*name, of.len()));
    numbers.filter(|(_, number)| *number > 1).collect()
}

#[test]
fn default_build_has_the_known_number_of_packages() {
    let tree = tree(&["--package=rollout-coordinator", "--edges=normal,build"]);
    let versions = versions(&tree);
    let known = DUPLICATES.iter().map(|(name, number, _)| (*name, *number)).collect();
    assert_eq!(doubled(&versions), known, "packages with several versions");
    assert_eq!(versions.values().map(BTreeSet::len).sum::<usize>(), PACKAGES, "packages");
}

#[test]
fn build_of_tests_has_the_known_duplicates() {
    let tree = tree(&["--workspace", "--edges=normal,build,dev"]);
    let known = DUPLICATES.iter().chain(DUPLICATES_OF_TESTS);
    let known = known.map(|(name, number, _)| (*name, *number)).collect();
    assert_eq!(doubled(&versions(&tree)), known, "packages with several versions");
}

#[test]
fn test_programs_are_few() {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version=1"]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).expect("JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    let targets =
        packages.iter().flat_map(|package| package["targets"].as_array().expect("a list"));
    let tested = targets.filter(|target| target["test"] == true);
    let names: Vec<_> = tested.map(|target| target["name"].as_str().expect("a name")).collect();
    assert_eq!(names.len(), TEST_PROGRAMS, "{names:?}");
}

/// Names of packages in the profiles of a manifest that are in no lock file.
fn unknown_packages(manifest: &str, lock: &str) -> Vec<Violation> {
    let manifest: toml::Table = manifest.parse().expect("Cargo.toml is TOML");
    let lock: toml::Table = lock.parse().expect("Cargo.lock is TOML");
    let locked = lock["package"].as_array().expect("a list");
    let locked: BTreeSet<_> =
        locked.iter().filter_map(|package| package["name"].as_str()).collect();
    let profiles = manifest["profile"].as_table().expect("a table").iter();
    let named = profiles.flat_map(|(profile, settings)| {
        let packages = settings.get("package").and_then(toml::Value::as_table);
        packages.into_iter().flat_map(|packages| packages.keys()).map(move |name| (profile, name))
    });
    named
        .filter(|(_, name)| *name != "*" && !locked.contains(name.as_str()))
        .map(|(profile, name)| {
            let what = format!("profile {profile} names `{name}`, which is no package");
            Violation::new("Cargo.toml", 0, what)
        })
        .collect()
}

#[test]
fn packages_of_profiles_exist() {
    let read = |name| fs::read_to_string(files::root().join(name)).expect(name);
    assert_none(&unknown_packages(&read("Cargo.toml"), &read("Cargo.lock")));
}

/// Profiles whose setting of `strip` does not hold for the package of the program.
fn lost_strip_settings(manifest: &str) -> Vec<Violation> {
    const PROGRAM: &str = "rollout-coordinator";
    let manifest: toml::Table = manifest.parse().expect("Cargo.toml is TOML");
    let profiles = manifest["profile"].as_table().expect("a table");
    let of_package = |profile: &str| profiles.get(profile)?.get("package")?.get(PROGRAM);
    let lost = |(profile, settings): (&String, &toml::Value)| {
        let strip = settings.get("strip")?;
        let inherited = || of_package(settings.get("inherits")?.as_str()?);
        let package = [of_package(profile), inherited()].into_iter().flatten();
        let mut package = package.peekable();
        package.peek()?;
        let of_program = package.find_map(|package| package.get("strip"));
        let what = format!("`{PROGRAM}` has not the `strip` of the profile {profile}");
        (of_program != Some(strip)).then(|| Violation::new("Cargo.toml", 0, what))
    };
    profiles.iter().filter_map(lost).collect()
}

#[test]
fn program_has_the_symbols_of_its_profile() {
    let manifest = fs::read_to_string(files::root().join("Cargo.toml")).expect("Cargo.toml");
    assert_none(&lost_strip_settings(&manifest));
}

/// `tests/run --extended` builds the program.
#[test]
fn program_has_the_known_size() {
    let program = std::env::var_os("ROLLOUT_TEST_RELEASE_PROGRAM");
    let Some(program) = program.filter(|program| program != "no") else {
        return report_ignored("needs a release build, named by ROLLOUT_TEST_RELEASE_PROGRAM");
    };
    let bytes = fs::metadata(program).expect("the program").len();
    assert!(
        bytes <= PROGRAM_BYTES * 105 / 100,
        "the program has {bytes} bytes, more than 5 % too many"
    );
    assert!(
        bytes >= PROGRAM_BYTES * 95 / 100,
        "the program has {bytes} bytes: lower PROGRAM_BYTES"
    );
}

#[test]
fn build_violations_are_found() {
    let found = versions("a v1.0.0\na v2.0.0 (proc-macro)\nb v1.0.0 (*)\nb v1.0.0\n");
    assert_eq!(found.values().map(BTreeSet::len).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(doubled(&found), BTreeMap::from([("a", 2)]));

    let lock = "[[package]]\nname = 'known'\nversion = '1.0.0'\n";
    let manifest =
        "[profile.dev.package]\n'*'.debug = false\nknown.opt-level = 1\nlost.opt-level = 1\n";
    assert_eq!(unknown_packages(manifest, lock).len(), 1);

    let release = "[profile.release]\nstrip = 'symbols'\n[profile.release.package]\n";
    let program = "rollout-coordinator = { opt-level = 2, strip = 'symbols' }\n";
    let dist = "[profile.dist]\ninherits = 'release'\nstrip = 'none'\n";
    let lost = |manifest: &[&str]| lost_strip_settings(&manifest.concat()).len();
    assert_eq!(lost(&[release, dist]), 0);
    assert_eq!(lost(&[release, "rollout-coordinator.opt-level = 2\n"]), 1);
    assert_eq!(lost(&[release, program]), 0);
    assert_eq!(lost(&[release, program, dist]), 1);
    let of_dist = "[profile.dist.package]\nrollout-coordinator.strip = 'none'\n";
    assert_eq!(lost(&[release, program, dist, of_dist]), 0);
}
