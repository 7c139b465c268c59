//! The clone cache: one clone for each repository and commit, also after kills and with concurrent
//! runs.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rollout_protocol::exit::ExitCode;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::registry::fixture::{NAMES, RegistryFixture, tasks};

const DEADLINE: Duration = Duration::from_secs(120);

const PINNED: &str = "{registry: {path: registry.json}, name: bench, version: '1.0'}";
const NEWEST: &str = "{registry: {path: registry.json}, name: bench}";

#[test]
fn clone_happens_once_per_repository_and_commit() {
    let fixture = RegistryFixture::new();
    fixture.job(&format!("{PINNED}, {{registry: {{path: registry.json}}, name: bench, version: '1.0', task_names: [x]}}"));
    assert!(fixture.refusal().contains("bench"), "a dataset is listed twice");

    fixture.forget_calls();
    fixture.job(PINNED);
    fs::remove_dir_all(fixture.path("home/.cache")).expect("removed");
    let pinned = fixture.tasks();
    assert_eq!(pinned.len(), 40);
    for name in NAMES {
        let first = fixture.git(name, &["rev-parse", "HEAD~1"]);
        assert!(pinned.iter().filter(|(task, _)| task.starts_with(name)).all(|(_, c)| *c == first));
    }
    assert_eq!(fixture.calls("fetch", "origin"), 3, "one clone for each repository and commit");
    assert_eq!(fixture.calls("checkout", ""), 3);
    assert_eq!(fixture.calls("ls-remote", ""), 0, "a pinned commit needs no query");

    fixture.job(NEWEST);
    let newest = fixture.tasks();
    assert_eq!((newest.len(), fixture.calls("fetch", "origin")), (40, 6));
    assert_eq!(fixture.calls("ls-remote", ""), 3, "one query for each repository");
    for name in NAMES {
        let head = fixture.git(name, &["rev-parse", "HEAD"]);
        assert!(newest.iter().filter(|(task, _)| task.starts_with(name)).all(|(_, c)| *c == head));
    }

    fixture.forget_calls();
    fixture.remove_repositories();
    fixture.job(PINNED);
    assert_eq!((fixture.tasks(), fixture.all_calls()), (pinned, 0), "git is not called");
    fixture.job(NEWEST);
    let ended = fixture.dry_run().wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(tasks(&ended), newest);
    let _said = ended.expect_stderr("using its last known head");
}

#[test]
fn clone_by_concurrent_runs_is_correct() {
    let fixture = RegistryFixture::new();
    fixture.job(PINNED);
    let runs = [fixture.dry_run(), fixture.dry_run(), fixture.dry_run()];
    let found = runs.map(|run| tasks(&run.wait(DEADLINE).expect_code(ExitCode::Success)));
    assert_eq!(found[0].len(), 40);
    assert!(found[0] == found[1] && found[1] == found[2]);
    assert_eq!(fixture.calls("fetch", "origin"), 3, "they waited for each other");
    assert_eq!(fixture.unfinished(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn clone_killed_midway_leaves_usable_cache() {
    let fixture = RegistryFixture::new();
    fixture.job(PINNED);
    for moment in ["init", "fetch", "checkout"] {
        fixture.write(&format!("hang-after-{moment}"), "");
        let mut run = fixture.dry_run();
        let hangs = || fixture.path("hanging").exists();
        assert!(wait::holds_within(DEADLINE, hangs), "{moment}: {}", run.stderr());
        run.signal(Signal::KILL);
        drop(run);
        assert_ne!(fixture.unfinished(), Vec::<std::path::PathBuf>::new(), "{moment}");
        fs::remove_file(fixture.path(&format!("hang-after-{moment}"))).expect("removed");
        fs::remove_file(fixture.path("hanging")).expect("removed");
    }
    fixture.forget_calls();
    assert_eq!(fixture.tasks().len(), 40);
    // A git that outlives the killed run may write a little longer; the next run removes its files.
    let is_clean = || fixture.unfinished().is_empty() || fixture.tasks().len() != 40;
    assert!(wait::holds_within(DEADLINE, is_clean), "{:?}", fixture.unfinished());
    fixture.remove_repositories();
    assert_eq!(fixture.tasks().len(), 40);
}

#[test]
fn unused_clones_are_removed_and_fetched_again() {
    let fixture = RegistryFixture::new();
    fixture.job(PINNED);
    let before = fixture.tasks();
    let collect = |options: &[&str]| -> Value {
        let options = [&["gc", "--datasets", "--json"], options].concat();
        let ended = fixture.start(&options).wait(DEADLINE).expect_code(ExitCode::Success);
        let document: Value = serde_json::from_str(&ended.stdout).expect("JSON");
        document["datasets"].clone()
    };
    let found = collect(&["--max-size", "1K"]);
    assert_eq!(found["removed"], json!([]), "they were just used");
    let kept = found["kept"].as_array().expect("a list");
    assert_eq!(kept.len(), 3);
    let path = Path::new(kept[0]["path"].as_str().expect("a path"));
    let long_ago = SystemTime::now() - Duration::from_secs(7 * 24 * 3600);
    for used in [path.with_extension("lock"), path.to_owned()] {
        File::open(used).and_then(|file| file.set_modified(long_ago)).expect("set");
    }
    let removed = &collect(&["--older-than", "1d"])["removed"];
    assert_eq!((removed.as_array().map(Vec::len), path.exists()), (Some(1), false));
    fixture.forget_calls();
    assert_eq!((fixture.tasks(), fixture.calls("fetch", "origin")), (before, 1));
}
