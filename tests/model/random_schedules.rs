//! Random schedules, grouped by the faults that may occur.

use crate::rules::ProtocolRules;
use crate::schedule::{ScheduleFamily, failure_kind, run_schedule};
use crate::step::FaultPlan;

/// Total number of schedules of all families. With a rule of the protocol removed (`ablation.rs`), one of
/// the families fails by number 20,500 of this count, most by number 1,000. `tests/run --extended` runs
/// 100,000.
const SCHEDULES: u64 = 24_000;

/// Number of failure kinds that are printed in full.
const REPORTED_FAILURES: usize = 4;

const NO_FAULTS: FaultPlan = FaultPlan {
    max_faults: 0,
    workers: false,
    server: false,
    tail_loss: false,
    total_loss: false,
    coordinators: false,
    takeovers: false,
    user_commands: false,
    outage_percent: 15,
    bare: false,
};

/// All faults.
pub(crate) const ALL_FAULTS: FaultPlan = FaultPlan {
    max_faults: 9,
    workers: true,
    server: true,
    tail_loss: true,
    total_loss: true,
    coordinators: true,
    takeovers: true,
    user_commands: true,
    outage_percent: 15,
    bare: true,
};

/// The number in an environment variable.
pub(crate) fn env_number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().expect("a number"))
}

fn family(name: &'static str, faults: FaultPlan) -> ScheduleFamily {
    ScheduleFamily { name, embedded: false, faults, rules: ProtocolRules::ALL }
}

/// Runs `percent` of all schedules. Fails with the first failure of each kind.
fn assert_no_failures(family: &ScheduleFamily, percent: u64) {
    if let Some(schedule) = env_number("ROLLOUT_MODEL_SEED") {
        if let Err(failure) = run_schedule(family, schedule) {
            panic!("{}", failure.report(family));
        }
        return;
    }
    let schedules = env_number("ROLLOUT_MODEL_SCHEDULES").unwrap_or(SCHEDULES) * percent / 100;
    let mut kinds: Vec<(String, usize)> = Vec::new();
    let mut reports = Vec::new();
    for schedule in 0..schedules {
        let Err(failure) = run_schedule(family, schedule) else { continue };
        let kind = failure_kind(&failure.what);
        if let Some((_, times)) = kinds.iter_mut().find(|(known, _)| *known == kind) {
            *times += 1;
            continue;
        }
        kinds.push((kind, 1));
        if reports.len() < REPORTED_FAILURES {
            reports.push(failure.report(family));
        }
    }
    assert!(kinds.is_empty(), "{}\nin {schedules} schedules: {kinds:#?}", reports.join("\n\n"));
}

#[test]
fn embedded_run_with_random_kills_settles() {
    let faults = FaultPlan {
        max_faults: 4,
        coordinators: true,
        user_commands: true,
        bare: true,
        ..NO_FAULTS
    };
    assert_no_failures(&ScheduleFamily { embedded: true, ..family("one process", faults) }, 10);
}

#[test]
fn run_without_faults_settles() {
    assert_no_failures(&family("nothing", NO_FAULTS), 4);
}

#[test]
fn worker_faults_keep_invariants() {
    assert_no_failures(
        &family("workers", FaultPlan { max_faults: 6, workers: true, bare: true, ..NO_FAULTS }),
        12,
    );
}

#[test]
fn server_crash_with_data_loss_keeps_invariants() {
    let faults = FaultPlan {
        max_faults: 5,
        server: true,
        tail_loss: true,
        total_loss: true,
        bare: true,
        ..NO_FAULTS
    };
    assert_no_failures(&family("server", faults), 12);
}

#[test]
fn coordinator_takeover_keeps_invariants() {
    let faults =
        FaultPlan { max_faults: 6, coordinators: true, takeovers: true, bare: true, ..NO_FAULTS };
    assert_no_failures(&family("coordinators", faults), 12);
}

#[test]
fn user_stop_and_cancel_keep_invariants() {
    let faults = FaultPlan {
        max_faults: 6,
        coordinators: true,
        user_commands: true,
        workers: true,
        ..NO_FAULTS
    };
    assert_no_failures(&family("users", faults), 10);
}

#[test]
fn all_faults_keep_invariants() {
    assert_no_failures(&family("anything", ALL_FAULTS), 25);
}

/// Few faults, each with enough time to take effect.
#[test]
fn few_faults_keep_invariants() {
    assert_no_failures(&family("little", FaultPlan { max_faults: 3, ..ALL_FAULTS }), 15);
}
