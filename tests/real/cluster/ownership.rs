//! The lock of a run: one coordinator at a time, and a paused owner that resumes changes nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::print_notice;
use rollout_tests::wait;

use crate::cluster::{DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

#[test]
fn lock_held_refuses_second_coordinator() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("owned", 6, (1.0, 2.0)));
    load.write(&cluster.project, &counter);
    let worker = cluster.worker("a", 3).started();
    let mut owner = cluster.coordinator(&load.file()).started();
    wait::until(DEADLINE, "three agents", || counter.running() == 3);
    let mut second = cluster.coordinator(&load.file()).with_arguments(&["--no-wait"]).started();
    let _refused = second.wait(DEADLINE).expect_code(ExitCode::LockHeld);
    let _ended = owner.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(counter.repeated(), 0);
    assert_undisturbed(&cluster, &load);
    assert_no_leaks(&cluster, &["owned"], [worker]);
}

#[test]
fn lock_forced_takeover_stops_resumed_owner() {
    assert_takeover("forced", &["--force"]);
}

#[test]
fn lock_stale_takeover_stops_resumed_owner() {
    assert_takeover("stale", &["--lock-stale-seconds", "3"]);
}

fn assert_takeover(name: &str, how: &[&str]) {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new(name, 16, (1.0, 2.0)));
    load.write(&cluster.project, &counter);
    let worker = cluster.worker("a", 3).started();
    let mut owner = cluster.coordinator(&load.file()).started();
    let results = cluster.project.results(name);
    wait::until(DEADLINE, "four results", || results.trial_count() >= 4);
    owner.pause();
    let mut next = cluster.coordinator(&load.file()).with_arguments(how).started();
    wait::until(DEADLINE, "results of the next", || results.trial_count() >= 10);
    owner.resume();
    let woken = owner.wait(DEADLINE).expect_code(ExitCode::LockLost);
    print_notice(&format!("woken: {}", woken.stderr));
    let _ended = next.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!((counter.killed(), counter.repeated()), (0, 0), "{:?}", counter.executions());
    assert_undisturbed(&cluster, &load);
    assert_no_leaks(&cluster, &[name], [worker]);
}

#[test]
fn owner_resumed_after_run_end_changes_nothing() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("late", 9, (1.0, 2.0)));
    load.write(&cluster.project, &counter);
    let worker = cluster.worker("a", 3).started();
    let mut owner = cluster.coordinator(&load.file()).started();
    let results = cluster.project.results("late");
    wait::until(DEADLINE, "three results", || results.trial_count() >= 3);
    owner.pause();
    let mut next = cluster.coordinator(&load.file()).with_arguments(&["--force"]).started();
    let _ended = next.wait(DEADLINE).expect_code(ExitCode::Success);
    let before = file_contents(results.path());
    owner.resume();
    let _woken = owner.wait(DEADLINE).expect_code(ExitCode::LockLost);
    assert_undisturbed(&cluster, &load);
    let after = file_contents(results.path());
    let changed: Vec<_> = before.iter().filter(|file| !after.contains(file)).collect();
    // A resumed owner may still write to the journal segment of its own epoch, which has ended.
    let is_journal = |path: &str| path.contains("/journal/");
    let changed: Vec<_> = changed.iter().map(|f| &f.0).filter(|path| !is_journal(path)).collect();
    assert_eq!(changed, Vec::<&String>::new());
    assert_no_leaks(&cluster, &["late"], [worker]);
}

#[test]
fn run_dir_stale_copy_is_refused() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("copied", 18, (1.0, 2.0)));
    load.write(&cluster.project, &counter);
    let worker = cluster.worker("a", 3).started();
    let mut owner = cluster.coordinator(&load.file()).started();
    let results = cluster.project.results("copied");
    wait::until(DEADLINE, "four results", || results.trial_count() >= 4);
    owner.kill();
    let copy = cluster.project.path().join("copies");
    copy_tree(results.path(), &copy.join("copied"));
    owner.start();
    wait::until(DEADLINE, "more results", || results.trial_count() >= 10);

    // While the owner runs, and after it was killed.
    let on_copy = |more: &[&str]| start_on_copy(&cluster, &load, &copy, more);
    let held = on_copy(&["--no-wait"]);
    let codes = [ExitCode::LockHeld, ExitCode::StaleCopy].map(|code| Some(i32::from(code.code())));
    assert!(codes.contains(&held.status.code()), "{held:?}");
    owner.kill();
    let refused = on_copy(&["--lock-stale-seconds", "3"]).expect_code(ExitCode::StaleCopy);
    print_notice(&format!("refused: {}", refused.stderr));

    owner.start();
    let _ended = owner.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(counter.repeated(), 0, "{:?}", counter.executions());
    assert_undisturbed(&cluster, &load);
    assert_no_leaks(&cluster, &["copied"], [worker]);
}

fn start_on_copy(
    cluster: &Cluster,
    load: &Load,
    copy: &Path,
    more: &[&str],
) -> rollout_tests::program::ProgramExit {
    let jobs = copy.to_str().expect("plain");
    let mut second = cluster
        .coordinator(&load.file())
        .with_arguments(&["--jobs-dir", jobs])
        .with_arguments(more);
    second.start();
    second.wait(Duration::from_secs(60))
}

/// Every file below a directory with its content, sorted by path.
fn file_contents(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(file_contents(&path));
        } else {
            files.push((path.display().to_string(), fs::read(&path).expect("a file")));
        }
    }
    files.sort();
    files
}

fn copy_tree(from: &Path, to: &Path) {
    for (path, content) in file_contents(from) {
        let to = to.join(Path::new(&path).strip_prefix(from).expect("below"));
        fs::create_dir_all(to.parent().expect("below")).expect("a directory");
        fs::write(to, content).expect("a file");
    }
}
