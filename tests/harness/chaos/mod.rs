//! Chaos runs: kill, pause and cut off the processes of a cluster, then check that the results
//! equal those of an undisturbed run.

mod fault_injector;
mod random;
mod search;
mod unmarked_results;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;

use self::fault_injector::FaultInjector;
use self::unmarked_results::UnmarkedResults;
use crate::cluster::{Cluster, ClusterMember};
use crate::live_counter::LiveCounter;
use crate::load::Load;
use crate::project::Project;
use crate::{audit, leak_check, wait};

pub use self::search::{run_local_search, run_search};

/// Time after the end within which all leftovers must disappear.
const LEFTOVER_DEADLINE: Duration = Duration::from_secs(60);

/// Time an idle worker may take to exit.
const DRAIN_DEADLINE: Duration = Duration::from_secs(30);

/// Parameters of a chaos run.
#[derive(Debug, Clone)]
pub struct ChaosPlan {
    /// Seed of all actions and pauses.
    pub seed: u64,
    /// How long faults are injected, unless the runs complete earlier.
    pub disturbed: Duration,
    /// Trials of each provider.
    pub items: u32,
    /// Workers.
    pub workers: u32,
    /// Slots of each worker.
    pub slots: u32,
    /// Duration of the shortest and the longest agent.
    pub seconds: (f64, f64),
    /// Providers, each with its own run.
    pub providers: Vec<String>,
    /// Shortest and longest pause between two actions, in seconds.
    pub pause: (f64, f64),
    /// The lease of the queue.
    pub lease: Duration,
    /// The first worker that is killed stays dead.
    pub no_return: bool,
    /// Only kill -9 and immediate restart, of any process.
    pub only_kills: bool,
    /// Keep the blobs in S3, on a server that is disturbed as well. This program runs it.
    pub s3_program: Option<PathBuf>,
}

impl ChaosPlan {
    /// The cluster of the plan; `None` without a nats-server.
    fn cluster(&self, project: Project) -> Option<Cluster> {
        let cluster = Cluster::new(project)?.with_lease(self.lease);
        Some(match &self.s3_program {
            Some(program) => cluster.with_s3_store(program),
            None => cluster,
        })
    }

    /// Time within which runs must complete after the last fault: a worker given up for dead
    /// returns after a lease, and all work may have to be repeated once.
    fn completion_deadline(&self) -> Duration {
        let slots = f64::from(self.workers * self.slots);
        let work = f64::from(self.items) * self.seconds.1 * self.providers.len() as f64 / slots;
        3 * self.lease + Duration::from_secs_f64(60.0 + 4.0 * work)
    }
}

/// Result of a chaos run.
#[derive(Debug, Default)]
pub struct ChaosReport {
    /// Duration of the runs, including the time without faults.
    pub took: Duration,
    /// How often each action was taken.
    pub actions: BTreeMap<&'static str, u32>,
    /// Executions of agents, as seen by the live counter.
    pub executions: usize,
    /// Executions beyond the first of each trial.
    pub repeated: usize,
    /// Killed executions.
    pub killed: usize,
    /// Executions that were running on a worker when a fault hit it, and those whose reports only a
    /// wiped server had.
    pub exposed: usize,
    /// Executions that did not settle their trials, by how they ended according to the records.
    pub superseded: BTreeMap<String, usize>,
    /// Violated expectations.
    pub problems: Vec<String>,
}

impl fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { took, actions, executions, repeated, killed, exposed, .. } = self;
        writeln!(f, "{:.1} s, {actions:?}", took.as_secs_f64())?;
        writeln!(
            f,
            "{executions} executions, {killed} of them killed; {repeated} repeated, {exposed} were \
             exposed to a fault; records: {:?}",
            self.superseded
        )?;
        for problem in &self.problems {
            writeln!(f, "PROBLEM: {problem}")?;
        }
        Ok(())
    }
}

/// Runs the plan in an empty project; `None` without a nats-server. Reports every action to `say`.
///
/// # Panics
/// When anything is left behind, or a process misbehaves.
pub fn run_jobs(plan: &ChaosPlan, project: Project, say: &dyn Fn(&str)) -> Option<ChaosReport> {
    let mut cluster = plan.cluster(project)?;
    let counter = LiveCounter::start();
    let loads: Vec<_> = plan.providers.iter().map(|provider| load(plan, provider)).collect();
    for load in &loads {
        load.write(&cluster.project, &counter);
    }
    let proxied = |member: ClusterMember| member.through_tcp_proxy(&cluster.server).started();
    let workers = (1..=plan.workers).map(|number| {
        let worker = cluster.worker(&format!("worker {number}"), plan.slots);
        let all =
            plan.providers.iter().fold(worker.without_option("--provider"), |worker, provider| {
                worker.with_arguments(&["--provider", provider])
            });
        proxied(all)
    });
    let workers: Vec<_> = workers.collect();
    let coordinators = loads.iter().map(|load| {
        let mut coordinator = cluster.coordinator(&load.file());
        coordinator.name = format!("coordinator of {}", load.name);
        proxied(coordinator)
    });
    let coordinators: Vec<_> = coordinators.collect();

    let began = Instant::now();
    let runs = loads.iter().map(|load| cluster.project.results(&load.name)).collect();
    let unmarked = UnmarkedResults::new(&counter, runs);
    let mut injector = FaultInjector::new(plan, &mut cluster, coordinators, workers, unmarked, say);
    let mut report = ChaosReport {
        problems: injector.run_until_complete(),
        took: began.elapsed(),
        ..ChaosReport::default()
    };
    (report.actions, report.exposed) = (injector.actions.clone(), injector.exposed_executions);
    let workers = injector.into_workers();
    check(&mut report, &cluster, &loads, &counter, workers);
    if !report.problems.is_empty() {
        cluster.project.preserve();
    }
    Some(report)
}

fn load(plan: &ChaosPlan, provider: &str) -> Load {
    Load { provider: provider.to_owned(), ..Load::new(provider, plan.items, plan.seconds) }
}

fn check(
    report: &mut ChaosReport,
    cluster: &Cluster,
    loads: &[Load],
    counter: &LiveCounter,
    workers: Vec<ClusterMember>,
) {
    if !report.problems.is_empty() {
        return;
    }
    drain_workers(report, counter, workers);
    let mut executions = Vec::new();
    for load in loads {
        let results = cluster.project.results(&load.name);
        report.problems.extend(audit::differences(load, &results));
        let settlements = audit::settlements(&results);
        executions.extend(audit::executions(&settlements));
        for (how, count) in audit::superseded(&settlements) {
            *report.superseded.entry(how).or_default() += count;
        }
    }
    report.executions = counter.observed().len();
    (report.repeated, report.killed) = (counter.repeated(), counter.killed());
    let seen = counter.executions();
    let trials: usize = loads.iter().map(|load| load.items as usize).sum();
    if seen.len() != trials {
        report.problems.push(format!("only {} of {trials} trials were seen", seen.len()));
    }
    if report.repeated > report.exposed {
        report.problems.push("more was repeated than was exposed to faults".to_owned());
    }
    let left = cluster.host_files();
    if !left.is_empty() {
        report.problems.push(format!("left by workers: {left:?}"));
    }
    report.problems.extend(leak_check::cluster_leaks(cluster, &executions, LEFTOVER_DEADLINE));
}

/// Waits until nothing runs, then terminates the workers.
fn drain_workers(report: &mut ChaosReport, counter: &LiveCounter, mut workers: Vec<ClusterMember>) {
    let idle = |workers: &[ClusterMember]| workers.iter().all(|w| w.executing_items().is_empty());
    if !wait::holds_within(LEFTOVER_DEADLINE, || idle(&workers) && counter.running() == 0) {
        report.problems.push("an agent still runs although all trials are settled".to_owned());
    }
    for worker in &mut workers {
        // A process that has just begun does not handle signals yet. It makes its directory later.
        wait::holds_within(DRAIN_DEADLINE, || !worker.is_running() || worker.own_dir().is_some());
        if !worker.is_running() {
            continue;
        }
        let name = worker.name.clone();
        let ended = worker.terminate(DRAIN_DEADLINE);
        if ended.status.code() != Some(i32::from(ExitCode::Success.code())) {
            report.problems.push(format!("{name} exited with {}: {}", ended.status, ended.stderr));
        }
    }
}
