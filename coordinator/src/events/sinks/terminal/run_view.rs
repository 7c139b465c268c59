//! Terminal state shared by jobs and searches: running executions, stops, warnings, lines.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rollout_protocol::dependency::Dependency;
use rollout_protocol::event::{EventKind, RunEvent, TakeoverReason};
use rollout_protocol::wire::control::StopLevel;

use super::format;
use super::style::Style;
use crate::events::running::RunningExecutions;
use crate::results::escape;

/// Maximum number of pending lines; more are only counted.
const MAX_WAITING_LINES: usize = 500;

/// Between the lines of a text about one item: none may look like the line of another item.
const NEXT_LINE: &str = "\n  ";

/// The shared part of a view.
#[derive(Debug)]
pub(super) struct RunView {
    /// Running executions.
    pub(super) running: RunningExecutions,
    pub(super) stopping: Option<StopLevel>,
    /// Whether a user paused it.
    pub(super) paused: bool,
    /// Items that no worker could run.
    pub(super) waiting_for_worker: u64,
    /// Executions retried in this session.
    pub(super) retries: u64,
    pub(super) style: Style,
    /// Plural noun for items.
    noun: &'static str,
    started_at: Option<Instant>,
    lines: VecDeque<String>,
    dropped_lines: u64,
}

impl RunView {
    pub(super) fn new(style: Style, noun: &'static str) -> Self {
        Self {
            running: RunningExecutions::default(),
            stopping: None,
            paused: false,
            waiting_for_worker: 0,
            retries: 0,
            style,
            noun,
            started_at: None,
            lines: VecDeque::new(),
            dropped_lines: 0,
        }
    }

    /// Sets the start of the session.
    pub(super) fn begin(&mut self, now: Instant) {
        self.started_at = Some(now);
    }

    /// Whether the session has started.
    pub(super) fn has_begun(&self) -> bool {
        self.started_at.is_some()
    }

    /// Time since the start of the session.
    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        self.started_at.map_or(Duration::ZERO, |began| now.saturating_duration_since(began))
    }

    /// Takes the pending lines, oldest first.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        let mut lines: Vec<String> = self.lines.drain(..).collect();
        if self.dropped_lines > 0 {
            lines.push(format!("… {} left out", format::plural(self.dropped_lines, "line")));
            self.dropped_lines = 0;
        }
        lines
    }

    /// Applies an event. Jobs and searches add the lines about single items themselves.
    pub(super) fn apply(&mut self, event: &RunEvent, now: Instant) {
        match &event.kind {
            EventKind::LockTakeover { former, reason } => {
                let why = match reason {
                    TakeoverReason::Dead => ", which is dead",
                    TakeoverReason::Silent => ", which stopped sending heartbeats",
                    TakeoverReason::Forced => " (--force)",
                };
                self.line(format!("took over the run from {}{why}", escape::line(former)));
            }
            EventKind::TrialRetry { .. } => self.retries += 1,
            EventKind::TrialParked { dependency, .. } => self.line_if_first_parked(*dependency),
            EventKind::RunStopping { level } => self.stop(*level),
            EventKind::RunPaused => {
                self.paused = true;
                let noun = self.noun;
                self.line(format!("paused: running {noun} go on, no other begins"));
            }
            EventKind::RunContinued => {
                self.paused = false;
                self.line("continued".to_owned());
            }
            EventKind::Warning { message } => {
                let message = escape::line(message);
                self.line(format!("{} {message}", self.style.warning("warning:")));
            }
            EventKind::Backlog { waiting_for_worker, .. } => {
                self.waiting_for_worker = waiting_for_worker.iter().map(|w| w.items).sum();
            }
            EventKind::RunStarted { .. }
            | EventKind::RunOpened
            | EventKind::TrialPhase { .. }
            | EventKind::TrialUnparked { .. }
            | EventKind::TrialLost { .. }
            | EventKind::ExecutionEnded { .. }
            | EventKind::TrialSettled { .. }
            | EventKind::TrialReopened { .. }
            | EventKind::RunEnded { .. }
            | EventKind::Search(_) => {}
        }
        let waited = match &event.kind {
            EventKind::TrialUnparked { item, exec, .. } => self.running.waiting_for(*item, *exec),
            _ => None,
        };
        self.running.apply(event, now);
        if let Some(dependency) = waited {
            self.line_if_last_unparked(dependency);
        }
    }

    /// Word and text for a lost execution, or for one that is retried later.
    pub(super) fn event_text(&self, event: &EventKind) -> Option<(&'static str, String)> {
        match event {
            EventKind::TrialRetry { error, wait_ms, .. } => {
                let wait = format::duration(Duration::from_millis(*wait_ms));
                Some(("retry", format!("{error}; retrying in {wait}")))
            }
            EventKind::TrialLost { .. } => Some(match self.stopping {
                Some(_) => ("stopped", "before it had a verdict; it is still pending".to_owned()),
                None => ("lost", "its execution ended without a verdict".to_owned()),
            }),
            _ => None,
        }
    }

    /// Adds a line for the first execution that waits for a service.
    fn line_if_first_parked(&mut self, dependency: Dependency) {
        if !self.running.waits_for(dependency) {
            let (word, noun) = (self.style.warning("parked    "), self.noun);
            self.line(format!(
                "{word} {dependency} does not respond; {noun} that need it wait, and their \
                 timeouts are paused"
            ));
        }
    }

    /// Adds a line for the last execution that no longer waits for a service.
    fn line_if_last_unparked(&mut self, dependency: Dependency) {
        if !self.running.waits_for(dependency) {
            let (word, noun) = (self.style.warning("unparked  "), self.noun);
            self.line(format!("{word} no {noun} wait for {dependency} any more"));
        }
    }

    fn stop(&mut self, level: StopLevel) {
        self.stopping = Some(level);
        let noun = self.noun;
        self.line(match level {
            StopLevel::Drain => format!(
                "stopping: running {noun} finish their phase, the rest stays pending; \
                 a second Ctrl-C or SIGTERM kills them at once"
            ),
            StopLevel::Kill => format!("stopping at once: running {noun} are killed"),
        });
    }

    /// Adds a line about one item. Further lines of the text, such as the output of a failed build, are
    /// indented below it.
    pub(super) fn item_line(&mut self, word: &str, item: &str, text: &str) {
        let padded = format!("{word:<10}");
        let word = match word {
            "completed" => self.style.success(&padded),
            "failed" => self.style.failure(&padded),
            _ => self.style.warning(&padded),
        };
        let lines: Vec<_> = text.trim_end().lines().map(escape::line).collect();
        self.line(format!("{word} {}  {}", escape::line(item), lines.join(NEXT_LINE)));
    }

    /// Adds a line.
    pub(super) fn line(&mut self, line: String) {
        if self.lines.len() < MAX_WAITING_LINES {
            self.lines.push_back(line);
        } else {
            self.dropped_lines += 1;
        }
    }
}
