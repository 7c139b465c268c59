//! Runs on one host, and retries, whose disk loses its power.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::journal_replay::assert_follows_from_journal;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::net::free_port;
use rollout_tests::power_disk::{self, DiskOptions, PowerCuts, PowerDisk};
use rollout_tests::project::Project;
use rollout_tests::results::Results;
use rollout_tests::{audit, wait};

use crate::power::{
    DEADLINE, PROGRAM, SettledTrials, cut_under, damaged_blobs, each_disk, failure,
};

/// Longest time between two cuts: about that of a run.
const LONGEST: Duration = Duration::from_secs(4);

/// Where runs keep their blobs.
pub(super) const STORE: &str = "jobs/.rollout/blobs";

/// A few trials, some of which run when the power is cut.
pub(super) fn load() -> Load {
    Load { at_once: 3, ..Load::new("dark", 8, (0.2, 0.9)) }
}

/// Runs a command of a project until it ends, with the cuts in between. Returns what is wrong.
pub(super) fn run_through(
    project: &Project,
    disk: &mut PowerDisk,
    command: &[&str],
    counter: &LiveCounter,
    cuts: &mut PowerCuts,
) -> Vec<String> {
    let mut settled = SettledTrials::default();
    let mut run = project.rollout(command);
    for cut in cuts {
        let ended = cut_under(disk, &cut, run);
        settled.read(&ended.stdout);
        run = project.rollout(command);
    }
    let ended = run.wait(DEADLINE);
    let mut faults: Vec<String> = failure(&ended).into_iter().collect();
    faults.extend(settled.repeated(counter));
    faults.extend(damaged_blobs(&project.path().join(STORE)));
    faults
}

/// What is wrong with the results of a load.
pub(super) fn result_faults(load: &Load, results: &Results) -> Vec<String> {
    match results.path().join("result.json").exists() {
        true => audit::differences(load, results),
        false => vec!["there is no result".to_owned()],
    }
}

/// Runs a load on a disk. `prepare` may change its project.
pub(super) fn run_faults(
    options: DiskOptions,
    cuts: &mut PowerCuts,
    prepare: impl FnOnce(&Project),
) -> Option<Vec<String>> {
    let (project, mut disk) = power_disk::project(PROGRAM, options)?;
    prepare(&project);
    let (counter, load) = (LiveCounter::start(), load());
    load.write(&project, &counter);
    disk.sync();
    let command = ["run", &load.file(), "--json"];
    let mut faults = run_through(&project, &mut disk, &command, &counter, cuts);
    let results = project.results(&load.name);
    faults.extend(result_faults(&load, &results));
    if faults.is_empty() {
        results.assert_headline();
        assert_follows_from_journal(results.path());
        wait::until(DEADLINE, "nothing uses the disk", || disk.users().is_empty());
    }
    Some(faults)
}

#[test]
fn run_after_power_cuts_completes_and_repeats_no_settled_trial() {
    each_disk(LONGEST, |options, cuts| {
        let faults = run_faults(options, cuts, |_| {})?;
        assert_eq!(faults, Vec::<String>::new());
        Some(())
    });
}

#[test]
fn retry_after_power_cuts_completes_and_keeps_former_records() {
    each_disk(LONGEST, |options, cuts| {
        let (project, mut disk) = power_disk::project(PROGRAM, options)?;
        let (counter, load, port) = (LiveCounter::start(), load(), free_port());
        load.write(&project, &counter);
        let failing = [2, 3, 5, 8];
        failing.iter().for_each(|number| load.fail_without_listener(&project, *number, port));
        let first = project.rollout(&["run", &load.file()]).wait(DEADLINE);
        let results = project.results(&load.name);
        let counts = (results.count("completed_trials"), results.count("failed_trials"));
        assert_eq!(counts, (4, 4), "{}", first.stderr);
        disk.sync();

        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port");
        let directory = results.path().display().to_string();
        let command = ["retry", &directory, "--failed", "--", "--json"];
        let faults = run_through(&project, &mut disk, &command, &counter, cuts);
        assert_eq!(faults, Vec::<String>::new());
        // A trial that the last retry did not open again is one that an earlier one left open.
        let ended = project.rollout(&["run", &load.file()]).wait(DEADLINE);
        drop(ended.expect_code(ExitCode::Success));
        assert_eq!(audit::differences(&load, &results), Vec::<String>::new());
        for number in failing {
            let trial = results.trial("busy", &load.task(number));
            let former = trial.result["superseded"].as_array().map_or(0, Vec::len);
            assert!(former >= 1, "{}", trial.result);
        }
        results.assert_headline();
        Some(())
    });
}
