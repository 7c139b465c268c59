//! Runs over NATS in which the disk of one part loses its power: of the workers, of the coordinator or
//! of the blob store.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use rollout_tests::cluster::{Cluster, ClusterMember};
use rollout_tests::leak_check::directory_entries;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::power_disk::{DiskOptions, PowerCut, PowerCuts, PowerDisk};
use rollout_tests::project::Project;
use rollout_tests::wait;
use serde_json::Value;

use crate::power::runs::result_faults;
use crate::power::{
    CUTS_PER_DISK, DEADLINE, PROGRAM, SettledTrials, damaged_blobs, each_disk_of, failure,
};

/// Longest time between two cuts.
const LONGEST: Duration = Duration::from_secs(3);

/// The same while results wait in the spool: until the first of them waits.
pub(super) const LONGEST_OF_SPOOL: Duration = Duration::from_secs(1);

/// Cuts of one disk while results wait in the spool, once.
pub(super) const CUTS_OF_SPOOL: usize = 1;

/// After a lease, other workers get the offers that a killed one had taken from the queue.
const LEASE: Duration = Duration::from_secs(4);

/// Longer than workers without power are away: no trial runs again because they were taken for dead.
const LONG_LEASE: Duration = Duration::from_secs(20);

/// Time without a blob store in which a trial ends and waits in the spool.
const SPOOL_DEADLINE: Duration = Duration::from_secs(10);

/// The part whose disk loses its power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CutPart {
    Workers {
        /// Whether the blob store is away before a cut, so that results wait in the spool.
        is_store_away: bool,
    },
    Coordinator,
    Store,
}

impl CutPart {
    /// The directory of the disk in the project.
    fn place(self) -> &'static str {
        match self {
            Self::Workers { .. } => "host",
            Self::Coordinator => "jobs",
            Self::Store => "store",
        }
    }

    /// The lease of the queue, and a load. Results that wait in the spool are expected from the worker
    /// that has them: every trial has a slot, so that no offer waits for the end of a lease.
    fn work(self) -> (Duration, Load) {
        match self {
            Self::Workers { is_store_away: true } => {
                (LONG_LEASE, Load { at_once: 8, ..Load::new("dark", 8, (0.3, 2.5)) })
            }
            _ => (LEASE, Load { at_once: 8, ..Load::new("dark", 20, (0.3, 0.9)) }),
        }
    }

    /// The processes that use it, among the coordinator and two workers.
    fn members(self) -> Range<usize> {
        match self {
            Self::Workers { .. } => 1..3,
            Self::Coordinator => 0..1,
            Self::Store => 0..3,
        }
    }
}

/// A run over NATS with a disk. The processes end before the disk, and the disk before the project.
struct PoweredRun {
    part: CutPart,
    /// The coordinator and two workers.
    members: Vec<ClusterMember>,
    disk: PowerDisk,
    cluster: Cluster,
    counter: LiveCounter,
    load: Load,
    settled: SettledTrials,
    /// Trials whose results were on the workers' disk before a cut.
    spooled: SettledTrials,
}

impl PoweredRun {
    fn start(part: CutPart, options: DiskOptions, prepare: impl FnOnce(&Project)) -> Option<Self> {
        let (lease, load) = part.work();
        let cluster = Cluster::new(Project::new(PROGRAM))?.with_lease(lease);
        let place = cluster.project.path().join(part.place());
        fs::create_dir(&place).expect("a directory");
        let disk = PowerDisk::mount(PROGRAM, &place, options)?;
        prepare(&cluster.project);
        let counter = LiveCounter::start();
        load.write(&cluster.project, &counter);
        let coordinator = cluster.coordinator(&load.file()).with_arguments(&["--json"]);
        let workers = ["a", "b"].map(|name| cluster.worker(name, 4));
        let members = [coordinator].into_iter().chain(workers).map(ClusterMember::started);
        let members = members.collect();
        let (settled, spooled) = (SettledTrials::default(), SettledTrials::default());
        Some(Self { part, members, disk, cluster, counter, load, settled, spooled })
    }

    /// Cuts the power of the disk, and starts the processes that used it again.
    fn cut(&mut self, cut: &PowerCut) {
        let mut cut = *cut;
        let Self { part, members, disk, cluster, counter, load, settled, spooled } = self;
        let [store, away] = [cluster.store(), cluster.project.path().join("away")];
        let is_store_away = *part == CutPart::Workers { is_store_away: true };
        if is_store_away {
            // Later the server could lose an offer with a killed worker, until the end of a lease.
            wait::until(DEADLINE, "every trial runs", || {
                counter.observed().len() >= usize::try_from(load.items).expect("few")
            });
            wait::holds_within(cut.after, || !members[0].is_running());
            cut.after = Duration::ZERO;
            // With a marker in the store, a result is found there without the spool.
            fs::rename(&store, &away).expect("moved");
            let mut tasks = BTreeSet::new();
            wait::holds_within(SPOOL_DEADLINE, || {
                tasks = spooled_tasks(&cluster.project.path().join(part.place()));
                !tasks.is_empty()
            });
            spooled.add(tasks);
        }
        let cut_off = part.members();
        let pids: Vec<u32> =
            members[cut_off.clone()].iter_mut().map(|one| one.process().pid()).collect();
        disk.cut(&cut, &pids, || !members[0].is_running());
        settled.read(&members[0].process().stdout());
        for member in &mut members[cut_off.clone()] {
            let _killed = member.kill();
        }
        disk.restart(cut.late);
        if is_store_away {
            fs::rename(&away, &store).expect("moved back");
        }
        members[cut_off].iter_mut().for_each(ClusterMember::start);
    }

    /// Waits for the end, and returns what is wrong.
    fn faults(mut self) -> Vec<String> {
        let ended = self.members[0].wait(DEADLINE);
        let mut faults: Vec<String> = failure(&ended).into_iter().collect();
        let mut logs = String::new();
        for worker in &mut self.members[1..] {
            wait::until(DEADLINE, "a worker has started or ended", || {
                worker.own_dir().is_some() || !worker.is_running()
            });
            let ended = worker.terminate(DEADLINE);
            faults.extend(failure(&ended));
            logs += &ended.stderr;
        }
        let results = self.cluster.project.results(&self.load.name);
        faults.extend(result_faults(&self.load, &results));
        faults.extend(self.settled.repeated(&self.counter));
        faults.extend(self.spooled.repeated(&self.counter));
        faults.extend(damaged_blobs(&self.cluster.store()));
        let left = self.cluster.host_files().into_iter();
        faults.extend(left.map(|file| format!("a worker left {}; {logs}", file.display())));
        faults
    }
}

/// Tasks with a finished execution in the spool of a worker of a host. As long as an execution has its
/// scratch directory, its entry in the spool may be unfinished.
fn spooled_tasks(host: &Path) -> BTreeSet<String> {
    let deployments = directory_entries(&host.join("workers"));
    let workers = deployments.iter().flat_map(|deployment| directory_entries(deployment));
    let entries = workers.flat_map(|worker| {
        let entries = directory_entries(&worker.join("spool")).into_iter();
        entries.filter(move |entry| {
            let scratch = entry.file_name().map(|name| worker.join("scratch").join(name));
            scratch.is_some_and(|scratch| !scratch.exists())
        })
    });
    let task = |entry: &Path| {
        let text = fs::read_to_string(entry.join("entry.json")).ok()?;
        let entry: Value = serde_json::from_str(text.lines().next()?).ok()?;
        Some(entry["record"]["trial"]["task"].as_str()?.to_owned())
    };
    entries.filter_map(|entry| task(&entry)).collect()
}

/// Runs a load over NATS. `prepare` may change its project.
pub(super) fn cluster_faults(
    part: CutPart,
    options: DiskOptions,
    cuts: &mut PowerCuts,
    prepare: impl FnOnce(&Project),
) -> Option<Vec<String>> {
    let mut run = PoweredRun::start(part, options, prepare)?;
    cuts.for_each(|cut| run.cut(&cut));
    Some(run.faults())
}

fn assert_no_faults(part: CutPart) {
    let (cuts, longest) = match part {
        CutPart::Workers { is_store_away: true } => (CUTS_OF_SPOOL, LONGEST_OF_SPOOL),
        _ => (CUTS_PER_DISK, LONGEST),
    };
    each_disk_of(cuts, longest, |options, cuts| {
        let faults = cluster_faults(part, options, cuts, |_| {})?;
        assert_eq!(faults, Vec::<String>::new());
        Some(())
    });
}

#[test]
fn workers_after_power_cuts_report_what_they_finished_over_nats() {
    assert_no_faults(CutPart::Workers { is_store_away: true });
}

#[test]
fn workers_after_power_cuts_complete_a_run_over_nats() {
    assert_no_faults(CutPart::Workers { is_store_away: false });
}

#[test]
fn coordinator_after_power_cuts_repeats_no_settled_trial_over_nats() {
    assert_no_faults(CutPart::Coordinator);
}

#[test]
fn blob_store_after_power_cuts_has_all_that_is_settled_over_nats() {
    assert_no_faults(CutPart::Store);
}
