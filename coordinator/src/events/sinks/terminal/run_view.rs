//! Terminal state shared by jobs and searches: running executions, stops, warnings, lines.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rollout_protocol::dependency::Dependency;
use rollout_protocol::event::{EventKind, RunEvent, TakeoverReason};
use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::item_name::ItemName;
use rollout_protocol::phase::Phase;
use rollout_protocol::wire::control::StopLevel;

use super::format;
use super::style::Style;
use crate::results::escape;

/// Maximum number of pending lines; more are only counted.
const MAX_WAITING_LINES: usize = 500;

/// The shared part of a view.
#[derive(Debug)]
pub(super) struct RunView {
    /// Running executions.
    pub(super) running: BTreeMap<(ItemId, ExecId), ExecutionView>,
    pub(super) stopping: Option<StopLevel>,
    /// Whether a user paused it.
    pub(super) paused: bool,
    /// Executions retried in this session.
    pub(super) retries: u64,
    pub(super) style: Style,
    /// Plural noun for items.
    noun: &'static str,
    started_at: Option<Instant>,
    lines: VecDeque<String>,
    dropped_lines: u64,
}

/// A running execution.
#[derive(Debug, Clone)]
pub(super) struct ExecutionView {
    pub(super) name: ItemName,
    pub(super) try_number: u32,
    pub(super) phase: Phase,
    /// When this view first saw the execution.
    pub(super) started_at: Instant,
    /// The service that it is waiting for.
    pub(super) waiting_for: Option<Dependency>,
}

impl RunView {
    pub(super) fn new(style: Style, noun: &'static str) -> Self {
        Self {
            running: BTreeMap::new(),
            stopping: None,
            paused: false,
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
            EventKind::TrialPhase { item, name, try_id, exec, phase } => {
                let running = self.running.entry((*item, *exec)).or_insert_with(|| ExecutionView {
                    name: name.clone(),
                    try_number: try_id.n,
                    phase: *phase,
                    started_at: now,
                    waiting_for: None,
                });
                running.phase = *phase;
            }
            EventKind::ExecutionEnded { item, exec, .. }
            | EventKind::TrialLost { item, exec, .. } => {
                self.running.remove(&(*item, *exec));
            }
            EventKind::TrialRetry { item, exec, .. } => {
                self.running.remove(&(*item, *exec));
                self.retries += 1;
            }
            EventKind::TrialParked { item, name, try_id, exec, dependency, .. } => {
                self.parked((*item, *exec), name, try_id.n, *dependency, now);
            }
            EventKind::TrialUnparked { item, exec, .. } => self.unparked(&(*item, *exec)),
            EventKind::TrialSettled { settlement, .. } => self.settle(settlement.item),
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
            EventKind::RunEnded { .. } => self.running.clear(),
            EventKind::RunStarted { .. }
            | EventKind::RunOpened
            | EventKind::TrialReopened { .. }
            | EventKind::Search(_) => {}
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

    /// Marks an execution as waiting for a service. Adds a line for the first one only.
    fn parked(
        &mut self,
        key: (ItemId, ExecId),
        name: &ItemName,
        try_number: u32,
        dependency: Dependency,
        now: Instant,
    ) {
        if !self.waits_for(dependency) {
            let (word, noun) = (self.style.warning("parked    "), self.noun);
            self.line(format!(
                "{word} {dependency} does not respond; {noun} that need it wait, and their \
                 timeouts are paused"
            ));
        }
        let running = self.running.entry(key).or_insert_with(|| ExecutionView {
            name: name.clone(),
            try_number,
            phase: Phase::EnvironmentSetup,
            started_at: now,
            waiting_for: None,
        });
        running.waiting_for = Some(dependency);
    }

    fn waits_for(&self, dependency: Dependency) -> bool {
        self.running.values().any(|running| running.waiting_for == Some(dependency))
    }

    /// Marks an execution as no longer waiting. Adds a line for the last one only.
    fn unparked(&mut self, key: &(ItemId, ExecId)) {
        let waited = self.running.get_mut(key).and_then(|running| running.waiting_for.take());
        if let Some(dependency) = waited.filter(|dependency| !self.waits_for(*dependency)) {
            let (word, noun) = (self.style.warning("unparked  "), self.noun);
            self.line(format!("{word} no {noun} wait for {dependency} any more"));
        }
    }

    /// Removes every execution of an item.
    fn settle(&mut self, item: ItemId) {
        let of_item = |exec| (item, ExecId::from_bytes([exec; 16]));
        let ended: Vec<_> =
            self.running.range(of_item(0)..=of_item(u8::MAX)).map(|(key, _)| *key).collect();
        for key in ended {
            self.running.remove(&key);
        }
    }

    fn stop(&mut self, level: StopLevel) {
        self.stopping = Some(level);
        let noun = self.noun;
        self.line(match level {
            StopLevel::Drain => format!(
                "stopping: running {noun} finish their phase, the rest stays pending; \
                 interrupt again to kill them at once"
            ),
            StopLevel::Kill => format!("stopping at once: running {noun} are killed"),
        });
    }

    /// Adds a line about one item.
    pub(super) fn item_line(&mut self, word: &str, item: &str, text: &str) {
        let padded = format!("{word:<10}");
        let word = match word {
            "completed" => self.style.success(&padded),
            "failed" => self.style.failure(&padded),
            _ => self.style.warning(&padded),
        };
        self.line(format!("{word} {}  {}", escape::line(item), escape::line(text)));
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
