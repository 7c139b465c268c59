//! Random schedules, by what may go wrong in them.

use crate::rules::Rules;
use crate::schedule::{Family, kind, run};
use crate::step::Faults;

/// Schedules of all families together.
const SCHEDULES: u64 = 100_000;

/// Kinds of failures that are told in full.
const TOLD: usize = 4;

const NOTHING: Faults = Faults {
    most: 0,
    workers: false,
    server: false,
    tails: false,
    wipes: false,
    coordinators: false,
    owners: false,
    users: false,
    outages: 15,
    bare: false,
};

/// Whatever a schedule can do.
pub(crate) const EVERYTHING: Faults = Faults {
    most: 9,
    workers: true,
    server: true,
    tails: true,
    wipes: true,
    coordinators: true,
    owners: true,
    users: true,
    outages: 15,
    bare: true,
};

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().expect("a number"))
}

fn family(name: &'static str, faults: Faults) -> Family {
    Family { name, embedded: false, faults, rules: Rules::ALL }
}

/// Tries so many of a hundred of all schedules. Fails with the first of each kind of what breaks.
fn try_all(family: &Family, percent: u64) {
    if let Some(schedule) = number("ROLLOUT_MODEL_SEED") {
        if let Err(failure) = run(family, schedule) {
            panic!("{}", failure.report(family));
        }
        return;
    }
    let schedules = number("ROLLOUT_MODEL_SCHEDULES").unwrap_or(SCHEDULES) * percent / 100;
    let mut kinds: Vec<(String, usize)> = Vec::new();
    let mut told = Vec::new();
    for schedule in 0..schedules {
        let Err(failure) = run(family, schedule) else { continue };
        let kind = kind(&failure.what);
        if let Some((_, times)) = kinds.iter_mut().find(|(known, _)| *known == kind) {
            *times += 1;
            continue;
        }
        kinds.push((kind, 1));
        if told.len() < TOLD {
            told.push(failure.report(family));
        }
    }
    assert!(kinds.is_empty(), "{}\nof {schedules} schedules: {kinds:#?}", told.join("\n\n"));
}

#[test]
fn embedded_run_with_random_kills_settles() {
    let faults = Faults { most: 4, coordinators: true, users: true, bare: true, ..NOTHING };
    try_all(&Family { embedded: true, ..family("one process", faults) }, 10);
}

#[test]
fn run_without_faults_settles() {
    try_all(&family("nothing", NOTHING), 4);
}

#[test]
fn worker_faults_keep_invariants() {
    try_all(&family("workers", Faults { most: 6, workers: true, bare: true, ..NOTHING }), 12);
}

#[test]
fn server_crash_with_data_loss_keeps_invariants() {
    let faults = Faults { most: 5, server: true, tails: true, wipes: true, bare: true, ..NOTHING };
    try_all(&family("server", faults), 12);
}

#[test]
fn coordinator_takeover_keeps_invariants() {
    let faults = Faults { most: 6, coordinators: true, owners: true, bare: true, ..NOTHING };
    try_all(&family("coordinators", faults), 12);
}

#[test]
fn user_stop_and_cancel_keep_invariants() {
    let faults = Faults { most: 6, coordinators: true, users: true, workers: true, ..NOTHING };
    try_all(&family("users", faults), 10);
}

#[test]
fn all_faults_keep_invariants() {
    try_all(&family("anything", EVERYTHING), 25);
}

/// Few faults, each of which has time to do its harm.
#[test]
fn few_faults_keep_invariants() {
    try_all(&family("little", Faults { most: 3, ..EVERYTHING }), 15);
}
