//! Waits of an execution for a service that does not answer.
//!
//! A missing answer is no result: the execution is parked until the service answers, and then
//! starts over under the same identity. This counts neither as a retry nor as a worker death: the
//! coordinator sees one execution that takes longer. A negative answer ends the execution at once.

use std::time::Duration;

use rollout_base::dependency::Dependency;
use rollout_protocol::dependency::Dependency as Kind;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use tokio::time::Instant;

use super::context::ExecutionContext;
use super::files::TaskFiles;
use super::stop::wait_for_stop;

/// Shortest and longest pause between attempts when only an attempt can probe the service.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(500);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(15);

/// Time between two probes of a service.
const POLL_PAUSE: Duration = Duration::from_secs(1);

/// How long a stopped execution waits for the engine of its environment. The next reaper on this
/// host removes what is left then.
const STOPPED_WAIT_LIMIT: Duration = Duration::from_secs(10);

/// How often one execution may start over after its environment was created: more often than any
/// run has outages, and a bound for a task that brings down the engine itself.
const MAX_LOST_ENVIRONMENTS: u32 = 20;

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// The service may be tried again.
    Available,
    /// It did not answer for as long as the job allows.
    TooLong,
    /// The execution was stopped.
    Stopped,
}

/// The waits of one execution.
#[derive(Debug)]
pub(crate) struct Parking<'a> {
    ctx: &'a ExecutionContext,
    /// Task files; their store may be down.
    files: &'a TaskFiles,
    engine: Option<&'a Dependency>,
    /// Outages of the engine when the current attempt began.
    outages: u64,
    /// Start of the waits since the last progress.
    waiting_since: Option<Instant>,
    waits: u32,
    /// Attempts whose environment was lost.
    lost_environments: u32,
}

impl<'a> Parking<'a> {
    pub(crate) fn new(
        ctx: &'a ExecutionContext,
        files: &'a TaskFiles,
        engine: Option<&'a Dependency>,
    ) -> Self {
        Self { ctx, files, engine, outages: 0, waiting_since: None, waits: 0, lost_environments: 0 }
    }

    /// Waits until an attempt may begin: none succeeds while the engine is known to be down.
    pub(crate) async fn begin_attempt(&mut self) -> WaitOutcome {
        let mut waited = WaitOutcome::Available;
        if self.is_down() && !self.ctx.max_park.is_zero() {
            waited = self.wait(Kind::ContainerEngine, false).await;
        }
        self.outages = self.engine.map_or(0, Dependency::outages);
        waited
    }

    /// Resets the wait: the attempt has an environment.
    pub(crate) fn reset_wait(&mut self) {
        (self.waiting_since, self.waits) = (None, 0);
    }

    /// The service whose outage failed an attempt, if one did. `had_environment`: whether the
    /// attempt created its environment.
    pub(crate) async fn unavailable_service(
        &mut self,
        error: &TrialError,
        had_environment: bool,
    ) -> Option<Kind> {
        if self.ctx.max_park.is_zero()
            || self.lost_environments >= MAX_LOST_ENVIRONMENTS
            || !may_be_outage(error)
        {
            return None;
        }
        let kind = if error.code == ErrorCode::STORE_FAILED {
            Kind::BlobStore
        } else if self.was_engine_down().await {
            Kind::ContainerEngine
        } else if error.code != ErrorCode::UNREACHABLE {
            return None;
        } else if matches!(
            error.kind,
            ErrorType::EnvironmentImagePullFailed
                | ErrorType::EnvironmentBuildFailed
                // The engine answers: the image of a sidecar service could not be pulled.
                | ErrorType::EnvironmentStartFailed
        ) {
            Kind::ImageRegistry
        } else {
            Kind::ContainerEngine
        };
        if had_environment {
            self.reset_wait();
            self.lost_environments += 1;
        }
        Some(kind)
    }

    /// Waits until the service answers or, where only an attempt can probe it, until one is due.
    /// Without an environment, the execution gives up its slot meanwhile, unless others wait for
    /// something that it holds.
    pub(crate) async fn wait(&mut self, on: Kind, has_environment: bool) -> WaitOutcome {
        let ctx = self.ctx;
        let end = *self.waiting_since.get_or_insert_with(Instant::now) + ctx.max_park;
        if Instant::now() >= end {
            return WaitOutcome::TooLong;
        }
        ctx.phases.parked(Some(on));
        let gives_slot_up = !has_environment && !ctx.slot.must_be_kept();
        if gives_slot_up {
            ctx.slot.release();
        }
        let stop = wait_for_stop(ctx.stop.clone());
        let waited = tokio::select! {
            biased;
            () = stop => WaitOutcome::Stopped,
            waited = self.wait_for_answer(on, end) => waited,
        };
        if gives_slot_up && waited == WaitOutcome::Available {
            tokio::select! {
                biased;
                () = wait_for_stop(ctx.stop.clone()) => return WaitOutcome::Stopped,
                () = ctx.slot.reacquire() => {}
            }
        }
        if on == Kind::ContainerEngine {
            ctx.phases.parked(None);
        }
        waited
    }

    /// Waits for the engine of an environment, also after a stop, but then only briefly.
    pub(crate) async fn wait_for_engine(&mut self) {
        if !self.is_down() {
            return;
        }
        let max_wait = self.ctx.max_park;
        self.ctx.phases.parked(Some(Kind::ContainerEngine));
        let answered = async {
            let Some(engine) = self.engine else { return };
            while !engine.check().await {
                tokio::time::sleep(POLL_PAUSE).await;
            }
        };
        let timed_out = async {
            tokio::select! {
                () = tokio::time::sleep(max_wait) => {}
                () = wait_for_stop(self.ctx.stop.clone()) => {
                    tokio::time::sleep(STOPPED_WAIT_LIMIT.min(max_wait)).await;
                }
            }
        };
        tokio::select! {
            () = answered => {}
            () = timed_out => {}
        }
        self.ctx.phases.parked(None);
    }

    /// Whether the engine is known to be down.
    pub(crate) fn is_down(&self) -> bool {
        self.engine.is_some_and(Dependency::is_down)
    }

    /// Whether the engine is down, or was during the current attempt.
    pub(crate) async fn was_engine_down(&self) -> bool {
        let Some(engine) = self.engine else { return false };
        engine.outages() != self.outages || !engine.check().await
    }

    /// The error of an execution that waited too long.
    pub(crate) fn timeout_error(&self, on: Kind, mut error: TrialError) -> TrialError {
        let waited = self.ctx.max_park;
        let message = format!("{}; {on} gave no answer for {waited:?}", error.message);
        error.code = ErrorCode::UNREACHABLE;
        error.class = ErrorClass::Infrastructure;
        error.retry = RetryClass::Transient;
        TrialError::new(error.kind, error.code, error.class, error.retry, message)
            .in_phase(error.phase)
    }

    async fn wait_for_answer(&mut self, on: Kind, end: Instant) -> WaitOutcome {
        let grown = MIN_RETRY_PAUSE.saturating_mul(1 << self.waits.min(10)).min(MAX_RETRY_PAUSE);
        self.waits += 1;
        let pause = MIN_RETRY_PAUSE / 2 + grown.mul_f64(rand::random());
        tokio::time::sleep_until(end.min(Instant::now() + pause)).await;
        loop {
            if self.is_available(on).await {
                return WaitOutcome::Available;
            }
            if Instant::now() >= end {
                return WaitOutcome::TooLong;
            }
            tokio::time::sleep(POLL_PAUSE).await;
        }
    }

    async fn is_available(&self, on: Kind) -> bool {
        match (on, self.engine) {
            (Kind::ContainerEngine, Some(engine)) => engine.check().await,
            (Kind::BlobStore, _) => self.files.is_store_available().await,
            // The next attempt probes it. Attempts do not wait for model servers: their calls do.
            (Kind::ImageRegistry | Kind::ContainerEngine | Kind::ModelServer, _) => true,
        }
    }
}

/// Whether an outage may be the cause of an error.
fn may_be_outage(error: &TrialError) -> bool {
    const OUTAGE_CODES: [ErrorCode; 7] = [
        ErrorCode::UNREACHABLE,
        ErrorCode::STORE_FAILED,
        ErrorCode::ENVIRONMENT_LOST,
        ErrorCode::PROVIDER_ERROR,
        ErrorCode::COLLECTION_FAILED,
        ErrorCode::PROCESSES_LEFT,
        ErrorCode::TIMED_OUT,
    ];
    // An environment that died with its engine starts no process.
    let ended = error.code == ErrorCode::EXEC_NOT_STARTED;
    ended || (error.is_retryable() && OUTAGE_CODES.contains(&error.code))
}
