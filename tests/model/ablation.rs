//! Ablation tests: without each protocol rule, some schedule fails in the way that the rule
//! prevents.

use rollout_tests::print_notice;

use crate::broker::ServerLoss;
use crate::names::ExecutionEnding;
use crate::random_schedules::ALL_FAULTS;
use crate::rules::ProtocolRules;
use crate::scenario::Scenario;
use crate::schedule::{ScheduleFamily, run_schedule};
use crate::step::{FaultPlan, ScheduleStep};

/// The search ends at the first failing schedule, by now number 3,814 at the latest. Twice as many as
/// the family with all faults has.
const SCHEDULES: u64 = 12_000;

const SERVER_FAULTS: FaultPlan = FaultPlan {
    workers: false,
    coordinators: false,
    takeovers: false,
    user_commands: false,
    ..ALL_FAULTS
};
const COORDINATOR_FAULTS: FaultPlan =
    FaultPlan { workers: false, user_commands: false, ..ALL_FAULTS };

/// Asserts that some schedule fails with `how` when a rule is removed.
fn assert_breaks_without(faults: FaultPlan, without: fn(&mut ProtocolRules), how: &str) {
    let mut rules = ProtocolRules::ALL;
    without(&mut rules);
    let family = ScheduleFamily { name: "without a rule", embedded: false, faults, rules };
    let mut others = Vec::new();
    for schedule in 0..SCHEDULES {
        match run_schedule(&family, schedule) {
            Err(failure) if failure.what.contains(how) => {
                print_notice(&format!("{how:?} is found by schedule {schedule}"));
                return;
            }
            Err(failure) => others.push(failure.what),
            Ok(_) => {}
        }
    }
    others.truncate(5);
    panic!("none of {SCHEDULES} schedules fails as expected; other failures: {others:#?}");
}

#[test]
fn redelivery_suspicion_removed_breaks_model() {
    assert_breaks_without(ALL_FAULTS, |rules| rules.suspicion = false, "without a claim");
}

#[test]
fn hold_answer_forgetting_removed_breaks_model() {
    assert_breaks_without(
        ALL_FAULTS,
        |rules| rules.hold_answer_forgets = false,
        "never becomes idle",
    );
}

#[test]
fn peer_heartbeat_check_removed_breaks_model() {
    assert_breaks_without(
        ALL_FAULTS,
        |rules| rules.checks_peer_heartbeats = false,
        "in a heartbeat",
    );
}

#[test]
fn marker_check_removed_breaks_model() {
    assert_breaks_without(
        ALL_FAULTS,
        |rules| rules.checks_markers = false,
        "although the try has a marker",
    );
}

#[test]
fn finished_in_heartbeat_removed_breaks_model() {
    assert_breaks_without(SERVER_FAULTS, |rules| rules.heartbeat_lists_finished = false, "is held");
}

#[test]
fn ack_incarnation_check_removed_breaks_model() {
    assert_breaks_without(
        SERVER_FAULTS,
        |rules| rules.acks_check_incarnation = false,
        "old incarnation",
    );
}

#[test]
fn result_marker_removed_breaks_model() {
    assert_breaks_without(
        SERVER_FAULTS,
        |rules| rules.markers = false,
        "is offered again although",
    );
}

#[test]
fn result_lookup_removed_breaks_model() {
    assert_breaks_without(
        SERVER_FAULTS,
        |rules| rules.looks_up_results = false,
        "is offered again although",
    );
}

#[test]
fn position_check_on_reconnect_removed_breaks_model() {
    assert_breaks_without(
        SERVER_FAULTS,
        |rules| rules.checks_position_on_reconnect = false,
        "was purged, and the successor lacks it",
    );
}

#[test]
fn purge_limit_of_lock_removed_breaks_model() {
    let without: fn(&mut ProtocolRules) = |rules| rules.purges_confirmed = false;
    assert_breaks_without(COORDINATOR_FAULTS, without, "was purged, and the successor lacks it");
}

#[test]
fn durable_before_effect_removed_breaks_model() {
    assert_breaks_without(ALL_FAULTS, |rules| rules.durable_before_effect = false, "");
}

#[test]
fn journal_head_in_lock_removed_breaks_model() {
    assert_breaks_without(COORDINATOR_FAULTS, |rules| rules.head_in_lock = false, "was lost");
}

#[test]
fn reconcile_removed_breaks_model() {
    assert_breaks_without(SERVER_FAULTS, |rules| rules.reconciles = false, "items not settled");
}

/// A worker that reconnects shortly after the server is not declared dead.
#[test]
fn reconnect_notice_removed_repeats_execution() {
    for (tells, runs) in [(true, 1), (false, 2)] {
        let mut story = Scenario::running(1, &[1, 1]);
        story.rules.reports_reconnects = tells;
        story.advance_seconds(100);
        let w = story.running_worker(0).expect("it runs");
        story.apply(&[
            ScheduleStep::ServerDies,
            ScheduleStep::CutOff(w),
            ScheduleStep::ServerReturns(ServerLoss::default()),
        ]);
        story
            .advance_seconds(40)
            .apply(&[ScheduleStep::Connect(w)])
            .advance_seconds(100)
            .run_to_end();
        assert_eq!(story.execution_count(0), runs);
    }
}

/// Without adoption of its directory, the finished execution of a dead worker is repeated.
#[test]
fn worker_dir_recovery_removed_repeats_execution() {
    let mut story = Scenario::running(1, &[1]);
    story.rules.dir_recovery = false;
    story.apply(&[
        ScheduleStep::Finish(0, 0, ExecutionEnding::Reward, false),
        ScheduleStep::KillWorker(0),
    ]);
    story.apply(&[ScheduleStep::StartWorker(0)]).run_to_end();
    assert_eq!(story.execution_count(0), 2);
}
