//! The engine's loop: gathers inputs, lets the core decide, makes the records durable, and carries
//! out the effects.

mod backlog;
mod cancellations;
mod close;
mod compaction;
mod concurrency;
mod decisions;
mod durable_state;
mod effects;
mod inputs;
mod live;
mod messages;
mod publisher;
mod queue_outage;
mod retries;
mod run_files;
mod session_clock;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::Timestamp;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::wire::claim::ClaimAnswer;
use rollout_protocol::wire::command::CommandReceipt;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::position::{ReportBatch, ReportCursor, ReportPosition};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use self::backlog::Backlog;
use self::cancellations::Cancellations;
use self::compaction::JournalGrowth;
pub use self::durable_state::{DurableState, DurableStateListener};
use self::inputs::LocalWorkerEvent;
pub use self::inputs::{EngineInputs, EngineMessage, WorkerLocation};
use self::live::LiveExecutions;
pub use self::live::{LiveExecution, PhaseHints};
pub use self::publisher::QueuePublisher;
use self::queue_outage::OutageFile;
pub use self::queue_outage::QueueOutage;
use self::retries::Retries;
use self::session_clock::SessionClock;
use super::concurrency::ConcurrencyLimiter;
use super::manifest::RunState;
use super::open::OpenRun;
use super::reconcile::PoolCapacity;
use super::{Planner, RunError};
use crate::core::{Core, CoreEffect, CoreInput, CoreOutput, InputTime, JournalRecord, NewItem};
use crate::journal::JournalWriter;

/// How often the manifest is replaced during the run: it is only a hint for people and for the
/// detection of a damaged journal.
const MANIFEST_INTERVAL: Duration = Duration::from_secs(5);

/// Items that one turn of the loop asks the planner for.
const PLANNED_PER_TURN: usize = 4096;

/// How long a killed session waits for remote workers to report that they ended.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// Outcome of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOutcome {
    /// Whether it was stopped before everything was settled, or while more items could come.
    pub cancelled: bool,
    /// Planned items without a settlement.
    pub pending: u64,
    /// Whether the budgets of model calls did not cover the pending items.
    pub is_over_budget: bool,
}

/// One session of a run.
#[derive(Debug)]
pub struct Engine {
    run: OpenRun,
    planner: Box<dyn Planner>,
    publisher: QueuePublisher,
    listener: DurableStateListener,
    events: mpsc::Sender<Vec<RunEvent>>,
    claims: HashMap<u64, oneshot::Sender<ClaimAnswer>>,
    commands: HashMap<u64, oneshot::Sender<CommandReceipt>>,
    retries: Retries,
    cancellations: Cancellations,
    /// Whether the planner has items that the next turn asks for.
    plans_more: bool,
    next_claim_id: u64,
    /// Effects that wait for the batch of records with this number.
    waiting: VecDeque<(u64, Vec<CoreEffect>)>,
    pending_effects: Vec<CoreEffect>,
    started: Instant,
    /// Times of the workload's decisions.
    clock: SessionClock,
    /// Position of the last report in the batch in flight.
    in_flight_position: Option<ReportPosition>,
    /// When the batch in flight was handed to the disk.
    in_flight_since: Option<Instant>,
    /// Position of the last durable report.
    durable_position: Option<ReportPosition>,
    /// Position of the last report that the core has handled.
    handled: watch::Sender<Option<ReportCursor>>,
    /// The executions that events show as running.
    live: LiveExecutions,
    backlog: Backlog,
    outage_file: OutageFile,
    manifest_due: Instant,
    quiesced: bool,
    recovered: bool,
    reaped: bool,
    /// Whether the first stop ends the session alone, and executions continue for the next one.
    hands_over: bool,
    is_leaving: bool,
    is_over_budget: bool,
    /// Whether the user was told of model calls without token ids.
    said_without_ids: bool,
    /// When a killed session ends although something may run on an unreachable worker.
    kill_deadline: Option<Instant>,
    /// Notified when the plan has grown.
    growth: Option<Arc<Notify>>,
    /// Limiter of commands with bounded concurrency.
    limiter: Option<Arc<ConcurrencyLimiter>>,
    /// Length of the journal beyond what this session has written since its last compaction.
    journal_growth: JournalGrowth,
}

/// Waits until a plan has grown; forever when it is complete. A notification without a waiter is
/// kept.
async fn wait_for_growth(growth: Option<&Notify>) {
    match growth {
        Some(growth) => growth.notified().await,
        None => std::future::pending().await,
    }
}

struct JournalRecorder<'a> {
    writer: &'a mut JournalWriter,
    effects: &'a mut Vec<CoreEffect>,
}

impl CoreOutput for JournalRecorder<'_> {
    fn record(&mut self, at: Timestamp, record: &JournalRecord) {
        self.writer.record(at, record);
    }

    fn effects(&mut self) -> &mut Vec<CoreEffect> {
        self.effects
    }
}

impl Engine {
    /// An engine for a run that was opened.
    pub fn new(
        run: OpenRun,
        planner: Box<dyn Planner>,
        publisher: QueuePublisher,
        listener: DurableStateListener,
        events: mpsc::Sender<Vec<RunEvent>>,
    ) -> Self {
        let (now, position) = (Instant::now(), run.core.position());
        let (growth, limiter) = (planner.growth_signal(), planner.concurrency_limiter());
        let clock = SessionClock::new(planner.session_start(Timestamp::now()), now);
        Self {
            run,
            planner,
            publisher,
            listener,
            events,
            claims: HashMap::new(),
            commands: HashMap::new(),
            retries: Retries::default(),
            cancellations: Cancellations::default(),
            plans_more: false,
            next_claim_id: 0,
            waiting: VecDeque::new(),
            pending_effects: Vec::new(),
            started: now,
            clock,
            in_flight_position: None,
            in_flight_since: None,
            durable_position: position,
            handled: watch::Sender::new(position.map(|at| at.cursor())),
            live: LiveExecutions::default(),
            backlog: Backlog::default(),
            outage_file: OutageFile::default(),
            manifest_due: now,
            quiesced: false,
            recovered: false,
            reaped: false,
            hands_over: false,
            is_leaving: false,
            is_over_budget: false,
            said_without_ids: false,
            kill_deadline: None,
            growth,
            limiter,
            journal_growth: JournalGrowth::default(),
        }
    }

    /// Sets whether the first stop ends the session alone, and executions on workers continue.
    #[must_use]
    pub fn handing_over(self, hands_over: bool) -> Self {
        Self { hands_over, ..self }
    }

    /// Position of the last report that the core has handled, from now on.
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
    pub fn handle(&mut self, input: CoreInput) {
        let now = InputTime { monotonic_ms: self.monotonic_ms(), wall: Timestamp::now() };
        let mut out =
            JournalRecorder { writer: &mut self.run.writer, effects: &mut self.pending_effects };
        self.run.core.handle(now, input, &mut out);
    }

    /// Runs until everything is settled, or until a stop is complete.
    ///
    /// # Errors
    /// [`RunError`] when the session cannot continue.
    pub async fn run(mut self, mut inputs: EngineInputs) -> Result<EngineOutcome, RunError> {
        let touched = self.restore_plan();
        self.start_backlog(&touched, &inputs.workers);
        self.measure_journal();
        if let WorkerLocation::Remote = inputs.workers {
            self.handle(CoreInput::OfferLimits(
                PoolCapacity::assumed(self.planner.lanes()).offer_limits,
            ));
            self.handle(CoreInput::ResumeRemote);
        }
        self.write_manifest(RunState::Running)?;
        self.refresh_backlog().await?;
        loop {
            self.take_decisions();
            self.feed_planned();
            self.flush().await?;
            self.grant_permits(&inputs.workers)?;
            self.stop_over_budget().await;
            if self.is_leaving {
                return Box::pin(self.hand_over(&mut inputs.stops)).await;
            }
            if self.is_over(&inputs.workers) {
                return self.close(&mut inputs.stops).await;
            }
            self.check_journal_of_kill()?;
            self.step(&mut inputs).await?;
        }
    }

    /// Waits for one event and takes everything of its kind that is there.
    async fn step(&mut self, inputs: &mut EngineInputs) -> Result<(), RunError> {
        let due = self.next_due();
        // Every branch is cancel-safe: channels keep what was not received, and the writer keeps a
        // commit until it is taken.
        tokio::select! {
            commit = self.run.writer.durable() => {
                commit?;
                self.on_durable().await?;
            }
            Some(reports) = inputs.reports.recv() => self.on_reports(reports),
            tries = self.publisher.published() => self.handle(CoreInput::Published(tries)),
            Some(messages) = inputs.messages.recv() => {
                self.drain_reports(&mut inputs.reports);
                self.on_message(messages).await?;
            }
            Some(level) = inputs.stops.recv() => self.stop(level).await,
            () = std::future::ready(()), if self.cancellations.is_ready() => self.cancel_next(),
            () = std::future::ready(()), if self.plans_more => {}
            found = self.retries.next_found() => self.on_settlements_found(found)?,
            () = wait_for_growth(self.growth.as_deref()) => {}
            Some(hints) = inputs.hints.next() => self.on_hints(hints).await,
            turn = inputs.workers.next_event([self.recovered, self.quiesced, self.reaped]) => {
                self.drain_reports(&mut inputs.reports);
                while let Ok(level) = inputs.stops.try_recv() {
                    self.stop(level).await;
                }
                self.on_local_worker_event(turn)?;
            }
            () = tokio::time::sleep_until(due) => {
                self.handle(CoreInput::Tick);
                self.retries.answer_overdue(Instant::now());
                self.cancellations.answer_overdue(Instant::now());
                if self.refresh_manifest() {
                    self.refresh_backlog().await?;
                }
            }
        }
        Ok(())
    }

    fn on_local_worker_event(&mut self, turn: LocalWorkerEvent) -> Result<(), RunError> {
        match turn {
            LocalWorkerEvent::Recovered => {
                self.recovered = true;
                self.handle(CoreInput::PreviousExecutorsDead);
            }
            LocalWorkerEvent::Reaped => self.reaped = true,
            LocalWorkerEvent::Quiesced => {
                self.quiesced = true;
                if self.run.core.stopping().is_none() && !self.run.core.is_complete() {
                    return Err(RunError::PartEnded("the worker"));
                }
            }
        }
        Ok(())
    }

    async fn stop(&mut self, level: StopLevel) {
        if self.hands_over && self.run.core.stopping().is_none() {
            self.is_leaving = true;
            return;
        }
        if level == StopLevel::Kill {
            self.kill_deadline.get_or_insert_with(|| Instant::now() + KILL_TIMEOUT);
        }
        self.cancellations.refuse();
        let is_new = self.run.core.stopping() < Some(level);
        self.handle(CoreInput::Stop(level));
        if is_new {
            // The user learns of it even while the journal cannot be written.
            self.emit(vec![EventKind::RunStopping { level }]).await;
        }
    }

    /// Ends the session when the budgets of model calls do not cover any of the remaining items.
    async fn stop_over_budget(&mut self) {
        let Some(exceeded) = self.run.core.exceeded_budget() else { return };
        let rest = self.planner.total().saturating_sub(self.run.core.settled() as u64);
        if rest == 0 {
            // An open run waits for items that may never come.
            return;
        }
        self.is_over_budget = true;
        let message = format!("{exceeded}; {rest} trials are skipped");
        self.emit(vec![EventKind::Warning { message }]).await;
        self.handle(CoreInput::Stop(StopLevel::Drain));
    }

    /// Gives the core the planned items that previous sessions touched.
    fn restore_plan(&mut self) -> Vec<NewItem> {
        if self.run.core.is_untouched() {
            return Vec::new();
        }
        let touched: Vec<_> =
            self.run.core.items().filter_map(|item| self.planner.find(&item)).collect();
        self.handle(CoreInput::Items(touched.clone()));
        self.forget_unplanned();
        touched
    }

    /// Asks the planner for as many items as there are permits, within the limit of a turn. Items that
    /// may be cancelled are not begun.
    fn feed_planned(&mut self) {
        self.plans_more = false;
        if self.cancellations.is_busy() {
            return;
        }
        let mut left = PLANNED_PER_TURN;
        while let wanted @ 1.. = self.run.core.wanted_items(self.planner.ready_ahead()) {
            if left == 0 {
                self.plans_more = true;
                return;
            }
            let items = self.planner.next(wanted.min(left));
            left = left.saturating_sub(items.len());
            if items.is_empty() {
                if self.planner.is_open() {
                    break;
                }
                self.handle(CoreInput::PlanComplete);
            } else {
                self.handle(CoreInput::Items(items));
            }
        }
    }

    fn on_reports(&mut self, batch: ReportBatch) {
        for reported in batch.reports {
            self.handle(CoreInput::Reported(Box::new(reported)));
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
        let made = std::mem::take(&mut self.pending_effects);
        if !made.is_empty() {
            let batch = self.run.writer.last();
            self.waiting.push_back((batch, made));
        }
        if self.submit_compaction()? || self.run.writer.submit() {
            self.in_flight_since = Some(Instant::now());
            self.in_flight_position = self.run.core.position();
        }
        self.carry_out().await
    }

    async fn on_durable(&mut self) -> Result<(), RunError> {
        let reached = self.in_flight_position.take();
        self.in_flight_since = None;
        self.durable_position = reached.or(self.durable_position);
        self.listener.notify_durable(self.run.run, reached, || self.durable_state()).await?;
        self.carry_out().await
    }

    async fn carry_out(&mut self) -> Result<(), RunError> {
        while let Some((batch, _)) = self.waiting.front()
            && *batch <= self.run.writer.committed()
        {
            // A process that was suspended may have a successor that does not know of these.
            self.run.fence.check_when_due().map_err(RunError::LockLost)?;
            let (_, effects) = self.waiting.pop_front().expect("there is a front");
            self.perform(effects).await?;
        }
        self.carry_out_decisions()
    }

    async fn emit(&self, kinds: Vec<EventKind>) {
        let at = Timestamp::now();
        let events = kinds.into_iter().map(|kind| RunEvent { at, kind }).collect();
        // A reporter that ended has returned its own error; the run continues.
        drop(self.events.send(events).await);
    }

    fn is_over(&self, workers: &WorkerLocation) -> bool {
        let idle = self.waiting.is_empty() && self.run.writer.is_idle();
        let quiet = match workers {
            // Without a budget for another execution, none runs.
            WorkerLocation::Local { .. } => self.quiesced || self.is_over_budget,
            WorkerLocation::Remote => {
                self.run.core.is_quiet()
                    || self.kill_deadline.is_some_and(|at| Instant::now() >= at)
            }
        };
        let stopped = self.run.core.stopping().is_some() && quiet;
        let is_busy = self.retries.is_busy() || self.cancellations.is_busy();
        idle && (stopped || self.run.core.is_complete() && !is_busy)
    }

    /// Ends a killed session whose catalog hangs. Its records take no effect, and the next session
    /// finds what it can of them.
    fn check_journal_of_kill(&self) -> Result<(), RunError> {
        let hangs = self.in_flight_since.is_some_and(|since| since.elapsed() >= KILL_TIMEOUT);
        let is_due = self.kill_deadline.is_some_and(|at| Instant::now() >= at);
        match is_due && hangs && self.run.writer.is_mirrored() {
            true => Err(close::abandoned()),
            false => Ok(()),
        }
    }

    fn next_due(&self) -> Instant {
        let core = self.run.core.next_due_ms().map(|ms| self.started + Duration::from_millis(ms));
        let due = core.map_or(self.manifest_due, |due| due.min(self.manifest_due));
        let due = self.retries.next_due().map_or(due, |at| due.min(at));
        let due = self.cancellations.next_due().map_or(due, |at| due.min(at));
        let limiter = self.limiter.as_ref().and_then(|limiter| limiter.next_due());
        let due = limiter.map_or(due, |at| due.min(at));
        let due = self.decisions_due().map_or(due, |at| due.min(at));
        let hangs = self.in_flight_since.filter(|_| self.run.writer.is_mirrored());
        let hangs = hangs.map(|since| since + KILL_TIMEOUT);
        let kill = self.kill_deadline.map(|at| hangs.map_or(at, |hangs| at.max(hangs)));
        kill.filter(|at| *at > Instant::now()).map_or(due, |at| due.min(at))
    }
}
