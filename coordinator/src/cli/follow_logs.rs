//! `rollout logs --follow`: the output of a trial that runs.

use std::time::Duration;

use rollout_engine::journal::RunLayout;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::id::ExecId;
use tokio::time::Instant;

use super::error::CliError;
use super::logs::{self, LogsArgs};
use super::output::Printer;
use super::run_place::RunPlace;
use super::store_url;
use crate::launch::live_output::{
    LiveOutput, LiveOutputError, LiveOutputSource, LivePiece, RunningTrial, ShownOutput, is_output,
};
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
    output: LiveOutput,
    shown: ShownOutput,
    #[cfg(feature = "nats")]
    nats: Option<rollout_queue::nats::Nats>,
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
        output: LiveOutput::default(),
        shown: ShownOutput::new(args.name.as_deref()),
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
            None => {
                let workers = RunLayout::new(place.directory()).workers();
                follower.print_live(&LiveOutputSource::ThisHost(workers), &view, &detail).await?;
            }
            #[cfg(feature = "nats")]
            Some(_) => {
                let nats = follower.server().await?;
                follower.print_live(&LiveOutputSource::Workers(nats), &view, &detail).await?;
            }
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
    /// Prints new output of the execution that runs.
    async fn print_live(
        &mut self,
        source: &LiveOutputSource,
        view: &RunView,
        detail: &TrialDetail,
    ) -> Result<(), CliError> {
        let Some(run) = view.header.run else { return Ok(()) };
        let trial = RunningTrial::new(run, detail);
        while let Some(piece) = self.output.next_piece(source, trial).await? {
            self.print(&piece)?;
        }
        Ok(())
    }

    /// The server of the run.
    #[cfg(feature = "nats")]
    async fn server(&mut self) -> Result<rollout_queue::nats::Nats, CliError> {
        let Some(url) = &self.args.nats.url else {
            let what = "cannot follow the output of a trial on a worker: name the server of the \
                        run with `--nats`";
            return Err(CliError::refused(what));
        };
        let nats = match self.nats.take() {
            Some(nats) => nats,
            None => self.args.nats.access.connect(url).await?,
        };
        Ok(self.nats.insert(nats).clone())
    }

    fn print(&mut self, piece: &LivePiece) -> Result<(), CliError> {
        let LivePiece { exec, path, text } = piece;
        if !self.shown.is_wanted(path) {
            return Ok(());
        }
        self.print_header(*exec, path)?;
        match self.printer.prints_to_terminal() {
            true => self.printer.data(&escape::block(text)),
            false => self.printer.data(text),
        }
    }

    fn print_header(&mut self, exec: ExecId, path: &str) -> Result<(), CliError> {
        match self.shown.header(exec, path, &escape::line(path)) {
            Some(header) => self.printer.data(&header),
            None => Ok(()),
        }
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
            let known = self.output.bytes_read(execution.exec, &file.path);
            let is_wanted = is_output(&file.path) && self.shown.is_wanted(&file.path);
            if output.blob.size_bytes <= known || !is_wanted {
                continue;
            }
            self.print_header(execution.exec, &file.path)?;
            logs::print_from(&*store, &file, known, self.printer).await?;
        }
        Ok(())
    }
}

impl From<LiveOutputError> for CliError {
    fn from(error: LiveOutputError) -> Self {
        match error {
            LiveOutputError::File(error) => {
                Self::failure("cannot read the output of the execution", &error)
            }
            #[cfg(feature = "nats")]
            LiveOutputError::Connect(error) => error.into(),
            #[cfg(feature = "nats")]
            LiveOutputError::Queue(error) => error.into(),
        }
    }
}
