//! `rollout list`.

use std::path::{Path, PathBuf};
#[cfg(feature = "nats")]
use std::time::Duration;

use clap::Args;
use rollout_protocol::Timestamp;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::id::RunId;
#[cfg(feature = "nats")]
use rollout_protocol::limits::LOCK_STALE;
use serde::Serialize;

use super::error::CliError;
#[cfg(feature = "nats")]
use super::nats::{ServedRun, ServerAddress};
use super::output::Printer;
use super::run_place::{self, CatalogAddress};
#[cfg(feature = "nats")]
use crate::engine::RunState;
use crate::events::sinks::terminal::format::percent;
use crate::events::sinks::terminal::table;
use crate::results::escape;
use crate::results::report::ScoreFigures;
use crate::results::view::{self, RunFacts, RunKind, RunSummary, RunViewState};

/// List the runs in a directory of jobs: state, progress, pass rate
///
/// Works while runs are live. A run that cannot be read is listed with its error.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Directory of jobs, or of searches; the catalog of a store: `s3://bucket/prefix`; or
    /// a server: `nats://host:4222`
    #[arg(default_value = "jobs")]
    jobs_dir: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
struct ListDocument<'a> {
    directory: &'a PathBuf,
    runs: Vec<ListedRun>,
}

/// One run.
#[derive(Debug, Default, Serialize)]
struct ListedRun {
    name: String,
    path: PathBuf,
    run: Option<RunId>,
    kind: Option<RunKind>,
    state: Option<RunViewState>,
    total: Option<u64>,
    settled: Option<u64>,
    /// Of completed trials.
    pass_rate: Option<f64>,
    /// The headline score.
    scored: Option<ScoreFigures>,
    updated_at: Option<Timestamp>,
    /// Why it cannot be read.
    error: Option<String>,
}

/// Runs the command.
pub(super) async fn run(args: &ListArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let runs = runs(args).await?;
    if args.json {
        printer.json(&ListDocument { directory: &args.jobs_dir, runs })?;
    } else {
        printer.data(&render(&runs, printer.out.width))?;
    }
    Ok(ExitCode::Success)
}

async fn runs(args: &ListArgs) -> Result<Vec<ListedRun>, CliError> {
    #[cfg(feature = "nats")]
    if let Some(address) = ServerAddress::parse(&args.jobs_dir) {
        return runs_of_server(&address).await;
    }
    if let Some(address) = CatalogAddress::parse(&args.jobs_dir)? {
        return runs_of_catalog(&address, &args.jobs_dir).await;
    }
    let mut runs = Vec::new();
    view::list_runs(&args.jobs_dir, |summary| runs.push(listed(summary)))?;
    Ok(runs)
}

/// The runs that a server knows, as their coordinators last stated.
#[cfg(feature = "nats")]
async fn runs_of_server(address: &ServerAddress) -> Result<Vec<ListedRun>, CliError> {
    let nats = address.connect().await?;
    let runs =
        address.runs(&nats).await?.into_iter().map(|ServedRun { run, entry, age }| ListedRun {
            path: PathBuf::from(address.of_run(run)),
            name: entry.job,
            run: Some(run),
            kind: None,
            state: Some(state_on_server(entry.state, age)),
            total: Some(entry.total),
            settled: Some(entry.settled),
            pass_rate: None,
            scored: None,
            updated_at: Some(entry.updated_at),
            error: None,
        });
    Ok(runs.collect())
}

/// The state of a run whose coordinator stated one this long ago.
#[cfg(feature = "nats")]
fn state_on_server(stated: RunState, age: Duration) -> RunViewState {
    match stated {
        RunState::Running if age < LOCK_STALE => RunViewState::Running,
        RunState::Running => RunViewState::Silent,
        RunState::Stopped => RunViewState::Stopped,
        RunState::Completed => RunViewState::Completed,
    }
}

/// The runs in a catalog, with the addresses that other commands take.
async fn runs_of_catalog(
    address: &CatalogAddress,
    given: &Path,
) -> Result<Vec<ListedRun>, CliError> {
    let (_copies, copied) = run_place::copy_all(address).await?;
    let store = given.to_string_lossy();
    let store = store.split('#').next().unwrap_or_default();
    let runs = copied.into_iter().map(|(header, directory)| {
        let (name, path) = (header.job, PathBuf::from(format!("{store}#{}", header.run)));
        match directory {
            Ok(directory) => {
                let run = RunFacts::of_copy(&directory);
                listed(RunSummary { name, path, run })
            }
            Err(error) => {
                let error = Some(error.message);
                ListedRun { name, path, error, ..ListedRun::default() }
            }
        }
    });
    Ok(runs.collect())
}

fn listed(summary: RunSummary) -> ListedRun {
    let RunSummary { name, path, run } = summary;
    match run {
        Ok(facts) => ListedRun {
            name,
            path,
            run: facts.run,
            kind: Some(facts.kind),
            state: Some(facts.state),
            total: Some(facts.total),
            settled: Some(facts.settled),
            pass_rate: facts.pass_rate,
            scored: facts.scored,
            updated_at: facts.updated_at,
            error: None,
        },
        Err(error) => {
            let error = Some(CliError::from(error).message);
            ListedRun { name, path, error, ..ListedRun::default() }
        }
    }
}

fn render(runs: &[ListedRun], width: Option<usize>) -> String {
    if runs.is_empty() {
        return "no runs\n".to_owned();
    }
    let header = ["name", "state", "updated", "total", "settled", "pass rate"];
    let rows = runs.iter().map(|run| {
        let count = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let state = run.state.map_or("unreadable", RunViewState::as_str);
        let state = match run.kind {
            Some(RunKind::Search) => format!("{state} (search)"),
            _ => state.to_owned(),
        };
        let updated = run.updated_at.map_or_else(|| "-".to_owned(), |at| format!("{at:.0}"));
        vec![
            escape::line(&run.name).into_owned(),
            state,
            updated,
            count(run.total),
            count(run.settled),
            percent(run.scored.and_then(|scored| scored.pass_rate)),
        ]
    });
    let mut text = format!("{}\n", table::aligned(&header, rows.collect(), 3, width));
    for (name, error) in runs.iter().filter_map(|run| Some((&run.name, run.error.as_ref()?))) {
        text.push_str(&format!("{}: {}\n", escape::line(name), escape::line(error)));
    }
    text
}

#[cfg(all(test, feature = "nats"))]
mod tests {
    use super::*;

    #[test]
    fn running_coordinator_is_silent_after_stale_time() {
        let second = Duration::from_secs(1);
        let state = |age| state_on_server(RunState::Running, age);
        assert_eq!(state(LOCK_STALE - second), RunViewState::Running);
        assert_eq!(state(LOCK_STALE), RunViewState::Silent);
        let old = LOCK_STALE + second;
        assert_eq!(state_on_server(RunState::Completed, old), RunViewState::Completed);
        assert_eq!(state_on_server(RunState::Stopped, old), RunViewState::Stopped);
    }
}
