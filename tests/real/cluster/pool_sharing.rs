//! Runs that share a pool.

use rollout_protocol::exit::ExitCode;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::print_notice;
use rollout_tests::wait;
use rustix::process::Signal;

use crate::cluster::{DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

#[test]
fn small_run_beside_big_run_is_not_starved() {
    let Some(cluster) = cluster() else { return };
    let counter = LiveCounter::start();
    let big = Load::new("big", 1, (0.3, 0.3)).with_lines("n_attempts: 10000");
    let small = Load::new("small", 10, (0.3, 0.3));
    big.write(&cluster.project, &counter);
    small.write(&cluster.project, &counter);
    let workers = ["a", "b"].map(|name| cluster.worker(name, 2).started());
    let mut first = cluster.coordinator(&big.file()).started();
    let of_big = || counter.executions().get(&big.task(1)).copied().unwrap_or_default();
    wait::until(DEADLINE, "20 trials of the big run", || of_big() >= 20);

    let before = of_big();
    let mut second = cluster.coordinator(&small.file()).started();
    let _ended = second.wait(DEADLINE).expect_code(ExitCode::Success);
    let meanwhile = of_big() - before;
    print_notice(&format!(
        "the small run's 10 trials took as long as {meanwhile} of the big run's"
    ));
    assert!(first.is_running() && meanwhile < 100, "{meanwhile}");
    assert_undisturbed(&cluster, &small);

    first.process().signal(Signal::INT);
    first.wait_for_stderr("stop", DEADLINE);
    first.process().signal(Signal::INT);
    let _ended = first.wait(DEADLINE).expect_code(ExitCode::Cancelled);
    assert_no_leaks(&cluster, &["big", "small"], workers);
}
