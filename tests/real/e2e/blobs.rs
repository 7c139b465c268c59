//! `rollout blob`, and `rollout gc --store` in stores that several runs share.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rollout_protocol::digest::Digest;
use rollout_protocol::exit::ExitCode;
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;
use rollout_tests::results::Results;
use rollout_tests::wait;
use serde_json::Value;

use crate::e2e::{DEADLINE, assert_adds_up, project};

/// The store of all runs of a project.
const STORE: &str = "jobs/.rollout/blobs";

/// A project with two finished runs of one job, `one` and `two`.
fn two_runs() -> Project {
    let project = project()
        .tasks(["slow/second"], &[])
        .job("slow.yaml", &[("PROVIDER", "process"), ("ATTEMPTS", "2")]);
    for name in ["one", "two"] {
        let _ended = run(&project, &["run", "job.yaml", "--name", name]);
    }
    project
}

fn run(project: &Project, arguments: &[&str]) -> ProgramExit {
    project.rollout(arguments).wait(DEADLINE).expect_code(ExitCode::Success)
}

fn gc(project: &Project, more: &[&str], code: ExitCode) -> ProgramExit {
    let arguments = [&["gc", "--store", STORE], more].concat();
    project.rollout(&arguments).wait(DEADLINE).expect_code(code)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn files_below(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type().expect("a type").is_dir() {
            true => found.extend(files_below(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

/// The digests of all blobs of the store.
fn stored(project: &Project) -> BTreeSet<String> {
    let blobs = project.path().join(STORE).join("blobs");
    let names = files_below(&blobs).into_iter().map(|path| {
        let hex: String =
            path.strip_prefix(&blobs).expect("below").to_string_lossy().replace('/', "");
        format!("sha256:{hex}")
    });
    names.collect()
}

fn blob_path(project: &Project, digest: &str) -> std::path::PathBuf {
    let hex = digest.strip_prefix("sha256:").expect("a digest");
    project.path().join(STORE).join("blobs").join(&hex[..2]).join(&hex[2..])
}

/// Digests in a text, by another method than the program's.
fn digests_in(bytes: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(bytes);
    let pattern = regex::Regex::new("sha256:[0-9a-f]{64}").expect("a pattern");
    pattern.find_iter(&text).map(|found| found.as_str().to_owned()).collect()
}

/// The stored blobs that any file of a run names, trial directories included, and those that these
/// blobs name.
fn named_by(project: &Project, results: &Results) -> BTreeSet<String> {
    let stored = stored(project);
    let mut found = BTreeSet::new();
    for path in files_below(results.path()) {
        // A run in progress replaces files.
        found.extend(digests_in(&fs::read(path).unwrap_or_default()));
    }
    found.retain(|digest| stored.contains(digest));
    let documents: Vec<_> = found.iter().map(|digest| blob_path(project, digest)).collect();
    for path in documents {
        found.extend(digests_in(&fs::read(path).expect("readable")));
    }
    found.retain(|digest| stored.contains(digest));
    found
}

fn export(project: &Project, name: &str) -> String {
    run(project, &["export", &format!("jobs/{name}"), "--format", "jsonl"]).stdout
}

/// Makes every blob look as if it was stored three days ago.
fn set_back(project: &Project) {
    let then = SystemTime::now() - Duration::from_secs(3 * 24 * 60 * 60);
    for digest in stored(project) {
        let file = fs::File::open(blob_path(project, &digest)).expect("a blob");
        file.set_modified(then).expect("set");
    }
}

/// Puts a blob into the store that no file names, two hours old. Returns its digest.
fn add_unnamed_blob(project: &Project) -> String {
    let digest = Digest::sha256(b"unnamed").to_string();
    let path = blob_path(project, &digest);
    fs::create_dir_all(path.parent().expect("below the store")).expect("made");
    fs::write(&path, "unnamed").expect("written");
    let file = fs::File::open(&path).expect("a blob");
    file.set_modified(SystemTime::now() - Duration::from_secs(2 * 60 * 60)).expect("set");
    digest
}

/// Fails unless everything that a run names is stored and good, and its results can be written
/// again.
fn assert_whole(project: &Project, name: &str, trials: u64) {
    let verified = run(project, &["blob", "verify", "--run", &format!("jobs/{name}"), "--json"]);
    let verified = json(&verified.stdout);
    assert_eq!(verified["problems"], Value::Array(Vec::new()));
    let results = project.results(name);
    let named = named_by(project, &results).len() as u64;
    assert!(verified["blobs"].as_u64() >= Some(named), "{named} are named: {verified}");
    for trial in results.trials() {
        fs::remove_dir_all(trial.directory).expect("removable");
    }
    let _again = run(project, &["run", "job.yaml", "--name", name]);
    assert_adds_up(&results, trials);
    assert_eq!(results.trial_count() as u64, trials);
}

#[test]
fn gc_after_removed_run_collects_exactly_its_unshared_blobs() {
    let project = two_runs();
    let (one, two) = (project.results("one"), project.results("two"));
    let (before, exported) = (stored(&project), export(&project, "two"));
    let kept = gc(&project, &["--grace", "0", "--json"], ExitCode::Success);
    assert_eq!(json(&kept.stdout)["removed"]["blobs"], 0, "both runs need theirs: {}", kept.stdout);
    assert_eq!(stored(&project), before);

    let needed = named_by(&project, &two);
    let unshared: BTreeSet<_> = named_by(&project, &one).difference(&needed).cloned().collect();
    assert!(unshared.len() >= 2 && !needed.is_empty(), "{unshared:?}");
    fs::remove_dir_all(one.path()).expect("removable");
    let refused = gc(&project, &["--grace", "0"], ExitCode::Config);
    for text in ["jobs/one (run ", "missing, removed or moved", "--force"] {
        assert!(refused.stderr.contains(text), "no {text:?} in {}", refused.stderr);
    }
    let young = gc(&project, &["--force", "--dry-run", "--json"], ExitCode::Success);
    let young = json(&young.stdout);
    assert_eq!(young["young"]["blobs"].as_u64(), Some(unshared.len() as u64), "{young}");
    let dry = gc(&project, &["--force", "--dry-run", "--grace", "0"], ExitCode::Success);
    assert!(
        dry.stdout.contains(&format!("would remove {} blobs", unshared.len())),
        "{}",
        dry.stdout
    );
    assert_eq!(stored(&project), before);

    let collected = gc(&project, &["--force", "--grace", "0", "--json"], ExitCode::Success);
    let expected: BTreeSet<_> = before.difference(&unshared).cloned().collect();
    assert_eq!(stored(&project), expected);
    let collected = json(&collected.stdout);
    assert_eq!(collected["removed_runs"].as_array().map(Vec::len), Some(1), "{collected}");
    assert_eq!(export(&project, "two"), exported);
    assert_whole(&project, "two", 2);
    let _again = gc(&project, &[], ExitCode::Success);

    fs::remove_dir_all(two.path()).expect("removable");
    let empty = gc(&project, &["--force", "--grace", "0"], ExitCode::Success);
    assert!(empty.stdout.contains("from the blob store"), "{}", empty.stdout);
    assert!(project.path().join(STORE).join("store.json").exists());
    let last = gc(&project, &["--remove-store", "--grace", "0"], ExitCode::Success);
    assert!(last.stdout.contains("removed the blob store"), "{}", last.stdout);
    assert!(!project.path().join(STORE).exists());
}

#[test]
fn gc_during_run_keeps_what_it_needs_and_refuses_short_grace() {
    let project = two_runs();
    set_back(&project);
    let job = fs::read_to_string(project.path().join("job.yaml")).expect("a job");
    let project = project.write("job.yaml", &job.replace("n_attempts: 2", "n_attempts: 6"));
    let third = project.results("three");
    let running = project.rollout(&["run", "job.yaml", "--name", "three"]);
    wait::until(DEADLINE, "a result", || !third.trials().is_empty());
    let refused = gc(&project, &["--grace", "59m"], ExitCode::Config);
    for text in ["60 minutes", "jobs/three", "longer `--grace`"] {
        assert!(refused.stderr.contains(text), "no {text:?} in {}", refused.stderr);
    }
    let in_flight = add_unnamed_blob(&project);
    let _collected = gc(&project, &["--grace", "1h"], ExitCode::Success);
    assert!(stored(&project).contains(&in_flight), "the run may be about to name it");
    let (one, two) = (project.results("one"), project.results("two"));
    let unshared = named_by(&project, &one);
    let unshared: BTreeSet<_> = unshared.difference(&named_by(&project, &two)).cloned().collect();
    let unshared: BTreeSet<_> = unshared.difference(&named_by(&project, &third)).cloned().collect();
    fs::remove_dir_all(one.path()).expect("removable");
    let before = stored(&project);
    let _collected = gc(&project, &["--force"], ExitCode::Success);
    let after = stored(&project);
    let removed: BTreeSet<_> = before.difference(&after).cloned().collect();
    assert_eq!(removed, unshared);
    let _ended = running.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_adds_up(&third, 6);
    assert_whole(&project, "three", 6);
    let _collected = gc(&project, &["--grace", "1h"], ExitCode::Success);
    assert!(!stored(&project).contains(&in_flight), "no run has named it");
    let project = project.write("job.yaml", &job);
    assert_whole(&project, "two", 2);
}

#[test]
fn blob_commands_read_and_verify_blobs() {
    let project =
        project().tasks(["faults/passes"], &[]).job("faults.yaml", &[("PROVIDER", "process")]);
    let _ended = run(&project, &["run", "job.yaml"]);
    let digests: Vec<String> = stored(&project).into_iter().collect();
    let sized = digests
        .iter()
        .find(|digest| fs::metadata(blob_path(&project, digest)).expect("there").len() > 100);
    let digest = sized.expect("a record").as_str();
    let content = fs::read(blob_path(&project, digest)).expect("readable");
    let (hex, uri) = (digest.strip_prefix("sha256:").expect("a digest"), format!("cas://{digest}"));
    for form in [digest, hex, &uri] {
        let got = run(&project, &["blob", "get", form, "--store", STORE]);
        assert_eq!(got.stdout.as_bytes(), String::from_utf8_lossy(&content).as_bytes());
    }
    let _file = run(&project, &["blob", "get", digest, "--run", "jobs/faults", "-o", "out"]);
    assert_eq!(fs::read(project.path().join("out")).expect("written"), content);
    let exists = project.rollout(&["blob", "get", digest, "--store", STORE, "-o", "out"]);
    let _refused = exists.wait(DEADLINE).expect_code(ExitCode::Usage).expect_stderr("it exists");
    let stat = json(&run(&project, &["blob", "stat", digest, "--store", STORE, "--json"]).stdout);
    assert_eq!((&stat["present"], &stat["size_bytes"]), (&true.into(), &content.len().into()));
    let all = json(&run(&project, &["blob", "verify", "--store", STORE, "--json"]).stdout);
    let bytes: u64 = digests
        .iter()
        .map(|each| fs::metadata(blob_path(&project, each)).expect("there").len())
        .sum();
    assert_eq!(
        (all["blobs"].as_u64(), all["bytes"].as_u64()),
        (Some(digests.len() as u64), Some(bytes))
    );

    let truncated = &content[..content.len() / 2];
    fs::remove_file(blob_path(&project, digest)).expect("removable");
    fs::write(blob_path(&project, digest), truncated).expect("written");
    let found = Digest::sha256(truncated).to_string();
    let damaged = project.rollout(&["blob", "get", digest, "--store", STORE, "-o", "new"]);
    let _refused = damaged.wait(DEADLINE).expect_code(ExitCode::RunDamaged).expect_stderr(&found);
    assert!(!project.path().join("new").exists());
    for place in [["--store", STORE], ["--run", "jobs/faults"]] {
        let arguments = [&["blob", "verify"], &place[..]].concat();
        let verified = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::RunDamaged);
        let line = verified.stdout.lines().find(|line| line.starts_with(digest));
        assert!(line.is_some_and(|line| line.contains(&found)), "{}", verified.stdout);
    }
    let stat = project.rollout(&["blob", "stat", digest, "--store", STORE]).wait(DEADLINE);
    assert!(stat.expect_code(ExitCode::RunDamaged).stdout.contains("damaged"));
    let absent = Digest::sha256(b"absent").to_string();
    let stat = project.rollout(&["blob", "stat", &absent, "--store", STORE]).wait(DEADLINE);
    assert!(stat.expect_code(ExitCode::Failure).stdout.contains("not in the store"));
    let verify = ["blob", "verify", &absent, "--store", STORE];
    let verified = project.rollout(&verify).wait(DEADLINE).expect_code(ExitCode::RunDamaged);
    assert!(verified.stdout.contains("missing"), "{}", verified.stdout);
}
