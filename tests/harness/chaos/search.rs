//! A tree search whose processes are killed all the time, and the proof that it came to what an
//! undisturbed one comes to.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;
use rollout_protocol::record::Settlement;
use rustix::process::Signal;

use super::killer::Killer;
use super::random::Random;
use super::{LEFT, Plan, Report, dismiss};
use crate::cluster::Cluster;
use crate::leftovers::{self, below};
use crate::project::Project;
use crate::results::Results;
use crate::run::Run;
use crate::search::{self, Search};
use crate::witness::Witness;
use crate::{audit, wait};

/// Where the runs of the undisturbed search are, and of the other.
const RUNS: [&str; 2] = ["undisturbed", "disturbed"];

/// How long an undisturbed search may take.
const CALM: Duration = Duration::from_secs(240);

/// A search and what is known of its undisturbed run.
struct Scene {
    search: Search,
    witness: Witness,
    /// Executions that the undisturbed run needed.
    needed: usize,
}

impl Scene {
    /// Runs the search in one process, which nobody disturbs. Gives the project with it.
    fn new(project: Project, say: &dyn Fn(&str)) -> (Self, Project) {
        let witness = Witness::start();
        let search = Search::witnessed(&witness);
        let project = search.write(project);
        let run = project.rollout(&["tree", "run", &search.file, "--runs-root", RUNS[0]]);
        let ended = run.wait(CALM).expect(ExitCode::Success);
        let needed = witness.seen().len();
        say(&format!("undisturbed: {:.1} s, {needed} executions", ended.took.as_secs_f64()));
        (Self { search, witness, needed }, project)
    }

    fn directories(&self, project: &Project) -> [PathBuf; 2] {
        RUNS.map(|root| self.search.directory(project, root))
    }

    /// Compares what came of it, and gives the short names of all that was executed.
    fn check(&self, report: &mut Report, project: &Project) -> Vec<String> {
        let [undisturbed, disturbed] = self.directories(project);
        report.problems.extend(search::differences(&undisturbed, &disturbed));
        report.problems.extend(search::leftovers(&undisturbed));
        report.problems.extend(search::leftovers(&disturbed));
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
        report.executions = self.witness.seen().len() - self.needed;
        report.repeated = report.executions.saturating_sub(self.needed);
        report.killed = self.witness.killed();
        if report.executions < self.needed {
            report.problems.push(format!("{} of {} were seen", report.executions, self.needed));
        }
        if report.repeated > report.exposed {
            report.problems.push("more was repeated than was running at the kills".to_owned());
        }
        let unknown = settlements.iter().filter(|s| s.by.is_none()).map(|s| s.name.to_string());
        report.problems.extend(unknown.map(|name| format!("{name} was settled by nothing")));
        audit::executions(&settlements)
    }
}

/// Runs the plan for a search over a nats-server, in an empty project; none where there is no
/// server. `say` is told every action.
///
/// # Panics
/// When a process does what no process may.
pub fn search(plan: &Plan, project: Project, say: &dyn Fn(&str)) -> Option<Report> {
    crate::nats::programs().first()?;
    let (scene, project) = Scene::new(project, say);
    let mut cluster = Cluster::new(project)?.lease(plan.lease);
    let worker = |number: u32| {
        let worker = cluster.worker(&format!("worker {number}"), plan.slots);
        worker.wired(&cluster.server).started()
    };
    let workers: Vec<_> = (1..=plan.workers).map(worker).collect();
    let coordinator = cluster.search(&scene.search.file).with(&["--runs-root", RUNS[1]]);
    let coordinators = vec![coordinator.wired(&cluster.server).started()];
    let began = Instant::now();
    let mut killer = Killer::new(plan, &mut cluster.server, coordinators, workers, say);
    let mut report = Report { problems: killer.go(), took: began.elapsed(), ..Report::default() };
    (report.actions, report.exposed) = (killer.actions.clone(), killer.exposed);
    let workers = killer.end();
    if report.problems.is_empty() {
        dismiss(&mut report, &scene.witness, workers);
        let executions = scene.check(&mut report, &cluster.project);
        let left = cluster.kept();
        if !left.is_empty() {
            report.problems.push(format!("left by workers: {left:?}"));
        }
        report.problems.extend(leftovers::of_cluster(&cluster, &executions, LEFT));
    }
    if !report.problems.is_empty() {
        cluster.project.keep();
    }
    Some(report)
}

/// Runs a search in one process, which is killed again and again after a pause of the plan, and
/// started again by the same command.
///
/// # Panics
/// When the process does what no process may.
pub fn search_here(plan: &Plan, project: Project, say: &dyn Fn(&str)) -> Report {
    let (scene, project) = Scene::new(project, say);
    let [_, directory] = scene.directories(&project);
    let start = || project.rollout(&["tree", "run", &scene.search.file, "--runs-root", RUNS[1]]);
    let mut random = Random::new(plan.seed);
    let (began, mut report) = (Instant::now(), Report::default());
    let mut run = start();
    loop {
        let disturbed = began.elapsed() < plan.disturbed;
        let pause = random.between(plan.pause.0, plan.pause.1);
        let patience = if disturbed { Duration::from_secs_f64(pause) } else { CALM };
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
        report.problems.extend(leftovers::of_project(&project, &executions, LEFT));
    } else {
        report.problems.push(format!("it ended with {}:\n{}", ended.status, ended.stderr));
    }
    if !report.problems.is_empty() {
        project.keep();
    }
    report
}

/// kill -9. Gives the number of executions that were under way, counted while nothing moves.
fn kill(mut run: Run, directory: &Path) -> usize {
    run.signal(Signal::STOP);
    let workers = below(&directory.join(".work/workers"));
    let executing = workers.iter().map(|worker| below(&worker.join("scratch")).len()).sum();
    run.signal(Signal::KILL);
    let _killed = run.wait(LEFT);
    executing
}
