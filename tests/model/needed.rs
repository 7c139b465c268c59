//! No rule is there for nothing: without it some schedule breaks, and in the way that it prevents.

use crate::broker::Loss;
use crate::families::EVERYTHING;
use crate::names::Ending;
use crate::rules::Rules;
use crate::schedule::{Family, run};
use crate::step::{Faults, Step};
use crate::story::Story;

/// Many more than it takes: the first that breaks ends the search.
const SCHEDULES: u64 = 30_000;

const SERVERS: Faults =
    Faults { workers: false, coordinators: false, owners: false, users: false, ..EVERYTHING };
const COORDINATORS: Faults = Faults { workers: false, users: false, ..EVERYTHING };

/// Searches a schedule that breaks like this without a rule.
fn breaks(faults: Faults, without: fn(&mut Rules), how: &str) {
    let mut rules = Rules::ALL;
    without(&mut rules);
    let family = Family { name: "without a rule", embedded: false, faults, rules };
    let mut others = Vec::new();
    for schedule in 0..SCHEDULES {
        match run(&family, schedule) {
            Err(failure) if failure.what.contains(how) => return,
            Err(failure) => others.push(failure.what),
            Ok(_) => {}
        }
    }
    others.truncate(5);
    panic!("nothing of {SCHEDULES} schedules breaks as expected, but: {others:#?}");
}

#[test]
fn redelivery_suspicion_removed_breaks_model() {
    breaks(EVERYTHING, |rules| rules.suspicion = false, "runs on sight");
}

#[test]
fn hold_answer_forgetting_removed_breaks_model() {
    breaks(EVERYTHING, |rules| rules.hold_forgets = false, "does not come to rest");
}

#[test]
fn peer_heartbeat_check_removed_breaks_model() {
    breaks(EVERYTHING, |rules| rules.looks_at_peers = false, "that a hello shows");
}

#[test]
fn marker_check_removed_breaks_model() {
    breaks(EVERYTHING, |rules| rules.looks_at_markers = false, "although the try has a marker");
}

#[test]
fn finished_in_heartbeat_removed_breaks_model() {
    breaks(EVERYTHING, |rules| rules.hello_lists_finished = false, "which lives");
}

#[test]
fn ack_incarnation_check_removed_breaks_model() {
    breaks(SERVERS, |rules| rules.acks_check_life = false, "of a former life");
}

#[test]
fn result_marker_removed_breaks_model() {
    breaks(SERVERS, |rules| rules.markers = false, "is offered again although");
}

#[test]
fn result_lookup_removed_breaks_model() {
    breaks(SERVERS, |rules| rules.looks_for_results = false, "is offered again although");
}

#[test]
fn position_check_on_reconnect_removed_breaks_model() {
    breaks(SERVERS, |rules| rules.anchor = false, "was purged, and the successor lacks it");
}

#[test]
fn purge_limit_of_lock_removed_breaks_model() {
    let without: fn(&mut Rules) = |rules| rules.purges_confirmed = false;
    breaks(COORDINATORS, without, "was purged, and the successor lacks it");
}

#[test]
fn durable_before_effect_removed_breaks_model() {
    breaks(EVERYTHING, |rules| rules.durable_before_effect = false, "");
}

#[test]
fn journal_head_in_lock_removed_breaks_model() {
    breaks(COORDINATORS, |rules| rules.head_in_lock = false, "taken back");
}

#[test]
fn reconcile_removed_breaks_model() {
    breaks(SERVERS, |rules| rules.rounds = false, "not everything settles");
}

/// A worker that is back a little later than the server is not taken for dead.
#[test]
fn reconnect_notice_removed_repeats_execution() {
    for (tells, runs) in [(true, 1), (false, 2)] {
        let mut story = Story::running(1, &[1, 1]);
        story.rules.tells_reconnects = tells;
        story.pass_seconds(100);
        let w = story.runner(0).expect("it runs");
        story.does(&[Step::ServerDies, Step::CutOff(w), Step::ServerReturns(Loss::default())]);
        story.pass_seconds(40).does(&[Step::Connect(w)]).pass_seconds(100).ends();
        assert_eq!(story.runs(0), runs);
    }
}

/// A finished record on the disk of a dead worker.
#[test]
fn worker_dir_recovery_removed_repeats_execution() {
    let mut story = Story::running(1, &[1]);
    story.rules.adoption = false;
    story.does(&[Step::Finish(0, 0, Ending::Reward, false), Step::KillWorker(0)]);
    story.does(&[Step::StartWorker(0)]).ends();
    assert_eq!(story.runs(0), 2);
}
