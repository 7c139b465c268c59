//! The state of one execution from its delivery to its acknowledgement.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rollout_base::traces::Tracer;
use rollout_protocol::dependency::Dependency;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId, WorkerId};
use rollout_protocol::phase::Phase;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::delivery::{Delivery, MessageToken};
use rollout_protocol::wire::heartbeat::ActiveExecution;
use rollout_protocol::wire::offer::Offer;
use rollout_protocol::wire::report::{Report, ReportBody};
use rollout_protocol::wire::stage::{StageProgress, StageStep};
use tokio::sync::watch;
use tokio::time::Instant;

use super::EXECUTION_SPAN;
use super::event_log::EventLogNumbers;
use super::execution_slot::ExecutionSlot;
use super::execution_trace::ExecutionTrace;
use crate::executor::{ControlMailbox, PhaseSink};

/// The key of a try. A worker holds at most one execution per key.
pub(super) type TryKey = (RunId, ItemId, TryId);

#[derive(Debug)]
pub(super) struct Execution {
    pub(super) offer: Offer,
    pub(super) exec: ExecId,
    pub(super) began: Instant,
    /// The token of the latest delivery.
    token: Mutex<MessageToken>,
    phase: AtomicU8,
    /// Whether the phase changed since the last heartbeat.
    progressed: AtomicBool,
    /// Whether it runs: no longer a pending claim, and not ended yet.
    running: AtomicBool,
    /// Whether it was ever started.
    begun: AtomicBool,
    /// Whether its start was reported.
    announced: AtomicBool,
    /// The stage of its eval.
    stage: Mutex<Option<StageProgress>>,
    /// The service that it waits for.
    parked: Mutex<Option<Dependency>>,
    /// Whether it waited for a service when it was returned.
    stopped_parked: AtomicBool,
    /// Its slot.
    pub(super) slot: ExecutionSlot,
    stop: watch::Sender<Option<StopLevel>>,
    /// Controls for its agent.
    pub(super) controls: Arc<ControlMailbox>,
    /// When the next request for its output is answered.
    pub(super) next_output_answer: tokio::sync::Mutex<Option<Instant>>,
    /// Numbers of the events of its agent.
    pub(super) event_logs: EventLogNumbers,
    /// Its spans.
    pub(super) trace: ExecutionTrace,
}

impl Execution {
    /// A new execution of a delivery, with its own id.
    pub(super) fn new(delivery: &Delivery, stop: Option<StopLevel>, tracer: &Tracer) -> Self {
        let exec = ExecId::from_bytes(rand::random());
        Self {
            offer: delivery.offer,
            exec,
            began: Instant::now(),
            token: Mutex::new(delivery.token),
            phase: AtomicU8::new(Phase::Queued as u8),
            progressed: AtomicBool::new(false),
            running: AtomicBool::new(false),
            begun: AtomicBool::new(false),
            announced: AtomicBool::new(false),
            stage: Mutex::default(),
            parked: Mutex::default(),
            stopped_parked: AtomicBool::new(false),
            slot: ExecutionSlot::default(),
            stop: watch::Sender::new(stop),
            controls: Arc::default(),
            next_output_answer: tokio::sync::Mutex::default(),
            event_logs: EventLogNumbers::default(),
            trace: ExecutionTrace::begin(tracer, delivery, exec),
        }
    }

    pub(super) fn key(&self) -> TryKey {
        (self.offer.run, self.offer.item, self.offer.try_id)
    }

    /// The span of its log messages.
    pub(super) fn span(&self) -> tracing::Span {
        let Offer { run, item, try_id, .. } = &self.offer;
        tracing::info_span!(
            target: EXECUTION_SPAN, "execution", %run, %item, "try" = %try_id, exec = %self.exec
        )
    }

    pub(super) fn token(&self) -> MessageToken {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the token after a redelivery of the same try.
    pub(super) fn replace_token(&self, token: MessageToken) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
    }

    pub(super) fn phase(&self) -> Phase {
        Phase::ALL[usize::from(self.phase.load(Ordering::Relaxed))]
    }

    /// Whether the phase changed since the last call.
    pub(super) fn take_progress(&self) -> bool {
        self.progressed.swap(false, Ordering::Relaxed)
    }

    /// Sets the stage of its eval.
    pub(super) fn set_stage(&self, progress: StageProgress) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
        self.progressed.store(true, Ordering::Relaxed);
    }

    /// Whether it holds the permit of a stage. It keeps one for a command whose end is not known
    /// until it has started over and reached a stage again.
    pub(super) fn holds_permit(&self) -> bool {
        let progress = *self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        progress.is_some_and(|StageProgress { stage, step, .. }| {
            step == StageStep::Running && self.offer.rate_limits.permits.requires(stage)
        })
    }

    pub(super) fn mark_running(&self) {
        self.begun.store(true, Ordering::Relaxed);
        self.running.store(true, Ordering::Relaxed);
    }

    /// Whether it runs or ran, as opposed to a claim that waits for its answer.
    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    pub(super) fn mark_ended(&self) {
        self.running.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    /// Marks its start as reported; true for the first call only.
    pub(super) fn mark_announced(&self) -> bool {
        !self.announced.swap(true, Ordering::Relaxed)
    }

    pub(super) fn is_announced(&self) -> bool {
        self.announced.load(Ordering::Relaxed)
    }

    /// Raises the stop level; never lowers it.
    pub(super) fn stop(&self, level: StopLevel) {
        // A kill is wanted by a user: it says nothing of this host.
        let is_returned = level == StopLevel::Drain && self.is_parked();
        self.stopped_parked.fetch_or(is_returned, Ordering::Relaxed);
        self.stop.send_if_modified(|present| {
            let raised = present.is_none_or(|present| present < level);
            if raised {
                *present = Some(level);
            }
            raised
        });
    }

    /// Whether it was returned from its wait for a service.
    pub(super) fn was_stopped_parked(&self) -> bool {
        self.stopped_parked.load(Ordering::Relaxed)
    }

    fn is_parked(&self) -> bool {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether it must stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.borrow().is_some()
    }

    pub(super) fn subscribe_stop(&self) -> watch::Receiver<Option<StopLevel>> {
        self.stop.subscribe()
    }

    /// Waits until it must stop.
    pub(super) async fn wait_for_stop(&self) {
        let mut stops = self.subscribe_stop();
        let level = stops.wait_for(Option::is_some).await;
        drop(level.expect("the execution holds the sender"));
    }

    pub(super) fn new_report(&self, worker: &WorkerId, body: ReportBody) -> Report {
        Report {
            run: self.offer.run,
            item: self.offer.item,
            try_id: self.offer.try_id,
            exec: self.exec,
            spec: self.offer.spec,
            worker: worker.clone(),
            body,
        }
    }

    pub(super) fn heartbeat_entry(&self) -> ActiveExecution {
        ActiveExecution {
            run: self.offer.run,
            item: self.offer.item,
            try_id: self.offer.try_id,
            exec: self.exec,
            phase: self.phase(),
            claiming: !self.has_begun(),
            stage: *self.stage.lock().unwrap_or_else(PoisonError::into_inner),
            parked: *self.parked.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl PhaseSink for Execution {
    fn entered(&self, phase: Phase) {
        tracing::debug!("execution {} enters {phase}", self.exec);
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.progressed.store(true, Ordering::Relaxed);
        self.trace.enter(phase.as_str());
    }

    fn parked(&self, on: Option<Dependency>) {
        self.trace.park(on);
        *self.parked.lock().unwrap_or_else(PoisonError::into_inner) = on;
        self.progressed.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::digest::Digest;
    use rollout_protocol::spec::eval::EvalStage;
    use rollout_protocol::wire::offer::{OfferedWork, RunRateLimits, SizeClass};
    use rollout_protocol::wire::position::Incarnation;
    use rollout_protocol::wire::stage::PermitKinds;

    use super::*;

    #[test]
    fn permit_is_held_while_command_of_limited_stage_runs() {
        let permits = PermitKinds { llm: true, sweep: false };
        let offer = Offer {
            run: RunId::from_bytes([1; 16]),
            item: ItemId::for_trial("agent", "dataset", "task", 1),
            try_id: TryId::first(1),
            spec: Digest::sha256(b"spec"),
            class: SizeClass(1),
            work: OfferedWork::Eval,
            rate_limits: RunRateLimits { permits, ..RunRateLimits::default() },
            model_calls: None,
        };
        let token = MessageToken { incarnation: Incarnation(1), sequence: 1 };
        let delivery = Delivery { offer, token, delivered: 1 };
        let execution = Execution::new(&delivery, None, &Tracer::default());
        assert!(!execution.holds_permit());
        for (restarts, stage, step, holds_permit) in [
            (0, EvalStage::Implement, StageStep::Waiting, false),
            (0, EvalStage::Implement, StageStep::Running, true),
            (0, EvalStage::Implement, StageStep::Over, false),
            (0, EvalStage::Review, StageStep::Running, true),
            (1, EvalStage::Implement, StageStep::Waiting, false),
            (1, EvalStage::Implement, StageStep::Running, true),
            (1, EvalStage::Sweep, StageStep::Running, false),
        ] {
            let progress = StageProgress { restarts, stage, step };
            execution.set_stage(progress);
            assert_eq!(execution.holds_permit(), holds_permit, "{progress:?}");
        }
    }

    #[test]
    fn phase_index_equals_discriminant() {
        for (index, phase) in Phase::ALL.iter().enumerate() {
            assert_eq!(*phase as usize, index);
        }
    }
}
