//! Upgrades and rollbacks while a run is in progress: workers and coordinators of two programs share
//! its pool and its run directory.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use rollout_protocol::exit::ExitCode;
use rollout_tests::audit;
use rollout_tests::cluster::{Cluster, ClusterMember};
use rollout_tests::ignored::report_ignored_part;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::results::Results;
use rollout_tests::{print_notice, wait};

use crate::cluster::{DEADLINE, DRAIN_DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

/// Variable with the `rollout` of an earlier version.
const OLD_PROGRAM: &str = "ROLLOUT_TEST_OLD_PROGRAM";

const TRIALS: u32 = 100;

/// Slots of each worker.
const SLOTS: u32 = 3;

/// A run whose members are of the old or of the new program.
struct Upgrade {
    cluster: Cluster,
    counter: LiveCounter,
    load: Load,
    results: Results,
    old_program: Option<PathBuf>,
    stopped: u32,
    /// Workers that were drained.
    replaced: Cell<u32>,
}

impl Upgrade {
    /// A run that has not started; without a nats-server, the test is ignored.
    fn new(name: &str) -> Option<Self> {
        let cluster = cluster()?;
        let old_program = match std::env::var_os(OLD_PROGRAM) {
            Some(program) if program != "no" => Some(PathBuf::from(program)),
            _ => {
                report_ignored_part(&format!(
                    "formats of an earlier version: needs its program, named by {OLD_PROGRAM}; old \
                     members are of this build, which tests the order of the steps"
                ));
                None
            }
        };
        let (counter, load) = (LiveCounter::start(), Load::new(name, TRIALS, (0.4, 1.2)));
        load.write(&cluster.project, &counter);
        let results = cluster.project.results(name);
        let (stopped, replaced) = (0, Cell::new(0));
        Some(Self { cluster, counter, load, results, old_program, stopped, replaced })
    }

    /// The member, of the old program.
    fn old(&self, member: ClusterMember) -> ClusterMember {
        match &self.old_program {
            Some(program) => member.with_program(program),
            None => member,
        }
    }

    fn old_worker(&self, name: &str) -> ClusterMember {
        self.old(self.cluster.worker(name, SLOTS)).started()
    }

    fn new_worker(&self, name: &str) -> ClusterMember {
        self.cluster.worker(name, SLOTS).started()
    }

    fn old_coordinator(&self) -> ClusterMember {
        self.old(self.cluster.coordinator(&self.load.file())).started()
    }

    fn new_coordinator(&self) -> ClusterMember {
        self.cluster.coordinator(&self.load.file()).started()
    }

    /// The Job `setup` of the chart, with the new program.
    fn set_up(&self) {
        let store = self.cluster.store();
        let store = store.to_str().expect("a test's path is plain");
        let setup = self.cluster.command(&["setup", "--pool", "default", "--store", store]);
        let _ended = setup.wait(DEADLINE).expect_code(ExitCode::Success);
    }

    fn wait_for_results(&self, number: usize) {
        wait::until(DEADLINE, "results", || self.results.trial_count() >= number);
    }

    /// Ends a coordinator as the end of its pod does. The trials that run end their phase and are
    /// repeated.
    fn stop_coordinator(&mut self, mut coordinator: ClusterMember) {
        // Otherwise nothing would be drained.
        wait::until(DEADLINE, "a running trial", || self.counter.running() > 0);
        let _ended = coordinator.terminate(DEADLINE).expect_code(ExitCode::Cancelled);
        self.stopped += 1;
    }

    /// Replaces the workers one after the other: a new one works, then an old one drains.
    fn replace_workers(
        &self,
        leaving: Vec<ClusterMember>,
        mut start: impl FnMut() -> ClusterMember,
    ) -> Vec<ClusterMember> {
        let mut workers = Vec::new();
        let killed = self.counter.killed();
        for mut leaving in leaving {
            let mut next = start();
            next.wait_for_stderr("connected", DEADLINE);
            wait::until(DEADLINE, "the new worker to work", || !next.executing_items().is_empty());
            let _ended = leaving.terminate(DRAIN_DEADLINE).expect_code(ExitCode::Success);
            self.replaced.set(self.replaced.get() + 1);
            workers.push(next);
        }
        assert_eq!(self.counter.killed(), killed, "the drain of a worker lets agents end");
        workers
    }

    /// Waits for the end of the run, and audits it: every trial has one result, and only those that
    /// the stops of coordinators drained were repeated.
    fn finish(self, mut coordinator: ClusterMember, workers: Vec<ClusterMember>) {
        let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
        assert_undisturbed(&self.cluster, &self.load);
        let superseded = audit::superseded(&audit::settlements(&self.results));
        let drained = superseded.get("lost: Stopped").copied().unwrap_or_default();
        print_notice(&format!(
            "{} executions for {TRIALS} trials; drained and repeated: {superseded:?}",
            self.counter.observed().len()
        ));
        // One that waits for the answer to its claim when its worker is drained never begins. It is found
        // missing, or is still open when another worker has done its item.
        let known = ["lost: Stopped", "lost: Unreachable", "open"];
        assert!(superseded.keys().all(|how| known.contains(&how.as_str())), "{superseded:?}");
        // A claim may wait in each slot of a worker, and as many may wait without a slot.
        let open = superseded.get("open").copied().unwrap_or_default();
        assert!(open <= (self.replaced.get() * 2 * SLOTS) as usize, "{open} are open");
        // An execution may be drained before its agent starts.
        assert!(self.counter.repeated() <= drained, "{:?}", self.counter.executions());
        assert!(drained <= (self.stopped * 2 * SLOTS) as usize, "{drained} were drained");
        // An agent that has just begun may be ended by the stop of its run.
        assert!(self.counter.killed() <= drained, "{} agents were killed", self.counter.killed());
        let ids = audit::executions(&audit::settlements(&self.results));
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len(), "an execution is counted twice");
        assert_no_leaks(&self.cluster, &[&self.load.name], workers);
    }
}

#[test]
fn upgrade_in_order_of_chart_repeats_drained_trials_only() {
    let Some(mut upgrade) = Upgrade::new("upgrade") else { return };
    let workers = vec![upgrade.old_worker("old-a"), upgrade.old_worker("old-b")];
    let coordinator = upgrade.old_coordinator();
    upgrade.wait_for_results(15);
    // The first step of docs/deployment.md: the Jobs.
    upgrade.set_up();
    upgrade.stop_coordinator(coordinator);
    let mut coordinator = upgrade.new_coordinator();
    upgrade.wait_for_results(35);
    // The second step: the Deployment.
    let mut number = 0;
    let workers = upgrade.replace_workers(workers, || {
        number += 1;
        upgrade.new_worker(&format!("new-{number}"))
    });
    assert!(coordinator.is_running(), "the upgrade took longer than the run");
    upgrade.finish(coordinator, workers);
}

#[test]
fn upgrade_of_workers_before_coordinator_loses_nothing() {
    let Some(mut upgrade) = Upgrade::new("reversed") else { return };
    let workers = vec![upgrade.old_worker("old-a"), upgrade.old_worker("old-b")];
    let coordinator = upgrade.old_coordinator();
    upgrade.wait_for_results(15);
    upgrade.set_up();
    let mut number = 0;
    let workers = upgrade.replace_workers(workers, || {
        number += 1;
        upgrade.new_worker(&format!("new-{number}"))
    });
    upgrade.stop_coordinator(coordinator);
    let coordinator = upgrade.new_coordinator();
    upgrade.finish(coordinator, workers);
}

#[test]
fn rollback_resumes_run_or_refuses_before_any_change() {
    let Some(mut upgrade) = Upgrade::new("rollback") else { return };
    let workers = vec![upgrade.new_worker("new-a"), upgrade.new_worker("new-b")];
    let coordinator = upgrade.new_coordinator();
    upgrade.wait_for_results(15);
    upgrade.stop_coordinator(coordinator);
    let before = journal_files(&upgrade.results);
    let mut coordinator = upgrade.old_coordinator();
    let settled = upgrade.results.trial_count();
    let goes_on = || upgrade.results.trial_count() > settled;
    wait::until(DEADLINE, "the old coordinator", || !coordinator.is_running() || goes_on());
    if !coordinator.is_running() {
        let refused = coordinator.wait(DEADLINE).expect_code(ExitCode::RunDamaged);
        let refused = refused.expect_stderr("use a newer rollout");
        print_notice(&format!("the earlier version refuses the run:\n{}", refused.stderr));
        assert_eq!(journal_files(&upgrade.results), before, "it changed what it refused");
        let coordinator = upgrade.new_coordinator();
        return upgrade.finish(coordinator, workers);
    }
    let mut number = 0;
    let workers = upgrade.replace_workers(workers, || {
        number += 1;
        upgrade.old_worker(&format!("old-{number}"))
    });
    upgrade.finish(coordinator, workers);
}

#[test]
fn coordinator_that_hands_over_repeats_nothing() {
    let Some(upgrade) = Upgrade::new("handed") else { return };
    let workers = vec![upgrade.new_worker("a"), upgrade.new_worker("b")];
    let handing = || {
        let coordinator = upgrade.cluster.coordinator(&upgrade.load.file());
        coordinator.with_arguments(&["--hand-over"]).started()
    };
    let mut coordinator = handing();
    for results in [15, 35] {
        upgrade.wait_for_results(results);
        wait::until(DEADLINE, "trials to hand over", || upgrade.counter.running() > 0);
        let ended = coordinator.terminate(DRAIN_DEADLINE).expect_code(ExitCode::Cancelled);
        let _told = ended.expect_stderr("hands the run over");
        assert_pool_stays_bound(&upgrade);
        coordinator = handing();
    }
    // Nothing was drained, so nothing may be repeated.
    upgrade.finish(coordinator, workers);
}

/// Fails unless a run with another store is refused: the workers would leave the run that waits for
/// its next coordinator.
fn assert_pool_stays_bound(upgrade: &Upgrade) {
    let other = Load::new("other", 1, (0.1, 0.1));
    other.write(&upgrade.cluster.project, &upgrade.counter);
    let store = upgrade.cluster.project.path().join("other-store");
    let coordinator = upgrade.cluster.coordinator(&other.file());
    let store = store.to_str().expect("a test's path is plain");
    let mut coordinator = coordinator.with_option("--store", store).started();
    let refused = coordinator.wait(DEADLINE).expect_code(ExitCode::Config);
    let _told = refused.expect_stderr("uses the blob store");
}

/// Names and contents of the journal.
fn journal_files(results: &Results) -> BTreeMap<PathBuf, Vec<u8>> {
    let directory = results.path().join("journal");
    let files = rollout_tests::leak_check::directory_entries(&directory).into_iter();
    files.map(|file| (file.clone(), std::fs::read(file).expect("a file"))).collect()
}
