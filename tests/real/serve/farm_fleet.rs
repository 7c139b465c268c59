//! A daemon whose farms have their samples on workers of a server, every part of it a process that can
//! be killed.

use std::time::Duration;

use rollout_tests::cluster::{Cluster, ClusterMember};
use rollout_tests::leak_check::cluster_leaks;
use rollout_tests::net::free_port;
use rollout_tests::program::RunningProgram;
use rollout_tests::project::Project;
use rollout_tests::wait::{self, LONG_DEADLINE};
use rustix::process::Signal;

use crate::serve::{DEADLINE, DaemonProcess};

/// Lease of the workers: a killed one is noticed after this time, unless it is started again.
const LEASE: Duration = Duration::from_secs(4);

/// Slots of each worker.
const SLOTS: u32 = 3;

/// A daemon, its workers and their NATS server, in the order in which they end.
pub(crate) struct FarmFleet {
    pub(crate) daemon: DaemonProcess,
    pub(crate) workers: Vec<ClusterMember>,
    pub(crate) cluster: Cluster,
    port: u16,
    options: Vec<String>,
}

impl FarmFleet {
    /// Starts the daemon with additional options, and two workers with an environment variable;
    /// without a nats-server, the test is ignored.
    pub(crate) fn start(
        project: Project,
        options: &[&str],
        (name, value): (&str, &str),
    ) -> Option<Self> {
        let cluster = Cluster::new(project)?.with_lease(LEASE);
        let options: Vec<_> = options.iter().map(|&option| option.to_owned()).collect();
        let workers =
            ["a", "b"].map(|id| cluster.worker(id, SLOTS).with_variable(name, value).started());
        let port = free_port();
        let daemon = started(&cluster, port, &options);
        Some(Self { cluster, daemon, workers: workers.into(), port, options })
    }

    /// Kills the daemon and starts the next one at the same address.
    pub(crate) fn restart_daemon(&mut self) {
        kill(&mut self.daemon.process);
        self.start_daemon();
    }

    /// Starts the next daemon, after the end of the former one.
    pub(crate) fn start_daemon(&mut self) {
        self.daemon = started(&self.cluster, self.port, &self.options);
    }

    /// Ends the daemon in order. Its samples go on.
    pub(crate) fn stop_daemon(&mut self) {
        self.daemon.process.signal(Signal::TERM);
        wait::until(DEADLINE, "the daemon ends", || self.daemon.process.has_ended());
    }

    /// Kills a worker and starts the next one on its host.
    pub(crate) fn restart_worker(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        let _killed = worker.kill();
        worker.start();
    }

    /// Kills the NATS server, whose store is a directory, and starts it again.
    pub(crate) fn restart_server(&mut self) {
        self.cluster.server.kill();
        self.cluster.server.ensure_started();
    }

    /// Kills the NATS server, and starts it without its store.
    pub(crate) fn wipe_server(&mut self) {
        self.cluster.server.wipe();
        self.cluster.server.ensure_started();
    }

    /// Ends the daemon and the workers in order. Nothing of their samples is left then.
    #[track_caller]
    pub(crate) fn stop(mut self) {
        self.stop_daemon();
        for worker in &mut self.workers {
            let _ended = worker.terminate(DEADLINE);
        }
        let leaks = cluster_leaks(&self.cluster, &[], LONG_DEADLINE);
        assert_eq!(leaks, Vec::<String>::new(), "leftovers");
    }
}

/// kill -9.
pub(crate) fn kill(process: &mut RunningProgram) {
    process.signal(Signal::KILL);
    wait::until(DEADLINE, "a killed process ends", || process.has_ended());
}

fn started(cluster: &Cluster, port: u16, options: &[String]) -> DaemonProcess {
    let store = cluster.store().display().to_string();
    let options: Vec<_> =
        ["--store", &store].into_iter().chain(options.iter().map(String::as_str)).collect();
    DaemonProcess::start_with(&cluster.project, port, &options, |words| cluster.command(words))
}
