//! The clone cache: one clone for each repository and commit, also after kills and with concurrent
//! runs.

use std::fs;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::wait;
use rustix::process::Signal;

use crate::fixture::{NAMES, RegistryFixture, tasks};

const DEADLINE: Duration = Duration::from_secs(120);

const PINNED: &str = "{registry: {path: registry.json}, name: bench, version: '1.0'}";
const NEWEST: &str = "{registry: {path: registry.json}, name: bench}";

#[test]
fn clone_happens_once_per_repository_and_commit() {
    let lab = RegistryFixture::new();
    lab.job(&format!("{PINNED}, {{registry: {{path: registry.json}}, name: bench, version: '1.0', task_names: [x]}}"));
    assert!(lab.refusal().contains("bench"), "a dataset is listed twice");

    lab.forget_calls();
    lab.job(PINNED);
    fs::remove_dir_all(lab.path("home/.cache")).expect("removed");
    let pinned = lab.tasks();
    assert_eq!(pinned.len(), 40);
    for name in NAMES {
        let first = lab.git(name, &["rev-parse", "HEAD~1"]);
        assert!(pinned.iter().filter(|(task, _)| task.starts_with(name)).all(|(_, c)| *c == first));
    }
    assert_eq!(lab.calls("fetch", "origin"), 3, "one clone for each repository and commit");
    assert_eq!(lab.calls("checkout", ""), 3);
    assert_eq!(lab.calls("ls-remote", ""), 0, "a pinned commit needs no query");

    lab.job(NEWEST);
    let newest = lab.tasks();
    assert_eq!((newest.len(), lab.calls("fetch", "origin")), (40, 6));
    assert_eq!(lab.calls("ls-remote", ""), 3, "one query for each repository");
    for name in NAMES {
        let head = lab.git(name, &["rev-parse", "HEAD"]);
        assert!(newest.iter().filter(|(task, _)| task.starts_with(name)).all(|(_, c)| *c == head));
    }

    lab.forget_calls();
    lab.remove_repositories();
    lab.job(PINNED);
    assert_eq!((lab.tasks(), lab.all_calls()), (pinned, 0), "git is not called");
    lab.job(NEWEST);
    let ended = lab.dry_run().wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(tasks(&ended), newest);
    let _said = ended.expect_stderr("using its last known head");
}

#[test]
fn clone_by_concurrent_runs_is_correct() {
    let lab = RegistryFixture::new();
    lab.job(PINNED);
    let runs = [lab.dry_run(), lab.dry_run(), lab.dry_run()];
    let found = runs.map(|run| tasks(&run.wait(DEADLINE).expect_code(ExitCode::Success)));
    assert_eq!(found[0].len(), 40);
    assert!(found[0] == found[1] && found[1] == found[2]);
    assert_eq!(lab.calls("fetch", "origin"), 3, "they waited for each other");
    assert_eq!(lab.unfinished(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn clone_killed_midway_leaves_usable_cache() {
    let lab = RegistryFixture::new();
    lab.job(PINNED);
    for moment in ["init", "fetch", "checkout"] {
        lab.write(&format!("hang-after-{moment}"), "");
        let mut run = lab.dry_run();
        let hangs = || lab.path("hanging").exists();
        assert!(wait::holds_within(DEADLINE, hangs), "{moment}: {}", run.stderr());
        run.signal(Signal::KILL);
        drop(run);
        assert_ne!(lab.unfinished(), Vec::<std::path::PathBuf>::new(), "{moment}");
        fs::remove_file(lab.path(&format!("hang-after-{moment}"))).expect("removed");
        fs::remove_file(lab.path("hanging")).expect("removed");
    }
    lab.forget_calls();
    assert_eq!(lab.tasks().len(), 40);
    // A git that outlives the killed run may write a little longer; the next run removes its files.
    let is_clean = || lab.unfinished().is_empty() || lab.tasks().len() != 40;
    assert!(wait::holds_within(DEADLINE, is_clean), "{:?}", lab.unfinished());
    lab.remove_repositories();
    assert_eq!(lab.tasks().len(), 40);
}
