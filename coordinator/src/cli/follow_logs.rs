//! `rollout logs --follow`: the output of a trial that runs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_protocol::id::ExecId;
use rollout_protocol::record::ExecutionEnd;
use rollout_protocol::wire::output::{OutputCursor, OutputPiece};
use rollout_worker::executor::read_output;
use tokio::time::Instant;

use super::error::CliError;
use super::logs::{self, LogsArgs};
use super::output::Printer;
use super::run_place::RunPlace;
use super::store_url;
use crate::engine::journal::RunLayout;
use crate::results::escape;
use crate::results::view::{self, CapturedSource, RunView, TrialDetail, TrialState, find_trial};

/// Shortest time between two looks at a run.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// How much longer than a look the pause after it is: a look reads the whole journal.
const PAUSE_PER_LOOK: u32 = 4;

/// Follows the output of one trial.
struct OutputFollower<'a> {
    args: &'a LogsArgs,
    place: &'a RunPlace,
    printer: &'a Printer,
    /// Position in the output of the execution that runs.
    position: Option<(ExecId, OutputCursor)>,
    /// Bytes of each file that were read, by execution.
    read: HashMap<(ExecId, String), u64>,
    /// The file that was printed last.
    shown: Option<(ExecId, String)>,
    #[cfg(feature = "nats")]
    nats: Option<rollout_worker::queue::nats::Nats>,
}

/// Runs the command.
pub(super) async fn run(
    args: &LogsArgs,
    place: &RunPlace,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let mut follower = OutputFollower {
        args,
        place,
        printer,
        position: None,
        read: HashMap::new(),
        shown: None,
        #[cfg(feature = "nats")]
        nats: None,
    };
    loop {
        let began = Instant::now();
        let (view, detail) = look(args, place)?;
        let pause = FOLLOW_INTERVAL.max(began.elapsed() * PAUSE_PER_LOOK);
        let is_settled = match detail.row.state {
            TrialState::Running | TrialState::Waiting | TrialState::Queued => false,
            TrialState::Completed
            | TrialState::Failed
            | TrialState::Cancelled
            | TrialState::Unverified => true,
        };
        if is_settled {
            follower.print_recorded(&detail).await?;
            return Ok(ExitCode::Success);
        }
        if !view.header.state.may_be_owned() {
            printer.hint(&format!("{} does not run: its run has no owner", detail.row.name));
            return Ok(ExitCode::Success);
        }
        match view.header.pool {
            None if place.is_copy() => {
                let what = "cannot follow the output: the run has no server, so the output of a \
                            running trial is only on the host of its coordinator";
                return Err(CliError::refused(what)
                    .hint("name the run directory there, or read the output when the trial ends"));
            }
            None => follower.print_local(&detail)?,
            #[cfg(feature = "nats")]
            Some(_) => follower.print_remote(&view, &detail).await?,
            #[cfg(not(feature = "nats"))]
            Some(_) => {
                let what = "cannot follow the output of a trial on a worker: this program has no \
                            client of NATS";
                return Err(CliError::new(ExitCode::Config, what));
            }
        }
        tokio::time::sleep(pause).await;
        place.refresh().await?;
    }
}

fn look(args: &LogsArgs, place: &RunPlace) -> Result<(RunView, TrialDetail), CliError> {
    let directory = place.read()?;
    let trial = find_trial(directory.plan()?, &args.trial)?;
    let view = directory.view(Some(trial.item), None)?;
    let detail = view.detail().expect("a trial of the plan is watched");
    Ok((view, detail))
}

impl OutputFollower<'_> {
    /// Prints new output of an execution in the process of the run's owner, on this host.
    fn print_local(&mut self, detail: &TrialDetail) -> Result<(), CliError> {
        let open = detail.executions.iter().rev().map(|view| &view.execution);
        let mut open = open.filter(|execution| execution.end == ExecutionEnd::Open);
        let Some(exec) = open.next().map(|execution| execution.exec) else { return Ok(()) };
        let Some(scratch) = scratch_of(self.place.directory(), exec) else { return Ok(()) };
        loop {
            let piece = read_output(&scratch, &self.after(exec)).map_err(|error| {
                CliError::failure("cannot read the output of the execution", &error)
            })?;
            let Some(piece) = piece else { return Ok(()) };
            self.print(exec, piece)?;
        }
    }

    /// Prints new output of an execution on a worker.
    #[cfg(feature = "nats")]
    async fn print_remote(&mut self, view: &RunView, detail: &TrialDetail) -> Result<(), CliError> {
        use rollout_protocol::wire::output::OutputRequest;

        /// Longest wait for an answer: without a worker that runs the trial there is none.
        const ANSWER_LIMIT: Duration = Duration::from_secs(2);

        let Some(url) = &self.args.nats.url else {
            let what = "cannot follow the output of a trial on a worker: name the server of the \
                        run with `--nats`";
            return Err(CliError::refused(what));
        };
        let Some(run) = view.header.run else { return Ok(()) };
        let nats = match self.nats.take() {
            Some(nats) => nats,
            None => self.args.nats.access.connect(url).await?,
        };
        let nats = self.nats.insert(nats).clone();
        loop {
            let (exec, output_after) = match self.position.clone() {
                Some((exec, position)) => (Some(exec), position),
                None => (None, OutputCursor::default()),
            };
            let request = OutputRequest { run, item: detail.row.item, exec, output_after };
            // A worker that died does not answer. Another one may run the trial later.
            let answer = nats.trial_output(&request, ANSWER_LIMIT).await?;
            let Some((exec, piece)) = answer.and_then(|a| Some((a.exec, a.piece?))) else {
                return Ok(());
            };
            self.print(exec, piece)?;
        }
    }

    /// The position in the output of an execution.
    fn after(&self, exec: ExecId) -> OutputCursor {
        let known = self.position.as_ref().filter(|(known, _)| *known == exec);
        known.map(|(_, position)| position.clone()).unwrap_or_default()
    }

    fn print(&mut self, exec: ExecId, piece: OutputPiece) -> Result<(), CliError> {
        let OutputPiece { path, text, next } = piece;
        let stream = usize::from(path.ends_with("stderr.txt"));
        self.read.insert((exec, path.clone()), next.offsets[stream]);
        self.position = Some((exec, next));
        if !self.is_wanted(&path) {
            return Ok(());
        }
        self.print_header(exec, &path)?;
        match self.printer.prints_to_terminal() {
            true => self.printer.data(&escape::block(&text)),
            false => self.printer.data(&text),
        }
    }

    fn print_header(&mut self, exec: ExecId, path: &str) -> Result<(), CliError> {
        let shown = Some((exec, path.to_owned()));
        if self.shown == shown {
            return Ok(());
        }
        let gap = if self.shown.is_some() { "\n" } else { "" };
        self.shown = shown;
        self.printer.data(&format!("{gap}==> {} (execution {exec}) <==\n", escape::line(path)))
    }

    /// Whether a file is, or is in, the one that the command line names.
    fn is_wanted(&self, path: &str) -> bool {
        let Some(name) = self.args.name.as_deref().map(|name| name.trim_end_matches('/')) else {
            return true;
        };
        path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Prints the output of the execution that settled the trial that was not printed yet.
    async fn print_recorded(&mut self, detail: &TrialDetail) -> Result<(), CliError> {
        let Some(execution) = detail.recorded_execution(None) else { return Ok(()) };
        let args = self.args;
        let directory = self.place.directory();
        let store = store_url::open_for_run(args.store.as_deref(), directory).await?;
        let record = view::record_of(&*store, detail.row.item, execution).await;
        let Some(record) = record.map_err(|error| logs::failed(&error))? else { return Ok(()) };
        let files = view::captured_files(&record, None).map_err(|error| logs::failed(&error))?;
        for file in files {
            let CapturedSource::Blob(output) = &file.source else { continue };
            let known = self.read.get(&(execution.exec, file.path.clone())).copied();
            let known = known.unwrap_or_default();
            // Documents and events of a harness are no output.
            let is_wanted = is_output(&file.path) && self.is_wanted(&file.path);
            if output.blob.size_bytes <= known || !is_wanted {
                continue;
            }
            self.print_header(execution.exec, &file.path)?;
            logs::print_from(&*store, &file, known, self.printer).await?;
        }
        Ok(())
    }
}

/// Whether a captured file is the output of a script.
fn is_output(path: &str) -> bool {
    path.ends_with("/stdout.txt") || path.ends_with("/stderr.txt")
}

/// The scratch directory of an execution in the process of the run's owner.
fn scratch_of(run_dir: &Path, exec: ExecId) -> Option<PathBuf> {
    let workers = std::fs::read_dir(RunLayout::new(run_dir).workers()).ok()?;
    let scratches = workers.flatten().map(|worker| worker.path().join("scratch"));
    scratches.map(|scratch| scratch.join(exec.to_string())).find(|scratch| scratch.is_dir())
}
