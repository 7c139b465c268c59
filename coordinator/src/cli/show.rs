//! `rollout show`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use rollout_engine::ReopenSelection;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::id::RunId;
use rollout_protocol::record::ExecutionEnd;
use rollout_store::BlobStore;
use serde::{Deserialize, Serialize};

use super::error::CliError;
use super::hint_command::{self, HintedRun, RunAction};
use super::output::{Printer, quoted};
use super::remote_api::{self, RunUrl};
use super::run_place::RunPlace;
use super::{search_dir, store_url};
use crate::config::local_time;
use crate::events::sinks::terminal::format::{cost, number, number_or_dash, seconds};
use crate::events::sinks::terminal::table;
use crate::results::escape;
use crate::results::known_cost::{self, NullUnknownCosts};
use crate::results::view::{
    RecordedExecution, RunView, RunViewState, TrialDetail, TrialFilter, TrialLookupError, TrialRow,
    TrialState, find_trial,
};

/// Hint for the directory of a search.
const SEARCH_HINT: &str = "`rollout tree show DIR` shows a search";

/// Show the trials of a run, or everything about one trial
///
/// Trials are in plan order. Everything comes from the journal and the blob store, so it works while
/// the run is live, and whatever `--materialize` the run had.
#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// Run directory; a run in a catalog: `s3://bucket/prefix#RUN`; a live run of a server:
    /// `nats://host:4222#RUN`; or a run on a server: `http://host:4280/v1/runs/ID`
    run_dir: PathBuf,

    /// The trial: `agent/dataset/task__attempt`, its item, or a part of its name that no other has
    trial: Option<String>,

    /// Only failed trials
    #[arg(long, conflicts_with = "trial")]
    failed: bool,

    /// Only trials of agents whose name matches; `*` and `?` match any characters
    #[arg(long, value_name = "PATTERN", conflicts_with = "trial")]
    agent: Option<String>,

    /// Only trials of tasks whose name, or `dataset/name`, matches
    #[arg(long, value_name = "PATTERN", conflicts_with = "trial")]
    task: Option<String>,

    /// At most this many trials
    #[arg(long, value_name = "N", conflicts_with = "trial")]
    limit: Option<usize>,

    /// Blob store of the records: a directory, or `s3://bucket/prefix?endpoint=URL` [default: the store that the
    /// run used]
    #[arg(long, requires = "trial")]
    store: Option<String>,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// The document of `--json` without a trial.
#[derive(Debug, Serialize)]
struct TrialsDocument {
    run: Option<RunId>,
    job: String,
    state: String,
    /// Trials that the filters select.
    selected: usize,
    /// The first of them.
    trials: Vec<TrialRow>,
    /// Settled trials that are no longer in the plan.
    unplanned: u64,
}

/// The document of `--json` with a trial.
#[derive(Debug, Serialize, Deserialize)]
struct TrialDocument {
    #[serde(flatten)]
    detail: TrialDetail,
    executions: Vec<RecordedExecution>,
}

/// Runs the command.
pub(super) async fn run(args: &ShowArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    if let Some(run) = RunUrl::parse(&args.run_dir.to_string_lossy())? {
        return on_server(&run, args, printer).await;
    }
    let place = RunPlace::open(&args.run_dir).await?;
    search_dir::refuse("show", place.directory(), SEARCH_HINT)?;
    let directory = place.read()?;
    let plan = directory.plan()?;
    let Some(key) = &args.trial else {
        let document = trials(args, directory.view(None, None)?)?;
        match args.json {
            true => printer.json(&document)?,
            false => printer.data(&render_trials(&document, printer.out.width))?,
        }
        return Ok(ExitCode::Success);
    };
    let trial = find_trial(plan, key)?;
    let view = directory.view(Some(trial.item), None)?;
    let state = view.header.state;
    let mut detail = view.detail().expect("a trial of the plan is watched");
    let store = open_store(args.store.as_deref(), place.directory(), &detail, printer).await?;
    let mut executions = Vec::new();
    for execution in std::mem::take(&mut detail.executions) {
        let store = store.as_deref();
        executions.push(RecordedExecution::read(store, trial.item, execution).await);
    }
    let document = TrialDocument { detail, executions };
    match args.json {
        true => printer.json(&NullUnknownCosts(&document))?,
        false => {
            let hints = hints(&document.detail.row, &args.run_dir, Some(state));
            printer.warn_of_unknown_zone();
            printer.data(&render_trial(&document, hints, printer.out.width))?;
        }
    }
    Ok(ExitCode::Success)
}

/// Shows a run on a server of `rollout serve`, or a trial of it.
async fn on_server(run: &RunUrl, args: &ShowArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    if args.store.is_some() {
        let what = "cannot use `--store` with a run on a server";
        return Err(CliError::usage(what).hint("leave it out: the server reads its own store"));
    }
    let Some(key) = &args.trial else {
        let shown = run.document().await?;
        let rows = run.trials(&filter(args)).await?;
        let document = TrialsDocument {
            run: shown["progress"]["run"].as_str().and_then(|run| run.parse().ok()),
            job: shown["name"].as_str().unwrap_or_default().to_owned(),
            state: shown["state"].as_str().unwrap_or_default().to_owned(),
            selected: rows.len(),
            trials: rows.into_iter().take(args.limit.unwrap_or(usize::MAX)).collect(),
            unplanned: 0,
        };
        match args.json {
            true => printer.json(&document)?,
            false => printer.data(&render_trials(&document, printer.out.width))?,
        }
        return Ok(ExitCode::Success);
    };
    let shown = run.trial(key).await?;
    if args.json {
        printer.json(&shown)?;
        return Ok(ExitCode::Success);
    }
    let document: TrialDocument = remote_api::read(known_cost::with_recorded_costs(shown))?;
    let hints = hints(&document.detail.row, &args.run_dir, None);
    printer.warn_of_unknown_zone();
    printer.data(&render_trial(&document, hints, printer.out.width))?;
    Ok(ExitCode::Success)
}

fn filter(args: &ShowArgs) -> TrialFilter {
    let ShowArgs { failed, agent, task, .. } = args;
    TrialFilter { failed: *failed, agent: agent.clone(), task: task.clone() }
}

/// Commands about a failed trial. The state is that of a run that another command can retry.
fn hints(row: &TrialRow, run_dir: &Path, state: Option<RunViewState>) -> Vec<String> {
    if row.state != TrialState::Failed {
        return Vec::new();
    }
    let shown = quoted(&run_dir.to_string_lossy());
    let mut hints = vec![format!("`rollout logs {shown} {}` prints its output", quoted(&row.name))];
    if let Some(state) = state {
        let trial = RunAction::Retry(ReopenSelection::Trials(vec![row.name.clone()]));
        let run = HintedRun::named(run_dir);
        let retry = match state {
            RunViewState::Running => hint_command::live_command(&run, &trial),
            _ => hint_command::command(&run, &trial, &[]),
        };
        hints.push(format!("{retry} runs it again"));
    }
    hints
}

/// The store of the records, if there are any. A store that is named must exist; without the run's
/// own, the rest is shown.
async fn open_store(
    named: Option<&str>,
    run_dir: &Path,
    detail: &TrialDetail,
    printer: &Printer,
) -> Result<Option<Arc<dyn BlobStore>>, CliError> {
    if detail.executions.iter().all(|view| view.execution.record.is_none()) {
        return Ok(None);
    }
    match store_url::open_for_run(named, run_dir).await {
        Ok(store) => Ok(Some(store)),
        Err(error) if named.is_some() => Err(error),
        Err(error) => {
            printer.warning(&format!("files of executions are not shown: {}", error.message));
            let error = error.for_this_command(&[]);
            error.hints.iter().for_each(|hint| printer.hint(hint));
            Ok(None)
        }
    }
}

fn trials(args: &ShowArgs, view: RunView) -> Result<TrialsDocument, CliError> {
    let filter = filter(args);
    let rows = view.trials(&filter);
    let rows = rows.map_err(|bad| CliError::usage(format!("`{bad}` is not a valid pattern")))?;
    let (mut selected, mut trials) = (0, Vec::new());
    for row in rows {
        selected += 1;
        if args.limit.is_none_or(|limit| trials.len() < limit) {
            trials.push(row);
        }
    }
    let (header, unplanned) = (view.header, view.counts.unplanned);
    let (run, job, state) = (header.run, header.job, header.state.as_str().to_owned());
    Ok(TrialsDocument { run, job, state, selected, unplanned, trials })
}

fn render_trials(document: &TrialsDocument, width: Option<usize>) -> String {
    let TrialsDocument { selected, unplanned, trials, .. } = document;
    let kept = match unplanned {
        0 => String::new(),
        count => format!("{count} results are kept of trials that are no longer planned\n"),
    };
    if trials.is_empty() {
        return format!("no trials\n{kept}");
    }
    let header = ["trial", "state", "error", "worker", "tries", "reward", "seconds", "cost"];
    // On a terminal, the only worker needs no column.
    let has_workers = width.is_none() || trials.iter().any(|row| row.worker != trials[0].worker);
    let rows = trials.iter().map(|row| {
        let error = row.error.as_ref();
        let error = error.map_or_else(String::new, |e| format!("{} ({})", e.kind, e.code));
        let worker = row.worker.clone().filter(|_| has_workers);
        let cells = [
            row.name.clone(),
            row.state.as_str().to_owned(),
            error,
            worker.unwrap_or_default(),
            row.tries.to_string(),
            number_or_dash(row.reward),
            row.total_sec.map_or_else(|| "-".to_owned(), seconds),
            cost_or_dash(row),
        ];
        cells.iter().map(|cell| escape::line(cell).into_owned()).collect()
    });
    let mut text = format!("{}\n", table::aligned(&header, rows.collect(), 4, width));
    if *selected > trials.len() {
        text.push_str(&format!("{} more\n", selected - trials.len()));
    }
    text.push_str(&kept);
    text
}

/// The cost of a settled trial, or a dash.
fn cost_or_dash(row: &TrialRow) -> String {
    match row.settled_at {
        Some(_) => cost(row.cost, u64::from(row.cost_is_lower_bound)),
        None => "-".to_owned(),
    }
}

fn render_trial(document: &TrialDocument, hints: Vec<String>, width: Option<usize>) -> String {
    let TrialDocument { detail, executions } = document;
    let row = &detail.row;
    let mut facts = vec![
        ("trial", row.name.clone()),
        ("item", row.item.to_string()),
        ("state", row.state.as_str().to_owned()),
        ("tries", row.tries.to_string()),
    ];
    if let Some(verdict) = &detail.verdict {
        let rewards = verdict.numbers().map(|(key, value)| format!("{key} {}", number(value)));
        let rewards = rewards.collect::<Vec<_>>().join(", ");
        facts.push(("rewards", if rewards.is_empty() { "-".to_owned() } else { rewards }));
        facts.push(("cost", cost_or_dash(row)));
        if let Some(error) = &verdict.error {
            facts.push(("error", error.to_string()));
            facts.push(("", format!("code {}, phase {}", error.code, error.phase)));
        }
    }
    let times = [("settled", row.settled_at), ("next try", row.next_try_at)];
    facts.extend(times.iter().filter_map(|(key, at)| Some((*key, local_time::shown((*at)?)))));
    facts.extend(detail.task_git_commit_id.clone().map(|commit| ("commit", commit)));
    let labels = std::iter::once("hint").chain(std::iter::repeat(""));
    facts.extend(labels.zip(hints));
    let facts = facts.into_iter();
    let facts = facts.map(|(key, value)| vec![key.to_owned(), escape::line(&value).into_owned()]);
    let mut text = format!("{}\n", table::aligned(&[], facts.collect(), 2, width));
    if !executions.is_empty() {
        text.push_str(&format!("\n{}\n", executions_table(executions, width)));
    }
    for execution in executions {
        text.push_str(&files(execution, width));
    }
    text
}

fn executions_table(executions: &[RecordedExecution], width: Option<usize>) -> String {
    let header = ["try", "execution", "role", "worker", "host", "started", "seconds", "end"];
    let rows = executions.iter().map(|recorded| {
        let execution = &recorded.view.execution;
        let started = execution.timestamps.as_ref();
        let started = started.map_or_else(|| "-".to_owned(), |t| local_time::shown(t.started_at));
        let durations = execution.durations.as_ref();
        let total = durations.map_or_else(|| "-".to_owned(), |d| seconds(d.total_sec));
        let cells = [
            execution.try_id.n.to_string(),
            execution.exec.to_string(),
            recorded.view.role.as_str().to_owned(),
            execution.worker.to_string(),
            recorded.host.clone().unwrap_or_else(|| "-".to_owned()),
            started,
            total,
            end(recorded),
        ];
        cells.iter().map(|cell| escape::line(cell).into_owned()).collect()
    });
    table::aligned(&header, rows.collect(), 8, width)
}

/// How an execution ended, and why it does not count.
fn end(recorded: &RecordedExecution) -> String {
    let ended = match &recorded.view.execution.end {
        ExecutionEnd::Reported { verdict } => match &verdict.error {
            Some(error) => format!("{}: {}", verdict.outcome.as_str(), error.kind),
            None => verdict.outcome.as_str().to_owned(),
        },
        ExecutionEnd::Lost { phase: Some(phase), .. } => format!("lost in {phase}"),
        ExecutionEnd::Lost { phase: None, .. } => "lost".to_owned(),
        ExecutionEnd::Open => "open".to_owned(),
    };
    match &recorded.view.reason {
        Some(reason) => format!("{ended}; {reason}"),
        None => ended,
    }
}

/// The table of the files of an execution, its later errors, and why its record cannot be read.
fn files(execution: &RecordedExecution, width: Option<usize>) -> String {
    let number = execution.view.execution.try_id.n;
    let mut text = String::new();
    if let Some(error) = &execution.record_error {
        let error = escape::line(error).into_owned();
        text.push_str(&format!("\ncannot read the record of try {number}: {error}\n"));
    }
    if !execution.secondary_errors.is_empty() {
        text.push_str(&format!("\nfurther errors of try {number}\n"));
    }
    for error in &execution.secondary_errors {
        text.push_str(&format!("{}\n", escape::line(&error.to_string())));
    }
    let rows: Vec<_> = execution
        .files()
        .map(|(path, bytes, digest, cut)| {
            let cut = if cut { "cut" } else { "" };
            let path = escape::line(path).into_owned();
            vec![path, digest.to_string(), cut.to_owned(), bytes.to_string()]
        })
        .collect();
    if !rows.is_empty() {
        let title = format!("files of try {number}");
        let header = [title.as_str(), "blob", "", "bytes"];
        text.push_str(&format!("\n{}\n", table::aligned(&header, rows, 3, width)));
    }
    text
}

impl From<TrialLookupError> for CliError {
    fn from(error: TrialLookupError) -> Self {
        let message = error.to_string();
        let failed = Self::new(ExitCode::Config, message);
        match error {
            TrialLookupError::None { .. } => {
                failed.hint("`rollout show RUN` lists the trials of a run")
            }
            TrialLookupError::Ambiguous { names, .. } => Self {
                details: names,
                ..failed.hint("give the whole name, `agent/dataset/task__attempt`, or the item")
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::results::testing;

    #[test]
    fn cost_beside_calls_without_price_is_shown_as_unknown_or_lower_bound() {
        let at = testing::at(9);
        for (cost, is_lower_bound, settled_at, expected) in [
            (json!(0.0128), true, Some(at), "at least 0.0128"),
            (json!(0.0128), false, Some(at), "0.0128"),
            (Value::Null, true, Some(at), "unknown"),
            (Value::Null, false, None, "-"),
        ] {
            let row = json!({
                "name": "a/data/t__1", "agent_name": "a", "dataset_name": "data", "task_name": "t",
                "attempt": 1, "item": testing::trial("a", "t", 1).item(), "state": "completed",
                "tries": 1, "cost": cost, "cost_is_lower_bound": is_lower_bound,
                "settled_at": settled_at,
            });
            let row: TrialRow = serde_json::from_value(row).expect("a row");
            assert_eq!(cost_or_dash(&row), expected);
            let document = TrialsDocument {
                run: None,
                job: "job".to_owned(),
                state: "completed".to_owned(),
                selected: 1,
                trials: vec![row],
                unplanned: 0,
            };
            let shown = render_trials(&document, None);
            assert!(shown.trim_end().ends_with(expected), "{shown}");
        }
    }
}
