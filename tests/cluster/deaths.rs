//! Workers that die: where their trials go, and how soon.

use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::{Cluster, Member};
use rollout_tests::load::Load;
use rollout_tests::note;
use rollout_tests::wait;
use rollout_tests::witness::Witness;

use crate::{DEADLINE, LEASE, assert_nothing_left, assert_undisturbed, cluster};

/// What deciding and starting may take beyond the lease.
const BEYOND: Duration = Duration::from_secs(2);

/// Names the task whose trials kill their worker: only the program under test knows it.
const DEADLY: &str = "ROLLOUT_TEST_DEADLY_TASK";

/// Two trials that run on the first of the workers.
fn two_on_one(cluster: &Cluster, witness: &Witness, load: &Load) -> (Member, Member) {
    load.write(&cluster.project, witness);
    let worker = cluster.worker("a", 2).started();
    let coordinator = cluster.coordinator(&load.file()).started();
    wait::until(DEADLINE, "two agents", || witness.running() == 2);
    (worker, coordinator)
}

/// Waits until every trial runs again.
fn begun_again(witness: &Witness) -> Instant {
    wait::until(DEADLINE, "both to run again", || witness.repeated() == 2);
    Instant::now()
}

#[test]
fn worker_kill_moves_trials_within_lease() {
    let Some(cluster) = cluster() else { return };
    let (witness, load) = (Witness::start(), Load::new("elsewhere", 2, (9.0, 9.0)));
    let (mut dead, mut coordinator) = two_on_one(&cluster, &witness, &load);
    let other = cluster.worker("b", 2).started();
    wait::until(DEADLINE, "the other worker", || is_shown(&cluster, 2));
    let killed = Instant::now();
    dead.kill();
    let took = begun_again(&witness) - killed;
    note(&format!("ran elsewhere after {took:?} with a lease of {LEASE:?}"));
    assert!(took < LEASE + BEYOND, "{took:?}");
    let _ended = coordinator.wait(DEADLINE).expect(ExitCode::Success);
    assert_undisturbed(&cluster, &load);
    // Nobody has come since who could adopt what the dead one left.
    let next = cluster.worker("c", 1).started();
    wait::until(DEADLINE, "the adoption", || cluster.kept().len() == 2);
    assert_nothing_left(&cluster, &["elsewhere"], [other, next]);
}

#[test]
fn worker_restart_reports_lost_trials_at_once() {
    let Some(cluster) = cluster() else { return };
    let (witness, load) = (Witness::start(), Load::new("restarted", 2, (6.0, 6.0)));
    let (mut worker, mut coordinator) = two_on_one(&cluster, &witness, &load);
    worker.kill();
    let started = Instant::now();
    worker.start();
    let took = begun_again(&witness) - started;
    note(&format!("ran again after {took:?} with a lease of {LEASE:?}"));
    assert!(took < BEYOND, "{took:?}");
    let _ended = coordinator.wait(DEADLINE).expect(ExitCode::Success);
    assert_undisturbed(&cluster, &load);
    assert_nothing_left(&cluster, &["restarted"], [worker]);
}

#[test]
fn trial_that_kills_worker_is_poisoned_alone() {
    let Some(cluster) = cluster() else { return };
    let (witness, load) = (Witness::start(), Load::new("poison", 8, (2.0, 3.0)));
    load.write(&cluster.project, &witness);
    let poisonous = load.task(5);
    let mut worker = cluster.worker("a", 8).variable(DEADLY, &poisonous).started();
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let mut deaths = 0;
    wait::until(2 * DEADLINE, "the run to end", || {
        if !worker.is_up() {
            worker.kill();
            worker.start();
            deaths += 1;
        }
        !coordinator.is_up()
    });
    let _ended = coordinator.wait(DEADLINE).expect(ExitCode::Infrastructure);
    note(&format!("{deaths} deaths, {} executions", witness.seen().len()));
    assert!((3..=6).contains(&deaths), "{deaths} deaths");
    let results = cluster.project.results("poison");
    assert_eq!((results.count("completed_trials"), results.count("failed_trials")), (7, 1));
    for number in (1..=8).filter(|number| *number != 5) {
        let trial = results.trial("busy", &load.task(number));
        assert_eq!((trial.reward(), trial.error()), (Some(Load::reward(number)), None));
    }
    let poisoned = results.trial("busy", &poisonous);
    assert_eq!(poisoned.result["error"]["code"], "poisoned", "{:#}", poisoned.result);
    assert_nothing_left(&cluster, &["poison"], [worker]);
}

/// Whether so many workers are known to the server.
fn is_shown(cluster: &Cluster, count: usize) -> bool {
    let ended = cluster.command(&["workers", "--json"]).wait(DEADLINE);
    let lines = ended.stdout.matches("\"slots\"").count();
    lines == count
}
