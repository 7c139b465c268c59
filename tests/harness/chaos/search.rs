//! Chaos runs of a tree search: kill its processes all the time, then check that the result equals
//! that of an undisturbed search.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;
use rollout_protocol::record::Settlement;
use rustix::process::Signal;

use super::fault_injector::FaultInjector;
use super::random::ChaosRng;
use super::unmarked_results::UnmarkedResults;
use super::{ChaosPlan, ChaosReport, LEFTOVER_DEADLINE, drain_workers};
use crate::leak_check::{self, directory_entries};
use crate::live_counter::LiveCounter;
use crate::program::RunningProgram;
use crate::project::Project;
use crate::results::Results;
use crate::search::{self, ExampleSearch};
use crate::{audit, wait};

/// Run directories of the undisturbed and the disturbed search.
const RUNS: [&str; 2] = ["undisturbed", "disturbed"];

/// How long an undisturbed search may take.
const UNDISTURBED_DEADLINE: Duration = Duration::from_secs(240);

/// A search and the result of its undisturbed run.
struct SearchBaseline {
    search: ExampleSearch,
    counter: LiveCounter,
    /// Executions that the undisturbed run needed.
    needed: usize,
}

impl SearchBaseline {
    /// Runs the search undisturbed in one process. Also returns the project.
    fn new(project: Project, say: &dyn Fn(&str)) -> (Self, Project) {
        let counter = LiveCounter::start();
        let search = ExampleSearch::with_live_counter(&counter);
        let project = search.write(project);
        let run = project.rollout(&["tree", "run", &search.file, "--runs-root", RUNS[0]]);
        let ended = run.wait(UNDISTURBED_DEADLINE).expect_code(ExitCode::Success);
        let needed = counter.observed().len();
        say(&format!("undisturbed: {:.1} s, {needed} executions", ended.took.as_secs_f64()));
        (Self { search, counter, needed }, project)
    }

    fn directories(&self, project: &Project) -> [PathBuf; 2] {
        RUNS.map(|root| self.search.directory(project, root))
    }

    /// Compares the results and returns the short names of all executions.
    fn check(&self, report: &mut ChaosReport, project: &Project) -> Vec<String> {
        let [undisturbed, disturbed] = self.directories(project);
        report.problems.extend(search::differences(&undisturbed, &disturbed));
        report.problems.extend(search::leaked_files(&undisturbed));
        report.problems.extend(search::leaked_files(&disturbed));
        let [expected, settlements] =
            [undisturbed, disturbed].map(|run| audit::settlements(&Results::new(run)));
        let names = |all: &[Settlement]| {
            all.iter().map(|settlement| settlement.name.to_string()).collect::<Vec<_>>()
        };
        let [mut expected, mut recorded] = [names(&expected), names(&settlements)];
        expected.sort();
        recorded.sort();
        if expected != recorded {
            report.problems.push(format!("records of {recorded:?}, undisturbed {expected:?}"));
        }
        report.superseded = audit::superseded(&settlements);
        report.executions = self.counter.observed().len() - self.needed;
        report.repeated = report.executions.saturating_sub(self.needed);
        report.killed = self.counter.killed();
        if report.executions < self.needed {
            report.problems.push(format!("only {} of {} seen", report.executions, self.needed));
        }
        if report.repeated > report.exposed {
            report.problems.push("more was repeated than was exposed to faults".to_owned());
        }
        let unknown = settlements.iter().filter(|s| s.by.is_none()).map(|s| s.name.to_string());
        report.problems.extend(unknown.map(|name| format!("{name} has no settlement")));
        audit::executions(&settlements)
    }
}

/// Runs the plan for a search over a nats-server in an empty project; `None` without a server.
/// Reports every action to `say`.
///
/// # Panics
/// When a process misbehaves.
pub fn run_search(plan: &ChaosPlan, project: Project, say: &dyn Fn(&str)) -> Option<ChaosReport> {
    crate::nats::programs().first()?;
    let (scene, project) = SearchBaseline::new(project, say);
    let mut cluster = plan.cluster(project)?;
    let worker = |number: u32| {
        let worker = cluster.worker(&format!("worker {number}"), plan.slots);
        worker.through_tcp_proxy(&cluster.server).started()
    };
    let workers: Vec<_> = (1..=plan.workers).map(worker).collect();
    let coordinator = cluster.search(&scene.search.file).with_arguments(&["--runs-root", RUNS[1]]);
    let coordinators = vec![coordinator.through_tcp_proxy(&cluster.server).started()];
    let began = Instant::now();
    let [_, disturbed] = scene.directories(&cluster.project);
    let unmarked = UnmarkedResults::new(&scene.counter, vec![Results::new(disturbed)]);
    let mut killer = FaultInjector::new(plan, &mut cluster, coordinators, workers, unmarked, say);
    let mut report = ChaosReport {
        problems: killer.run_until_complete(),
        took: began.elapsed(),
        ..ChaosReport::default()
    };
    (report.actions, report.exposed) = (killer.actions.clone(), killer.exposed_executions);
    let workers = killer.into_workers();
    if report.problems.is_empty() {
        drain_workers(&mut report, &scene.counter, workers);
        let executions = scene.check(&mut report, &cluster.project);
        let left = cluster.host_files();
        if !left.is_empty() {
            report.problems.push(format!("left by workers: {left:?}"));
        }
        report.problems.extend(leak_check::cluster_leaks(&cluster, &executions, LEFTOVER_DEADLINE));
    }
    if !report.problems.is_empty() {
        cluster.project.preserve();
    }
    Some(report)
}

/// Runs a search in one process. Repeatedly kills it after a pause of the plan and resumes it with
/// its own command line.
///
/// # Panics
/// When the process misbehaves.
pub fn run_local_search(plan: &ChaosPlan, project: Project, say: &dyn Fn(&str)) -> ChaosReport {
    let (scene, project) = SearchBaseline::new(project, say);
    let [_, directory] = scene.directories(&project);
    let start = || project.rollout(&["tree", "run", &scene.search.file, "--runs-root", RUNS[1]]);
    let mut random = ChaosRng::new(plan.seed);
    let (began, mut report) = (Instant::now(), ChaosReport::default());
    let mut run = start();
    loop {
        let disturbed = began.elapsed() < plan.disturbed;
        let pause = random.between(plan.pause.0, plan.pause.1);
        let patience =
            if disturbed { Duration::from_secs_f64(pause) } else { UNDISTURBED_DEADLINE };
        if wait::holds_within(patience, || run.has_ended()) || !disturbed {
            break;
        }
        report.exposed += kill(run, &directory);
        *report.actions.entry("kill").or_default() += 1;
        say(&format!("{:6.1} s  kill after {pause:.1} s", began.elapsed().as_secs_f64()));
        run = start();
    }
    let ended = run.wait(Duration::ZERO);
    report.took = began.elapsed();
    if ended.status.success() {
        let executions = scene.check(&mut report, &project);
        report.problems.extend(leak_check::project_leaks(&project, &executions, LEFTOVER_DEADLINE));
    } else {
        report.problems.push(format!("the search ended with {}:\n{}", ended.status, ended.stderr));
    }
    if !report.problems.is_empty() {
        project.preserve();
    }
    report
}

/// kill -9. Returns the number of running executions, counted while the process is stopped.
fn kill(mut run: RunningProgram, directory: &Path) -> usize {
    run.signal(Signal::STOP);
    let workers = directory_entries(&directory.join(".work/workers"));
    let executing =
        workers.iter().map(|worker| directory_entries(&worker.join("scratch")).len()).sum();
    run.signal(Signal::KILL);
    let _killed = run.wait(LEFTOVER_DEADLINE);
    executing
}
