//! Terminal view of a job's progress, folded from events. The time is an argument.

use std::time::{Duration, Instant};

use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::record::{ItemOutcome, Settlement};
use rollout_protocol::spec::metric::MetricKind;

use super::run_view::RunView;
use super::style::Style;
use super::{ProgressView, format, frame, score};
use crate::results::escape;
use crate::results::metrics::{AgentTotal, RunStats};

/// Maximum number of trials of a job with a line for every settled trial.
const SMALL_JOB_TRIALS: u64 = 200;

/// Maximum number of lines about single trials of a larger job.
const MAX_TRIAL_LINES: u64 = 50;

/// Time between two progress lines without a live region.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The same for jobs with a line per trial, which need it only as a sign of life.
const LINE_EVERY_IF_SMALL: Duration = Duration::from_secs(60);

/// The displayed state of a job.
#[derive(Debug)]
pub(super) struct JobView {
    pub(super) stats: RunStats,
    pub(super) metrics: Vec<MetricKind>,
    pub(super) job: String,
    pub(super) run: RunView,
    /// Trials that this session settled.
    pub(super) settled_in_session: u64,
    trial_lines: u64,
    /// The first lines, until they are printed; before the run starts, without the line that
    /// announces it.
    header: Vec<String>,
    /// Whether the run is open. A run that is refused prints no header.
    is_open: bool,
}

impl JobView {
    pub(super) fn new(
        agents: &[AgentTotal],
        kinds: &[MetricKind],
        style: Style,
        header: Vec<String>,
    ) -> Self {
        Self {
            stats: RunStats::new(agents),
            metrics: kinds.to_vec(),
            job: String::new(),
            run: RunView::new(style, "trials"),
            settled_in_session: 0,
            trial_lines: 0,
            header,
            is_open: false,
        }
    }

    fn start(&mut self, job: &str, epoch: u32, total: u64, now: Instant) {
        self.run.begin(now);
        self.job = escape::line(job).into_owned();
        let resumed = if epoch > 1 { ", resumed" } else { "" };
        let trials = format::plural(total, "trial");
        self.header.insert(0, format!("{}: {trials}{resumed}", self.job));
    }

    /// Prints the header.
    fn open(&mut self) {
        self.is_open = true;
        std::mem::take(&mut self.header).into_iter().for_each(|line| self.run.line(line));
    }

    /// Whether every settled trial gets a line.
    pub(super) fn is_small(&self) -> bool {
        self.stats.total() <= SMALL_JOB_TRIALS
    }

    fn settled_line(&mut self, settlement: &Settlement) {
        let verdict = &settlement.verdict;
        let is_listed =
            verdict.outcome == ItemOutcome::Failed || !verdict.unverified_steps.is_empty();
        if !self.is_small() && !is_listed {
            return;
        }
        let mut text = score::verdict(verdict);
        let seconds = (settlement.by.as_ref())
            .and_then(|by| by.durations.as_ref())
            .and_then(|durations| Duration::try_from_secs_f64(durations.total_sec).ok());
        if let Some(time) = seconds {
            text = format!("{text} ({})", format::duration(time));
        }
        self.trial_line(verdict.outcome.as_str(), &settlement.name, text.trim());
    }

    /// Adds a line about one trial, unless there are too many.
    fn trial_line(&mut self, word: &str, name: &ItemName, text: &str) {
        self.trial_lines += 1;
        if !self.is_small() && self.trial_lines > MAX_TRIAL_LINES {
            if self.trial_lines == MAX_TRIAL_LINES + 1 {
                self.run.line("more trials are not listed individually".to_owned());
            }
            return;
        }
        self.run.item_line(word, &name.to_string(), text);
    }
}

impl ProgressView for JobView {
    fn apply(&mut self, event: &RunEvent, now: Instant) {
        self.stats.apply(event);
        self.run.apply(event, now);
        match &event.kind {
            EventKind::RunStarted { job, epoch, total, .. } => {
                self.start(job, *epoch, *total, now);
            }
            EventKind::RunOpened => self.open(),
            EventKind::TrialRetry { name, .. } | EventKind::TrialLost { name, .. } => {
                if let Some((word, text)) = self.run.event_text(&event.kind) {
                    self.trial_line(word, name, &text);
                }
            }
            EventKind::TrialReopened { name, .. } => {
                self.trial_line("retry", name, "a user gives it another try");
            }
            EventKind::TrialSettled { replayed: false, settlement, .. } => {
                self.settled_in_session += 1;
                self.settled_line(settlement);
            }
            _ => {}
        }
    }

    fn take_lines(&mut self) -> Vec<String> {
        self.run.take_lines()
    }

    fn has_begun(&self) -> bool {
        self.is_open
    }

    fn line_every(&self) -> Duration {
        if self.is_small() { LINE_EVERY_IF_SMALL } else { LINE_EVERY }
    }

    fn live(&self, now: Instant, width: usize, height: usize) -> Vec<String> {
        frame::live(self, now, width, height)
    }

    fn plain(&self, now: Instant) -> String {
        frame::plain(self, now)
    }
}
