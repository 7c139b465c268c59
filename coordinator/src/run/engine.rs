//! The loop: gather inputs, let the core decide, make the records durable, carry out the effects.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::Timestamp;
use rollout_protocol::event::{EventKind, RunEvent};
use rollout_protocol::wire::claim::Answer;
use rollout_protocol::wire::control::StopLevel;
use rollout_worker::port::{Dispatch, PendingClaim, Position, Reported};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::manifest::{JournalHead, Manifest, RunState};
use super::open::OpenRun;
use super::{Planner, RunError};
use crate::core::{Closed, Core, Effect, Input, Now, Output, Record};
use crate::journal::Writer;

/// How often the manifest is replaced while the run goes on: what it says is only a hint for people
/// and for the recognition of a damaged journal.
const MANIFEST_EVERY: Duration = Duration::from_secs(5);

/// Where the engine's inputs come from.
#[derive(Debug)]
pub struct Sources {
    /// Batches of reports, in order.
    pub reports: mpsc::Receiver<Vec<Reported>>,
    /// Claims; each came after the reports before it were handed over.
    pub claims: mpsc::Receiver<PendingClaim>,
    /// Stops asked for by the user.
    pub stops: mpsc::Receiver<StopLevel>,
    /// Hints for the event stream.
    pub hints: mpsc::Receiver<EventKind>,
    /// Says once that every worker has ended its executions and that their reports were handed over.
    pub quiesced: oneshot::Receiver<()>,
    /// Says once that what former sittings executed is reported, and that the reports were handed
    /// over: the rest is lost. Nothing is offered before.
    pub recovered: oneshot::Receiver<()>,
}

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
    pub(super) run: OpenRun,
    pub(super) planner: P,
    pub(super) dispatch: Arc<dyn Dispatch>,
    pub(super) events: mpsc::Sender<Vec<RunEvent>>,
    pub(super) claims: HashMap<u64, oneshot::Sender<Answer>>,
    /// Effects that wait for the batch of records with this number.
    waiting: VecDeque<(u64, Vec<Effect>)>,
    made: Vec<Effect>,
    started: Instant,
    next_claim: u64,
    /// Place of the last report in the batch that is on its way.
    on_its_way: Option<Position>,
    manifest_due: Instant,
    quiesced: bool,
    recovered: bool,
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
        dispatch: Arc<dyn Dispatch>,
        events: mpsc::Sender<Vec<RunEvent>>,
    ) -> Self {
        let now = Instant::now();
        Self {
            run,
            planner,
            dispatch,
            events,
            claims: HashMap::new(),
            waiting: VecDeque::new(),
            made: Vec::new(),
            started: now,
            next_claim: 0,
            on_its_way: None,
            manifest_due: now,
            quiesced: false,
            recovered: false,
        }
    }

    /// The core's state.
    pub fn core(&self) -> &Core {
        &self.run.core
    }

    /// Gives the core one input.
    pub fn handle(&mut self, input: Input) {
        let now = Now {
            monotonic_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            wall: Timestamp::now(),
            random: rand::random(),
        };
        let mut out = Recorder { writer: &mut self.run.writer, effects: &mut self.made };
        self.run.core.handle(now, input, &mut out);
    }

    /// Runs until everything is settled, or until a stop has come to its end.
    ///
    /// # Errors
    /// [`RunError`] when the sitting cannot go on.
    pub async fn run(mut self, mut sources: Sources) -> Result<Ended, RunError> {
        self.adopt_plan();
        self.write_manifest(RunState::Running)?;
        loop {
            self.feed();
            self.flush().await?;
            if self.is_over() {
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
            Some(claim) = sources.claims.recv() => {
                self.drain_reports(sources);
                self.on_claim(claim);
            }
            Some(level) = sources.stops.recv() => self.handle(Input::Stop(level)),
            Some(hint) = sources.hints.recv() => self.emit(vec![hint]).await,
            _ = &mut sources.recovered, if !self.recovered => {
                self.recovered = true;
                self.drain_reports(sources);
                self.handle(Input::FormerExecutorsDead);
            }
            _ = &mut sources.quiesced, if !self.quiesced => {
                self.quiesced = true;
                self.drain_reports(sources);
                while let Ok(level) = sources.stops.try_recv() {
                    self.handle(Input::Stop(level));
                }
                if self.run.core.stopping().is_none() && !self.run.core.is_complete() {
                    return Err(RunError::PartEnded("the worker"));
                }
            }
            () = tokio::time::sleep_until(due) => {
                self.handle(Input::Tick);
                self.refresh_manifest();
            }
        }
        Ok(())
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
                self.handle(Input::Exhausted);
            } else {
                self.handle(Input::Items(items));
            }
        }
    }

    fn on_reports(&mut self, reports: Vec<Reported>) {
        for reported in reports {
            self.handle(Input::Reported(Box::new(reported)));
        }
    }

    fn drain_reports(&mut self, sources: &mut Sources) {
        while let Ok(reports) = sources.reports.try_recv() {
            self.on_reports(reports);
        }
    }

    fn on_claim(&mut self, PendingClaim { claim, reply }: PendingClaim) {
        self.next_claim += 1;
        self.claims.insert(self.next_claim, reply);
        self.handle(Input::Claim { id: self.next_claim, claim });
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
        if let Some(position) = self.on_its_way.take() {
            self.dispatch.journalled(self.run.run, position).await?;
        }
        self.carry_out().await
    }

    async fn carry_out(&mut self) -> Result<(), RunError> {
        while let Some((batch, _)) = self.waiting.front()
            && *batch <= self.run.writer.committed()
        {
            let (_, effects) = self.waiting.pop_front().expect("there is a front");
            self.perform(effects).await?;
        }
        Ok(())
    }

    pub(super) async fn emit(&self, kinds: Vec<EventKind>) {
        let at = Timestamp::now();
        let events = kinds.into_iter().map(|kind| RunEvent { at, kind }).collect();
        // A reporter that is gone has told its own error; the run itself goes on.
        drop(self.events.send(events).await);
    }

    fn is_over(&self) -> bool {
        let idle = self.waiting.is_empty() && self.run.writer.is_idle();
        let stopped = self.run.core.stopping().is_some() && self.quiesced;
        idle && (stopped || self.run.core.is_complete())
    }

    fn next_due(&self) -> Instant {
        let core = self.run.core.next_due_ms().map(|ms| self.started + Duration::from_millis(ms));
        core.map_or(self.manifest_due, |due| due.min(self.manifest_due))
    }

    fn refresh_manifest(&mut self) {
        if Instant::now() >= self.manifest_due
            && let Err(error) = self.write_manifest(RunState::Running)
        {
            tracing::warn!("{error}; the journal holds the same, and it is tried again");
        }
    }

    fn write_manifest(&mut self, state: RunState) -> Result<(), RunError> {
        self.manifest_due = Instant::now() + MANIFEST_EVERY;
        let sealed = self.run.manifest.as_ref().map(|m| m.sealed.clone()).unwrap_or_default();
        self.manifest(state, sealed).write(&self.run.layout)
    }

    fn manifest(&self, state: RunState, sealed: Vec<super::manifest::SealedRecords>) -> Manifest {
        let run = &self.run;
        let head = run.writer.head();
        Manifest {
            format: rollout_protocol::version::RUN_FORMAT,
            run: run.run,
            job: run.job.clone(),
            created_at: run.created_at,
            updated_at: Timestamp::now(),
            plan: run.plan,
            epoch: run.epoch,
            state,
            total: self.planner.total(),
            settled: run.core.settled() as u64,
            in_flight: run.core.in_flight() as u64,
            journal: JournalHead { epoch: head.epoch, durable_bytes: head.bytes },
            sealed,
        }
    }

    /// Ends the sitting: closing record, records, manifest.
    async fn close(mut self) -> Result<Ended, RunError> {
        let owed = self.planner.total() - self.run.core.settled() as u64;
        let ended = Ended { cancelled: owed > 0, owed };
        let closed = Record::Closed(Closed { cancelled: ended.cancelled, owed });
        self.run.writer.record(Timestamp::now(), &closed);
        self.run.writer.submit();
        self.run.writer.durable().await?;
        self.emit(vec![EventKind::RunEnded { cancelled: ended.cancelled, owed }]).await;
        let state = if owed == 0 { RunState::Completed } else { RunState::Stopped };
        let mut manifest = self.manifest(state, Vec::new());
        let Self { run, .. } = self;
        let OpenRun { layout, records, writer, .. } = run;
        drop(writer);
        manifest.sealed = records.finish()?;
        manifest.write(&layout)?;
        Ok(ended)
    }
}
