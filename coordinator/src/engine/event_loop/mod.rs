//! The loop: gather inputs, let the core decide, make the records durable, carry out the effects.

mod close;
mod effects;
mod live;
mod news;
mod outlet;
mod sources;
mod standing;
mod tickets;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::Timestamp;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::command::CommandReceipt;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::position::{ReportPosition, ReportCursor, ReportBatch};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

pub use self::live::LiveExecution;
use self::live::LiveExecutions;
pub use self::outlet::Outlet;
use self::sources::Turn;
pub use self::sources::{News, Sources, Workers};
pub use self::standing::{Keeper, Standing};
use super::concurrency::Tickets;
use super::manifest::RunState;
use super::open::OpenRun;
use super::reconcile::Capacity;
use super::{Planner, RunError};
use crate::engine::core::{Core, Effect, Input, Now, Output, Record};
use crate::engine::journal::Writer;

/// How often the manifest is replaced while the run goes on: what it says is only a hint for people
/// and for the recognition of a damaged journal.
const MANIFEST_EVERY: Duration = Duration::from_secs(5);

/// How long a killed sitting waits for workers elsewhere to say that they ended.
const KILL_PATIENCE: Duration = Duration::from_secs(20);

/// How a sitting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Whether it was stopped before everything was settled.
    pub cancelled: bool,
    /// Planned items without a settlement.
    pub owed: u64,
}

/// One sitting of a run.
#[derive(Debug)]
pub struct Engine<P> {
    run: OpenRun,
    planner: P,
    outlet: Outlet,
    keeper: Keeper,
    events: mpsc::Sender<Vec<RunEvent>>,
    claims: HashMap<u64, oneshot::Sender<ClaimAnswer>>,
    commands: HashMap<u64, oneshot::Sender<CommandReceipt>>,
    next_question: u64,
    /// Effects that wait for the batch of records with this number.
    waiting: VecDeque<(u64, Vec<Effect>)>,
    made: Vec<Effect>,
    started: Instant,
    /// Place of the last report in the batch that is on its way.
    on_its_way: Option<ReportPosition>,
    /// Place of the last report that is durable.
    durable: Option<ReportPosition>,
    /// Place of the last report that the core was told.
    handled: watch::Sender<Option<ReportCursor>>,
    /// The executions that events show as running.
    live: LiveExecutions,
    manifest_due: Instant,
    quiesced: bool,
    recovered: bool,
    reaped: bool,
    /// When a killed sitting ends although something may run where nobody reaches it.
    given_up: Option<Instant>,
    /// Rings when the plan has grown.
    growth: Option<Arc<Notify>>,
    /// Who may run commands of which there may be only so many.
    tickets: Option<Arc<Tickets>>,
}

/// Waits until a plan has grown; for ever when it is whole. A ring that nobody waited for is kept.
async fn grown(growth: Option<&Notify>) {
    match growth {
        Some(growth) => growth.notified().await,
        None => std::future::pending().await,
    }
}

struct Recorder<'a> {
    writer: &'a mut Writer,
    effects: &'a mut Vec<Effect>,
}

impl Output for Recorder<'_> {
    fn record(&mut self, at: Timestamp, record: &Record) {
        self.writer.record(at, record);
    }

    fn effects(&mut self) -> &mut Vec<Effect> {
        self.effects
    }
}

impl<P: Planner> Engine<P> {
    /// An engine for a run that was opened.
    pub fn new(
        run: OpenRun,
        planner: P,
        outlet: Outlet,
        keeper: Keeper,
        events: mpsc::Sender<Vec<RunEvent>>,
    ) -> Self {
        let (now, position) = (Instant::now(), run.core.position());
        let (growth, tickets) = (planner.growth(), planner.tickets());
        Self {
            run,
            planner,
            outlet,
            keeper,
            events,
            claims: HashMap::new(),
            commands: HashMap::new(),
            next_question: 0,
            waiting: VecDeque::new(),
            made: Vec::new(),
            started: now,
            on_its_way: None,
            durable: position,
            handled: watch::Sender::new(position.map(|at| at.cursor())),
            live: LiveExecutions::default(),
            manifest_due: now,
            quiesced: false,
            recovered: false,
            reaped: false,
            given_up: None,
            growth,
            tickets,
        }
    }

    /// Place of the last report that the core was told, from now on.
    pub fn handled(&self) -> watch::Receiver<Option<ReportCursor>> {
        self.handled.subscribe()
    }

    /// The core's state.
    pub fn core(&self) -> &Core {
        &self.run.core
    }

    fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Gives the core one input.
    pub fn handle(&mut self, input: Input) {
        let now = Now { monotonic_ms: self.monotonic_ms(), wall: Timestamp::now() };
        let mut out = Recorder { writer: &mut self.run.writer, effects: &mut self.made };
        self.run.core.handle(now, input, &mut out);
    }

    /// Runs until everything is settled, or until a stop has come to its end.
    ///
    /// # Errors
    /// [`RunError`] when the sitting cannot go on.
    pub async fn run(mut self, mut sources: Sources) -> Result<Ended, RunError> {
        self.adopt_plan();
        if let Workers::Elsewhere = sources.workers {
            self.handle(Input::Room(Capacity::unseen(self.planner.lanes()).room));
            self.handle(Input::Begin);
        }
        self.write_manifest(RunState::Running)?;
        loop {
            self.feed();
            self.flush().await?;
            self.hand_out(&sources.workers)?;
            if self.is_over(&sources.workers) {
                return self.close().await;
            }
            self.step(&mut sources).await?;
        }
    }

    /// Waits for one thing and takes everything of its kind that is there.
    async fn step(&mut self, sources: &mut Sources) -> Result<(), RunError> {
        let due = self.next_due();
        // Every branch is safe to cancel: channels keep what was not received, and the writer keeps
        // a commit until it is taken.
        tokio::select! {
            commit = self.run.writer.durable() => {
                commit?;
                self.on_durable().await?;
            }
            Some(reports) = sources.reports.recv() => self.on_reports(reports),
            Some(news) = sources.news.recv() => {
                self.drain_reports(&mut sources.reports);
                self.on_news(news).await?;
            }
            Some(level) = sources.stops.recv() => self.stop(level),
            () = grown(self.growth.as_deref()) => {}
            () = tickets::news(self.tickets.as_deref()) => {}
            Some(hint) = sources.hints.recv() => self.on_hint(hint).await,
            turn = sources.workers.turn([self.recovered, self.quiesced, self.reaped]) => {
                self.drain_reports(&mut sources.reports);
                while let Ok(level) = sources.stops.try_recv() {
                    self.stop(level);
                }
                self.on_turn(turn)?;
            }
            () = tokio::time::sleep_until(due) => {
                self.handle(Input::Tick);
                self.refresh_manifest();
            }
        }
        Ok(())
    }

    fn on_turn(&mut self, turn: Turn) -> Result<(), RunError> {
        match turn {
            Turn::Recovered => {
                self.recovered = true;
                self.handle(Input::FormerExecutorsDead);
            }
            Turn::Reaped => self.reaped = true,
            Turn::Quiesced => {
                self.quiesced = true;
                if self.run.core.stopping().is_none() && !self.run.core.is_complete() {
                    return Err(RunError::PartEnded("the worker"));
                }
            }
        }
        Ok(())
    }

    fn stop(&mut self, level: StopLevel) {
        if level == StopLevel::Kill {
            self.given_up.get_or_insert_with(|| Instant::now() + KILL_PATIENCE);
        }
        self.handle(Input::Stop(level));
    }

    /// Tells the core of the planned items that former sittings touched.
    fn adopt_plan(&mut self) {
        if self.run.core.is_untouched() {
            return;
        }
        let touched: Vec<_> =
            self.run.core.items().filter_map(|item| self.planner.find(&item)).collect();
        self.handle(Input::Items(touched));
    }

    /// Asks the planner for what there are permits for.
    fn feed(&mut self) {
        while let wanted @ 1.. = self.run.core.wants() {
            let items = self.planner.next(wanted);
            if items.is_empty() {
                if self.planner.is_open() {
                    break;
                }
                self.handle(Input::Exhausted);
            } else {
                self.handle(Input::Items(items));
            }
        }
    }

    fn on_reports(&mut self, batch: ReportBatch) {
        for reported in batch.reports {
            self.handle(Input::Reported(Box::new(reported)));
        }
        self.handled.send_replace(batch.read_to);
    }

    fn drain_reports(&mut self, reports: &mut mpsc::Receiver<ReportBatch>) {
        while let Ok(reports) = reports.try_recv() {
            self.on_reports(reports);
        }
    }

    /// Hands records to the disk, and carries out the effects that wait for none.
    async fn flush(&mut self) -> Result<(), RunError> {
        let made = std::mem::take(&mut self.made);
        if !made.is_empty() {
            let batch = self.run.writer.last();
            self.waiting.push_back((batch, made));
        }
        if self.run.writer.submit() {
            self.on_its_way = self.run.core.position();
        }
        self.carry_out().await
    }

    async fn on_durable(&mut self) -> Result<(), RunError> {
        let reached = self.on_its_way.take();
        self.durable = reached.or(self.durable);
        self.keeper.durable(self.run.run, reached, || self.standing()).await?;
        self.carry_out().await
    }

    async fn carry_out(&mut self) -> Result<(), RunError> {
        while let Some((batch, _)) = self.waiting.front()
            && *batch <= self.run.writer.committed()
        {
            // A process that was stopped may have a successor that knows nothing of these.
            self.run.fence.check_when_due().map_err(RunError::LockLost)?;
            let (_, effects) = self.waiting.pop_front().expect("there is a front");
            self.perform(effects).await?;
        }
        Ok(())
    }

    async fn emit(&self, kinds: Vec<EventKind>) {
        let at = Timestamp::now();
        let events = kinds.into_iter().map(|kind| RunEvent { at, kind }).collect();
        // A reporter that is gone has told its own error; the run itself goes on.
        drop(self.events.send(events).await);
    }

    fn is_over(&self, workers: &Workers) -> bool {
        let idle = self.waiting.is_empty() && self.run.writer.is_idle();
        let quiet = match workers {
            Workers::Here { .. } => self.quiesced,
            Workers::Elsewhere => {
                self.run.core.is_quiet() || self.given_up.is_some_and(|at| Instant::now() >= at)
            }
        };
        let stopped = self.run.core.stopping().is_some() && quiet;
        idle && (stopped || self.run.core.is_complete())
    }

    fn next_due(&self) -> Instant {
        let core = self.run.core.next_due_ms().map(|ms| self.started + Duration::from_millis(ms));
        let due = core.map_or(self.manifest_due, |due| due.min(self.manifest_due));
        let tickets = self.tickets.as_ref().and_then(|tickets| tickets.next_due());
        let due = tickets.map_or(due, |at| due.min(at));
        self.given_up.map_or(due, |at| due.min(at))
    }
}
