//! Workers whose disk fails: they take no work and give back what they hold, and others do it.

use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::{Cluster, ClusterMember};
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::read_only_mount::ReadOnlyMount;
use rollout_tests::wait;

use crate::cluster::{DEADLINE, DRAIN_DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

/// Starts a worker with files of its own, apart from those of the other workers.
fn worker_in(cluster: &Cluster, directory: &Path, slots: u32) -> ClusterMember {
    let directory = directory.to_str().expect("a test's path is plain");
    let worker = cluster.worker("broken", slots).with_option("--dir", directory).started();
    wait::until(DEADLINE, "the directory of the worker", || worker.own_dir().is_some());
    worker
}

/// What `rollout workers` prints.
fn workers(cluster: &Cluster) -> String {
    cluster.command(&["workers"]).wait(DEADLINE).expect_code(ExitCode::Success).stdout
}

#[test]
fn worker_whose_directory_is_gone_takes_no_work_until_it_is_back() {
    let Some(cluster) = cluster() else { return };
    let (counter, load) = (LiveCounter::start(), Load::new("gone", 16, (0.1, 0.3)));
    load.write(&cluster.project, &counter);
    // Workers that are there before any run show their state once the server is set up.
    let set_up = cluster.command(&["setup"]).wait(DEADLINE);
    let _set_up = set_up.expect_code(ExitCode::Success);
    let broken = worker_in(&cluster, &cluster.project.path().join("broken"), 4);
    let healthy = cluster.worker("healthy", 2).started();
    wait::until(DEADLINE, "both workers", || workers(&cluster).matches("working").count() == 2);
    let own = broken.own_dir().expect("its directory");
    let aside = cluster.project.path().join("aside");
    std::fs::rename(&own, &aside).expect("moved");
    wait::until(DEADLINE, "the state of the worker", || workers(&cluster).contains("disk failed"));

    let ended = cluster.coordinator(&load.file()).started().wait(DEADLINE);
    let ended = ended.expect_code(ExitCode::Success);
    assert!(ended.stderr.contains("takes no work: cannot write to "), "{}", ended.stderr);
    assert_undisturbed(&cluster, &load);
    assert_eq!(counter.repeated(), 0, "no trial began on the broken worker");
    let id = own.file_name().expect("a name").to_string_lossy().into_owned();
    for trial in cluster.project.results("gone").trials() {
        assert_ne!(trial.result["worker"], *id, "{}", trial.name);
    }

    std::fs::rename(&aside, &own).expect("moved back");
    wait::until(DEADLINE, "both workers", || workers(&cluster).matches("working").count() == 2);
    assert_no_leaks(&cluster, &["gone"], [broken, healthy]);
}

#[test]
fn trials_on_a_disk_that_becomes_read_only_run_again_elsewhere() {
    let Some(cluster) = cluster() else { return };
    // They last longer than a worker waits for its disk.
    let (counter, load) = (LiveCounter::start(), Load::new("given", 2, (45.0, 45.0)));
    load.write(&cluster.project, &counter);
    let directory = cluster.project.path().join("broken");
    let mut broken = worker_in(&cluster, &directory, 2);
    let mut coordinator = cluster.coordinator(&load.file()).started();
    wait::until(DEADLINE, "two agents", || counter.running() == 2);
    let Some(mount) = ReadOnlyMount::over(&directory) else { return };
    let mut healthy = cluster.worker("healthy", 2).started();
    broken.wait_for_stderr("Read-only file system", DEADLINE);
    wait::until(DEADLINE, "both to run again", || counter.repeated() == 2);
    let ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(ended.stderr.contains("Read-only file system"), "{}", ended.stderr);
    assert_undisturbed(&cluster, &load);
    drop(mount);
    for worker in [&mut broken, &mut healthy] {
        let ended = worker.terminate(DRAIN_DEADLINE);
        assert!(ended.status.success(), "{}: {}", worker.name, ended.stderr);
    }
}
