//! Chaos runs over a cluster: `tests/chaos`.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use rollout_tests::chaos::{self, ChaosPlan};
use rollout_tests::project::Project;
use rollout_tests::s3_process;

const USAGE: &str = "usage: chaos --seed S --minutes M [--items N] [--workers N] [--slots N] \
                     [--seconds FROM,TO] [--pause FROM,TO] [--lease SECONDS] \
                     [--provider process|docker|both] [--only-kills] [--no-return] \
                     [--search nats|here] [--store directory|s3]";

/// Commands of the program under test. This binary is also that program, so that both are built
/// together.
const PROGRAM: &[&str] = &["run", "tree", "worker", "__sandbox"];

/// Subject of the chaos run.
#[derive(Debug, Clone, Copy)]
enum ChaosMode {
    /// Jobs over a nats-server.
    Jobs,
    /// A tree search over a nats-server.
    Search,
    /// A tree search in one process.
    SearchHere,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|word| PROGRAM.contains(&word.as_str())) {
        return rollout_coordinator::cli::main();
    }
    if s3_process::serve_if_requested() {
        return ExitCode::SUCCESS;
    }
    let Some((what, plan)) = parse(std::env::args().skip(1)) else {
        print_line(USAGE);
        return ExitCode::from(2);
    };
    print_line(&format!("seed {}: {plan:?}", plan.seed));
    let me = std::env::current_exe().expect("this program");
    let project = Project::new(me.to_str().expect("a plain path"));
    let report = match what {
        ChaosMode::Jobs => chaos::run_jobs(&plan, project, &print_line),
        ChaosMode::Search => chaos::run_search(&plan, project, &print_line),
        ChaosMode::SearchHere => Some(chaos::run_local_search(&plan, project, &print_line)),
    };
    let Some(report) = report else { return ExitCode::FAILURE };
    print_line(&format!("seed {}: {report}", plan.seed));
    if report.problems.is_empty() {
        return ExitCode::SUCCESS;
    }
    ExitCode::FAILURE
}

fn print_line(text: &str) {
    // A closed terminal must not stop the run.
    drop(writeln!(io::stdout(), "{text}"));
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<(ChaosMode, ChaosPlan)> {
    let mut what = ChaosMode::Jobs;
    let mut plan = ChaosPlan {
        seed: 0,
        disturbed: Duration::from_secs(300),
        items: 200,
        workers: 3,
        slots: 4,
        seconds: (1.0, 3.0),
        providers: vec!["process".to_owned()],
        pause: (2.0, 5.0),
        lease: Duration::from_secs(60),
        no_return: false,
        only_kills: false,
        s3_program: None,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--no-return" => plan.no_return = true,
            "--only-kills" => plan.only_kills = true,
            "--search" => {
                what = match words.next()?.as_str() {
                    "nats" => ChaosMode::Search,
                    "here" => ChaosMode::SearchHere,
                    _ => return None,
                };
            }
            _ => set_option(&mut plan, &word, &words.next()?)?,
        }
    }
    Some((what, plan))
}

fn set_option(plan: &mut ChaosPlan, option: &str, value: &str) -> Option<()> {
    match option {
        "--seed" => plan.seed = value.parse().ok()?,
        "--minutes" => {
            plan.disturbed = Duration::try_from_secs_f64(60.0 * value.parse::<f64>().ok()?).ok()?;
        }
        "--items" => plan.items = value.parse().ok().filter(|items| (1..=9999).contains(items))?,
        "--workers" => plan.workers = value.parse().ok().filter(|workers| *workers > 0)?,
        "--slots" => plan.slots = value.parse().ok().filter(|slots| *slots > 0)?,
        "--seconds" => plan.seconds = parse_range(value)?,
        "--pause" => plan.pause = parse_range(value)?,
        "--store" => {
            plan.s3_program = match value {
                "s3" => Some(std::env::current_exe().ok()?),
                "directory" => None,
                _ => return None,
            };
        }
        "--lease" => plan.lease = Duration::from_secs(value.parse().ok()?),
        "--provider" => {
            let providers = if value == "both" { vec!["process", "docker"] } else { vec![value] };
            plan.providers = providers.into_iter().map(str::to_owned).collect();
        }
        _ => return None,
    }
    Some(())
}

fn parse_range(text: &str) -> Option<(f64, f64)> {
    let (from, to) = text.split_once(',')?;
    let range = (from.parse().ok()?, to.parse().ok()?);
    (0.0 < range.0 && range.0 <= range.1).then_some(range)
}
