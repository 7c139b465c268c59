//! Runs on three NATS servers that keep three copies of every stream.

use std::time::Duration;

use rollout_protocol::Timestamp;
use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::nats_cluster::NatsCluster;
use rollout_tests::results::Results;
use rollout_tests::wait;

use crate::cluster::{DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

/// Streams and buckets of a namespace.
const STREAMS: usize = 4;

/// A lease that outlasts the choice of new leaders, as the default one does: no worker is taken for
/// lost while its heartbeats have no leader.
const OUTLASTING_LEASE: Duration = Duration::from_secs(30);

/// The default lease. The choice of new leaders takes a part of it.
const DEFAULT_LEASE: Duration = Duration::from_secs(60);

/// Lines of `rollout doctor` about copies, once every stream has a leader; empty before.
fn copies(cluster: &Cluster) -> Vec<String> {
    let doctor = cluster.command(&["doctor"]).wait(DEADLINE);
    let lines = doctor.stdout.lines().map(str::trim).filter(|line| line.starts_with("copies "));
    let lines: Vec<_> = lines.map(str::to_owned).collect();
    let is_led = |line: &String| line.contains(": leader tests-");
    if doctor.status.success() && lines.iter().all(is_led) { lines } else { Vec::new() }
}

/// Waits until every stream has three copies with the same content.
#[track_caller]
fn wait_for_copies(cluster: &Cluster, nats: &NatsCluster) {
    let is_whole = |line: &String| {
        line.starts_with("copies   3:") && !line.contains("(offline)") && !line.contains("(behind)")
    };
    let whole = wait::holds_within(DEADLINE, || {
        let copies = copies(cluster);
        copies.len() == STREAMS && copies.iter().all(is_whole)
    });
    if !whole {
        let doctor = cluster.command(&["doctor"]).wait(DEADLINE);
        let (stdout, stderr) = (&doctor.stdout, &doctor.stderr);
        panic!("not all streams have three copies:\n{stdout}\n{stderr}\n{}", nats.logs());
    }
}

/// Number of the server that leads a stream: 0 is the stream of offers, 1 that of reports.
fn leader(cluster: &Cluster, nats: &NatsCluster, stream: usize) -> usize {
    let mut found = None;
    wait::until(DEADLINE, "a leader", || {
        let copies = copies(cluster);
        let name =
            copies.get(stream).and_then(|line| line.split_once("leader ")?.1.split(',').next());
        found = name.and_then(|name| nats.number_of(name));
        found.is_some()
    });
    found.expect("it was found")
}

/// Trials of a run that may run at once.
const AT_ONCE: u32 = 12;

/// A run with this many trials and a lease over three servers, of which `disturb` makes some
/// unavailable. It gets a function that waits for a number of results. `check` gets the results.
fn assert_run_survives(
    trials: u32,
    lease: Duration,
    disturb: impl Fn(&Cluster, &mut NatsCluster, &dyn Fn(usize)),
    check: impl Fn(&Results),
) {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(mut nats) = NatsCluster::start(directory.path()) else { return };
    let Some(cluster) = cluster() else { return };
    let cluster = cluster.with_nats_cluster(&nats).with_lease(lease);
    let counter = LiveCounter::start();
    let load = Load { at_once: AT_ONCE, ..Load::new("copied", trials, (0.6, 1.2)) };
    load.write(&cluster.project, &counter);
    let workers = ["a", "b"].map(|name| cluster.worker(name, AT_ONCE / 2).started());
    let mut coordinator = cluster.coordinator(&load.file()).started();
    let results = cluster.project.results("copied");
    disturb(&cluster, &mut nats, &|count| {
        wait::until(DEADLINE, "more results", || results.trial_count() >= count);
    });
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!((counter.killed(), counter.repeated()), (0, 0), "{:?}", counter.observed());
    assert_undisturbed(&cluster, &load);
    check(&results);
    assert_no_leaks(&cluster, &["copied"], workers);
}

/// The longest time in which no trial began although there were more of them than slots. (A delivery
/// that a server loses when it ends comes again later, and may be one of the last.)
fn longest_standstill(results: &Results) -> Duration {
    let trials = results.trials();
    let begin = |result: &serde_json::Value| -> Timestamp {
        let text = result["timestamps"]["started_at"].as_str().expect("a time");
        text.parse().expect("a time")
    };
    let mut begins: Vec<Timestamp> = trials.iter().map(|trial| begin(&trial.result)).collect();
    begins.sort_unstable();
    begins.truncate(begins.len().saturating_sub(AT_ONCE as usize));
    let pauses = begins.windows(2).map(|pair| pair[1].duration_since(pair[0]).unsigned_abs());
    pauses.max().unwrap_or_default()
}

#[test]
fn run_survives_kill_and_restarts_of_servers() {
    let disturb = |cluster: &Cluster, nats: &mut NatsCluster, settled: &dyn Fn(usize)| {
        settled(50);
        let killed = leader(cluster, nats, 0);
        nats.kill(killed);
        settled(120);
        nats.restart(killed);
        wait_for_copies(cluster, nats);

        for number in nats.numbers() {
            nats.stop(number);
            nats.restart(number);
            wait_for_copies(cluster, nats);
        }
    };
    assert_run_survives(350, OUTLASTING_LEASE, disturb, |_| {});
}

#[test]
fn rolling_restarts_of_servers_stop_no_run_for_a_lease() {
    // The coordinator connects again and again, to a namespace that is younger than a lease, before
    // the workers have begun what it offered.
    let disturb = |_: &Cluster, nats: &mut NatsCluster, settled: &dyn Fn(usize)| {
        settled(120);
        for number in nats.numbers().chain(nats.numbers()) {
            nats.stop(number);
            nats.restart(number);
        }
    };
    assert_run_survives(300, DEFAULT_LEASE, disturb, |results| {
        let pause = longest_standstill(results);
        assert!(pause < DEFAULT_LEASE, "no trial began for {pause:?}");
    });
}

#[test]
fn run_survives_partition_of_servers() {
    let disturb = |cluster: &Cluster, nats: &mut NatsCluster, settled: &dyn Fn(usize)| {
        settled(50);
        let isolated = leader(cluster, nats, 1);
        nats.cut_off(isolated);
        // The others agree on a new leader, and the run goes on through them.
        settled(150);
        nats.reconnect(isolated);
        wait_for_copies(cluster, nats);
    };
    assert_run_survives(250, OUTLASTING_LEASE, disturb, |_| {});
}

#[test]
fn setup_changes_the_copies_of_existing_streams() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(mut nats) = NatsCluster::start(directory.path()) else { return };
    let Some(cluster) = cluster() else { return };
    let cluster = cluster.with_nats_cluster(&nats);
    let setup =
        |copies: &str| cluster.command(&["setup", "--nats-replicas", copies]).wait(DEADLINE);
    wait::until(DEADLINE, "streams with one copy", || setup("1").status.success());
    assert!(copies(&cluster).iter().all(|line| line.starts_with("copies   1:")));
    let changed = setup("3").expect_code(ExitCode::Success);
    assert!(changed.stdout.contains("changed: ROLLOUT_WORK, "), "{}", changed.stdout);
    wait_for_copies(&cluster, &nats);
    let refused = setup("5").expect_code(ExitCode::Config);
    assert!(refused.stderr.contains("cannot keep 5 copies of ROLLOUT_WORK"), "{}", refused.stderr);
    nats.kill(0);
    wait::until(DEADLINE, "an answer of the others", || copies(&cluster).len() == STREAMS);
}
