//! The real worker service, and the real engine, in paused time under random faults.
//!
//! Several workers, a queue, a store and the sessions of one run live in one process. Time is
//! `tokio`'s: it advances when nothing can proceed, so that leases, silence and retries of minutes
//! take milliseconds. Only the journal's thread is outside of this time. A schedule is a sequence
//! of random faults, derived from its seed; the order of concurrent tasks makes two runs of one
//! seed similar, not equal. The simulation beside this module is exact, and 500 times faster.

mod faults;
mod fleet;
mod log;
mod planner;
mod session;

use rand::SeedableRng as _;
use rand::rngs::StdRng;

use self::faults::{FaultKinds, inject_faults};
use self::fleet::Fleet;
use crate::random_schedules::env_number;

/// Schedules of all families together.
const SCHEDULES: u64 = 1_000;

fn schedules() -> u64 {
    env_number("ROLLOUT_MODEL_SCHEDULES").map_or(SCHEDULES, |n| n / 100).max(4)
}

/// Runs a quarter of all schedules with these faults.
fn assert_each_item_settles_once(kinds: FaultKinds) {
    let seeds = match env_number("ROLLOUT_MODEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..schedules() / 4,
    };
    for seed in seeds {
        // A runtime of its own: what a schedule leaves behind ends with it.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let problems = runtime.block_on(run_schedule(seed, kinds));
        assert!(problems.is_empty(), "{problems:#?}\nROLLOUT_MODEL_SEED={seed}, {kinds:?}");
    }
}

/// Faults for a while, then a healed world; returns violated invariants.
async fn run_schedule(seed: u64, kinds: FaultKinds) -> Vec<String> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut fleet = Fleet::start(&mut random).await;
    inject_faults(&mut fleet, &mut random, kinds).await;
    fleet.heal().await;
    fleet.complete().await;
    fleet.problems().await
}

#[test]
fn real_workers_killed_at_random_settle_each_item_once() {
    assert_each_item_settles_once(FaultKinds { workers: true, ..FaultKinds::default() });
}

#[test]
fn real_workers_over_failing_server_settle_each_item_once() {
    assert_each_item_settles_once(FaultKinds { server: true, ..FaultKinds::default() });
}

#[test]
fn real_workers_and_killed_coordinators_settle_each_item_once() {
    assert_each_item_settles_once(FaultKinds { coordinators: true, ..FaultKinds::default() });
}

#[test]
fn real_workers_under_all_faults_settle_each_item_once() {
    assert_each_item_settles_once(FaultKinds { workers: true, server: true, coordinators: true });
}
