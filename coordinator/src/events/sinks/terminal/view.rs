//! What the terminal shows, folded from events. Time comes in as an argument.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use rollout_protocol::dependency::Dependency;
use rollout_protocol::event::{EventKind, RunEvent, TakeoverReason};
use rollout_protocol::id::{ExecId, ItemId};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Outcome, Settlement};
use rollout_protocol::spec::metric::MetricKind;
use rollout_protocol::spec::trial::TrialName;
use rollout_protocol::wire::control::StopLevel;

use super::format;
use super::score;
use super::style::Style;
use crate::results::escape;
use crate::results::metrics::{AgentTotal, Stats};

/// Jobs of at most this many trials get a line for every settled trial.
const SMALL_JOB: u64 = 200;

/// Lines about single trials of a larger job.
const TRIAL_LINES: u64 = 50;

/// Lines that wait to be shown; more are counted only.
const WAITING_LINES: usize = 500;

/// The state of the run as far as it is shown.
#[derive(Debug)]
pub(super) struct View {
    pub(super) stats: Stats,
    pub(super) kinds: Vec<MetricKind>,
    pub(super) job: String,
    /// Executions that run.
    pub(super) running: BTreeMap<(ItemId, ExecId), Running>,
    pub(super) stopping: Option<StopLevel>,
    /// Trials that this sitting settled.
    pub(super) settled_now: u64,
    /// Executions tried again in this sitting.
    pub(super) retries: u64,
    began: Option<Instant>,
    style: Style,
    lines: VecDeque<String>,
    lines_left_out: u64,
    trial_lines: u64,
    /// Lines that follow the one that says that the run started.
    pub(super) header: Vec<String>,
}

/// A running trial.
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) trial: TrialName,
    pub(super) try_number: u32,
    pub(super) phase: Phase,
    /// Start of the execution, as seen here.
    pub(super) since: Instant,
    /// What it waits for.
    pub(super) parked: Option<Dependency>,
}

impl View {
    pub(super) fn new(agents: &[AgentTotal], kinds: &[MetricKind], style: Style) -> Self {
        Self {
            stats: Stats::new(agents),
            kinds: kinds.to_vec(),
            job: String::new(),
            running: BTreeMap::new(),
            stopping: None,
            settled_now: 0,
            retries: 0,
            began: None,
            style,
            lines: VecDeque::new(),
            lines_left_out: 0,
            trial_lines: 0,
            header: Vec::new(),
        }
    }

    /// Whether every settled trial gets its line.
    pub(super) fn is_small(&self) -> bool {
        self.stats.total() <= SMALL_JOB
    }

    /// Time since the sitting began.
    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began))
    }

    /// The lines that wait to be shown, oldest first.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        let mut lines: Vec<String> = self.lines.drain(..).collect();
        if self.lines_left_out > 0 {
            lines.push(format!("… {} left out", format::plural(self.lines_left_out, "line")));
            self.lines_left_out = 0;
        }
        lines
    }

    /// Takes in one event.
    pub(super) fn apply(&mut self, event: &RunEvent, now: Instant) {
        self.stats.apply(event);
        match &event.kind {
            EventKind::RunStarted { job, epoch, total, .. } => {
                self.began = Some(now);
                self.job = escape::line(job).into_owned();
                let goes_on = if *epoch > 1 { ", going on where it was stopped" } else { "" };
                self.line(format!("{}: {}{goes_on}", self.job, format::plural(*total, "trial")));
                std::mem::take(&mut self.header).into_iter().for_each(|line| self.line(line));
            }
            EventKind::LockTakeover { former, reason } => {
                let why = match reason {
                    TakeoverReason::Dead => "which is dead",
                    TakeoverReason::Silent => "which said nothing any more",
                    TakeoverReason::Forced => "as you asked for",
                };
                self.line(format!("took the run over from {}, {why}", escape::line(former)));
            }
            EventKind::TrialPhase { item, trial, try_id, exec, phase } => {
                let running = self.running.entry((*item, *exec)).or_insert_with(|| Running {
                    trial: trial.clone(),
                    try_number: try_id.n,
                    phase: *phase,
                    since: now,
                    parked: None,
                });
                running.phase = *phase;
            }
            EventKind::ExecutionEnded { item, exec, .. } => {
                self.running.remove(&(*item, *exec));
            }
            EventKind::TrialParked { item, trial, try_id, exec, dependency, .. } => {
                self.parked((*item, *exec), trial, try_id.n, *dependency, now);
            }
            EventKind::TrialUnparked { item, exec, .. } => self.unparked(&(*item, *exec)),
            EventKind::TrialRetry { item, trial, exec, error, wait_ms, .. } => {
                self.running.remove(&(*item, *exec));
                self.retries += 1;
                let wait = format::duration(Duration::from_millis(*wait_ms));
                let text = format!("{error}; again in {wait}");
                self.trial_line("retry", trial, &text);
            }
            EventKind::TrialLost { item, trial, exec, .. } => {
                self.running.remove(&(*item, *exec));
                let (word, text) = match self.stopping {
                    Some(_) => ("stopped", "before it had a verdict; it is still owed"),
                    None => ("lost", "its execution ended without a verdict"),
                };
                self.trial_line(word, trial, text);
            }
            EventKind::TrialSettled { replayed, settlement, .. } => {
                self.settle(settlement.item);
                if !replayed {
                    self.settled_now += 1;
                    self.settled_line(settlement);
                }
            }
            EventKind::RunStopping { level } => self.stop(*level),
            EventKind::Warning { message } => {
                let message = escape::line(message);
                self.line(format!("{} {message}", self.style.odd("warning:")));
            }
            EventKind::RunEnded { .. } => self.running.clear(),
        }
    }

    /// A trial waits for a service; said once, for the first one.
    fn parked(
        &mut self,
        key: (ItemId, ExecId),
        trial: &TrialName,
        try_number: u32,
        dependency: Dependency,
        now: Instant,
    ) {
        if !self.waits_for(dependency) {
            let word = self.style.odd("parked");
            self.line(format!(
                "{word} {dependency} gives no answer; what needs it waits, its clocks stand still"
            ));
        }
        let running = self.running.entry(key).or_insert_with(|| Running {
            trial: trial.clone(),
            try_number,
            phase: Phase::EnvironmentSetup,
            since: now,
            parked: None,
        });
        running.parked = Some(dependency);
    }

    fn waits_for(&self, dependency: Dependency) -> bool {
        self.running.values().any(|running| running.parked == Some(dependency))
    }

    /// A trial does not wait any more; said once, for the last one.
    fn unparked(&mut self, key: &(ItemId, ExecId)) {
        let waited = self.running.get_mut(key).and_then(|running| running.parked.take());
        if let Some(dependency) = waited.filter(|dependency| !self.waits_for(*dependency)) {
            self.line(format!(
                "{} nothing waits for {dependency} any more",
                self.style.odd("parked")
            ));
        }
    }

    /// Takes out every execution of an item.
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
        self.line(match level {
            StopLevel::Drain => "stopping: running trials finish their phase, the rest is left \
                                 for later; interrupt again to end them at once"
                .to_owned(),
            StopLevel::Kill => "stopping at once: running trials are ended".to_owned(),
        });
    }

    fn settled_line(&mut self, settlement: &Settlement) {
        let verdict = &settlement.verdict;
        let told = verdict.outcome == Outcome::Failed || !verdict.unverified_steps.is_empty();
        if !self.is_small() && !told {
            return;
        }
        let mut text = score::verdict(verdict);
        let seconds = (settlement.by.as_ref())
            .and_then(|by| by.durations.as_ref())
            .and_then(|durations| Duration::try_from_secs_f64(durations.total_sec).ok());
        if let Some(time) = seconds {
            text = format!("{text} ({})", format::duration(time));
        }
        self.trial_line(verdict.outcome.as_str(), &settlement.trial, text.trim());
    }

    /// A line about one trial, unless there were too many.
    fn trial_line(&mut self, word: &str, trial: &TrialName, text: &str) {
        self.trial_lines += 1;
        if !self.is_small() && self.trial_lines > TRIAL_LINES {
            if self.trial_lines == TRIAL_LINES + 1 {
                self.line("further trials are not told one by one".to_owned());
            }
            return;
        }
        let padded = format!("{word:<10}");
        let word = match word {
            "completed" => self.style.good(&padded),
            "failed" => self.style.bad(&padded),
            _ => self.style.odd(&padded),
        };
        let trial = trial.to_string();
        self.line(format!("{word} {}  {}", escape::line(&trial), escape::line(text)));
    }

    fn line(&mut self, line: String) {
        if self.lines.len() < WAITING_LINES {
            self.lines.push_back(line);
        } else {
            self.lines_left_out += 1;
        }
    }
}
