//! Random schedules, by what may go wrong in them.

use crate::rules::Rules;
use crate::schedule::{Family, kind, run};
use crate::step::Faults;

/// Schedules of all families together.
const SCHEDULES: u64 = 20_000;

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

pub(crate) const EVERYTHING: Faults = Faults {
    most: 8,
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

/// Tries a share of all schedules. Fails with the first few kinds of what breaks.
fn try_all(family: &Family, percent: u64) {
    if let Some(seed) = number("ROLLOUT_MODEL_SEED") {
        if let Err(failure) = run(family, seed) {
            panic!("{}", failure.report(family));
        }
        return;
    }
    let schedules = number("ROLLOUT_MODEL_SCHEDULES").unwrap_or(SCHEDULES) * percent / 100;
    let mut kinds: Vec<(String, usize)> = Vec::new();
    let mut told = Vec::new();
    for schedule in 0..schedules {
        if let Err(failure) = run(family, schedule) {
            let kind = kind(&failure.what);
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, times)) => *times += 1,
                None => {
                    kinds.push((kind, 1));
                    told.push(failure.report(family));
                }
            }
        }
    }
    assert!(kinds.is_empty(), "{}\nof {schedules} schedules: {kinds:#?}", told.join("\n\n"));
}

#[test]
fn one_process_dies_anywhere() {
    let faults = Faults { most: 4, coordinators: true, users: true, bare: true, ..NOTHING };
    let family = Family { name: "embedded", embedded: true, faults, rules: Rules::ALL };
    try_all(&family, 10);
}

#[test]
fn nothing_goes_wrong() {
    let family = Family { name: "calm", embedded: false, faults: NOTHING, rules: Rules::ALL };
    try_all(&family, 5);
}

#[test]
fn anything_goes_wrong() {
    let family =
        Family { name: "anything", embedded: false, faults: EVERYTHING, rules: Rules::ALL };
    try_all(&family, 50);
}
