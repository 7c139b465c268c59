//! `rollout list`.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
#[cfg(feature = "nats")]
use std::time::Duration;

use clap::Args;
use rollout_engine::QueueOutage;
#[cfg(feature = "nats")]
use rollout_engine::RunState;
use rollout_protocol::Timestamp;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::id::RunId;
#[cfg(feature = "nats")]
use rollout_protocol::limits::LOCK_STALE;
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use super::error::CliError;
#[cfg(feature = "nats")]
use super::nats::{ServedRun, ServerAddress};
use super::output::Printer;
use super::remote_api::ServerUrl;
use super::run_place::{self, CatalogAddress};
use crate::config::local_time;
use crate::events::sinks::terminal::format::percent;
use crate::events::sinks::terminal::table;
use crate::results::escape;
use crate::results::report::ScoreFigures;
#[cfg(feature = "nats")]
use crate::results::view::RunViewState;
use crate::results::view::{self, RunFacts, RunKind, RunSummary};

/// List the runs in a directory of jobs: state, progress, pass rate
///
/// Works while runs are live. A run that cannot be read is listed with its error.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Directory of jobs, or of searches [default: jobs]; the catalog of a store: `s3://bucket/prefix`;
    /// or a server: `nats://host:4222`, `http://host:4280`
    jobs_dir: Option<PathBuf>,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The directory of jobs unless a command names another one.
const JOBS_DIR: &str = "jobs";

/// The document of `--json`.
#[derive(Debug, Serialize)]
struct ListDocument<'a> {
    directory: &'a Path,
    runs: Vec<ListedRun>,
}

/// One run.
#[derive(Debug, Default, Serialize)]
struct ListedRun {
    name: String,
    path: PathBuf,
    /// On a server of `rollout serve`.
    #[serde(skip)]
    id: Option<String>,
    run: Option<RunId>,
    kind: Option<Cow<'static, str>>,
    state: Option<Cow<'static, str>>,
    total: Option<u64>,
    settled: Option<u64>,
    /// Of completed trials.
    pass_rate: Option<f64>,
    /// The headline score.
    scored: Option<ScoreFigures>,
    updated_at: Option<Timestamp>,
    /// Since when and why a live run has no connection to the server of its queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_outage: Option<QueueOutage>,
    /// Why it cannot be read.
    error: Option<String>,
}

/// Runs the command.
pub(super) async fn run(args: &ListArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let directory = args.jobs_dir.as_deref().unwrap_or(Path::new(JOBS_DIR));
    // Nothing has run yet where the directory that runs make does not exist.
    let is_fresh = args.jobs_dir.is_none() && matches!(directory.try_exists(), Ok(false));
    let runs = if is_fresh { Vec::new() } else { runs(directory).await? };
    if args.json {
        printer.json(&ListDocument { directory, runs })?;
    } else {
        if runs.iter().any(|run| run.updated_at.is_some()) {
            printer.warn_of_unknown_zone();
        }
        printer.data(&render(&runs, printer.out.width))?;
    }
    if is_fresh && !args.json {
        printer.hint(&format!(
            "nothing has run in this directory: `{JOBS_DIR}` does not exist; `rollout list DIR` and \
             `rollout list URL` list other runs"
        ));
    }
    Ok(ExitCode::Success)
}

async fn runs(place: &Path) -> Result<Vec<ListedRun>, CliError> {
    #[cfg(feature = "nats")]
    if let Some(address) = ServerAddress::parse(place) {
        return runs_of_server(&address).await;
    }
    if let Some(server) = ServerUrl::parse(&place.to_string_lossy())? {
        return runs_of_api_server(&server).await;
    }
    if let Some(address) = CatalogAddress::parse(place)? {
        return runs_of_catalog(&address, place).await;
    }
    let mut runs = Vec::new();
    view::list_runs(place, |summary| runs.push(listed(summary)))?;
    Ok(runs)
}

/// The runs of the user on a server of `rollout serve`.
async fn runs_of_api_server(server: &ServerUrl) -> Result<Vec<ListedRun>, CliError> {
    let runs = server.runs().await?;
    Ok(runs.iter().map(|run| hosted(run, server)).collect())
}

/// A run of a list of a server.
fn hosted(run: &Value, server: &ServerUrl) -> ListedRun {
    let text = |key: &str| run[key].as_str().map(str::to_owned);
    let id = text("id").unwrap_or_default();
    let progress = &run["progress"];
    let count = |key: &str| progress[key].as_u64();
    let completed = count("completed").filter(|completed| *completed > 0);
    let pass_rate = completed.zip(count("passed")).map(|(of, passed)| passed as f64 / of as f64);
    ListedRun {
        name: text("name").unwrap_or_else(|| id.clone()),
        path: server.address("runs", &id),
        run: progress["run"].as_str().and_then(|run| run.parse().ok()),
        kind: text("kind").map(|kind| match kind.as_str() {
            "tree" => Cow::Borrowed(RunKind::Search.as_str()),
            _ => Cow::Owned(kind),
        }),
        state: text("state").map(Cow::Owned),
        total: count("total"),
        settled: count("settled"),
        pass_rate,
        scored: ScoreFigures::deserialize(&progress["scored"]).ok(),
        updated_at: Timestamp::deserialize(&run["ended_at"]).ok(),
        queue_outage: None,
        error: text("reason"),
        id: Some(id),
    }
}

/// The runs that a server knows, as their coordinators last stated.
#[cfg(feature = "nats")]
async fn runs_of_server(address: &ServerAddress) -> Result<Vec<ListedRun>, CliError> {
    let nats = address.connect().await?;
    let runs =
        address.runs(&nats).await?.into_iter().map(|ServedRun { run, entry, age }| ListedRun {
            path: PathBuf::from(address.of_run(run)),
            name: entry.job,
            id: None,
            run: Some(run),
            kind: None,
            state: Some(state_on_server(entry.state, age).as_str().into()),
            total: Some(entry.total),
            settled: Some(entry.settled),
            pass_rate: None,
            scored: None,
            updated_at: Some(entry.updated_at),
            queue_outage: None,
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
            id: None,
            run: facts.run,
            kind: Some(facts.kind.as_str().into()),
            state: Some(facts.state.as_str().into()),
            total: Some(facts.total),
            settled: Some(facts.settled),
            pass_rate: facts.pass_rate,
            scored: facts.scored,
            updated_at: facts.updated_at,
            queue_outage: facts.queue_outage,
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
    let mut header = vec!["name", "state", "updated", "total", "settled", "pass rate"];
    let has_ids = runs.iter().any(|run| run.id.is_some());
    if has_ids {
        header.insert(0, "run");
    }
    let rows = runs.iter().map(|run| {
        let count = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let state = run.state.as_deref().unwrap_or("unreadable");
        let state = match run.kind.as_deref() {
            Some(kind) if kind == RunKind::Search.as_str() => format!("{state} (search)"),
            _ => state.to_owned(),
        };
        let updated = run.updated_at.map_or_else(|| "-".to_owned(), local_time::shown);
        let id = has_ids.then(|| run.id.clone().unwrap_or_default());
        let facts = [
            run.name.clone(),
            state,
            updated,
            count(run.total),
            count(run.settled),
            percent(run.scored.and_then(|scored| scored.pass_rate)),
        ];
        let cells = id.into_iter().chain(facts);
        cells.map(|cell| escape::line(&cell).into_owned()).collect()
    });
    let left = header.len() - 3;
    let mut text = format!("{}\n", table::aligned(&header, rows.collect(), left, width));
    for run in runs {
        let outage = run.queue_outage.as_ref().map(QueueOutage::to_string);
        for note in run.error.iter().chain(&outage) {
            text.push_str(&format!("{}: {}\n", escape::line(&run.name), escape::line(note)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn run_of_server_is_listed_with_its_address_and_score() {
        let server = ServerUrl::parse("http://h:1").expect("a URL").expect("a server");
        let scored = json!({"trials": 4, "passed": 1, "pass_rate": 0.25, "mean_reward": 0.25});
        let run = json!({
            "id": "r1", "name": "demo", "kind": "tree", "state": "running",
            "progress": {"total": 4, "settled": 3, "completed": 2, "passed": 1, "scored": scored},
        });
        let listed = hosted(&run, &server);
        assert_eq!(listed.path, PathBuf::from("http://h:1/v1/runs/r1"));
        assert_eq!((listed.total, listed.settled, listed.pass_rate), (Some(4), Some(3), Some(0.5)));
        let text = render(&[listed], None);
        let expected = "run  name  state             updated  total  settled  pass rate\n\
                        r1   demo  running (search)  -            4        3        25%\n";
        assert_eq!(text, expected);
        let unreadable = hosted(&json!({"id": "r2", "reason": "damaged"}), &server);
        let text = render(&[unreadable], None);
        assert!(text.contains("r2   r2    unreadable"), "{text}");
        assert!(text.ends_with("r2: damaged\n"), "{text}");
    }

    #[test]
    fn outage_of_the_queue_of_a_run_is_told_below_the_table() {
        let since = Timestamp::UNIX_EPOCH;
        let reason = "not connected to the server: invalid peer certificate".to_owned();
        let run = ListedRun {
            name: "demo".to_owned(),
            state: Some("running".into()),
            queue_outage: Some(QueueOutage { since, reason }),
            ..ListedRun::default()
        };
        let text = render(&[run], None);
        let expected = "demo: no connection since 1970-01-01T00:00:00Z: not connected to the \
                        server: invalid peer certificate\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[cfg(feature = "nats")]
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
