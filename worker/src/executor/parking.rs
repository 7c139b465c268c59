//! Waiting for a service that gives no answer.
//!
//! No answer is no verdict: an execution that met one is parked until the service answers, and then
//! begins anew under the same identity. It counts neither as a retry nor as a death, since its
//! coordinator sees one execution that takes longer. An answer that says no ends it at once.

use std::time::Duration;

use rollout_protocol::dependency::Dependency as Kind;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use tokio::time::Instant;

use super::context::ExecutionContext;
use super::files::TaskFiles;
use super::stop::wait_for_stop;
use crate::dependency::Dependency;

/// Shortest and longest time between two attempts where attempts are the only questions.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(500);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(15);

/// Time between two questions to a service that can be asked.
const POLL_PAUSE: Duration = Duration::from_secs(1);

/// How long an execution that is stopped waits for the engine that has its environment: what is
/// left then belongs to the next reaper of this host.
const STOPPED_WAIT_LIMIT: Duration = Duration::from_secs(10);

/// Times that one execution begins anew after its environment was there: more outages than any run
/// meets, and an end for a task that takes the engine down itself.
const MAX_LOST_ENVIRONMENTS: u32 = 20;

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitOutcome {
    /// The service may be asked again.
    Back,
    /// It gave no answer for as long as the job allows.
    TooLong,
    /// The execution was stopped.
    Stopped,
}

/// The waits of one execution.
#[derive(Debug)]
pub(crate) struct Parking<'a> {
    ctx: &'a ExecutionContext,
    /// Files from the store, which may be away.
    files: &'a TaskFiles,
    engine: Option<&'a Dependency>,
    /// Outages of the engine when the present attempt began.
    outages: u64,
    /// Since when nothing was achieved.
    since: Option<Instant>,
    waits: u32,
    /// Attempts whose environment was lost.
    lost: u32,
}

impl<'a> Parking<'a> {
    pub(crate) fn new(
        ctx: &'a ExecutionContext,
        files: &'a TaskFiles,
        engine: Option<&'a Dependency>,
    ) -> Self {
        Self { ctx, files, engine, outages: 0, since: None, waits: 0, lost: 0 }
    }

    /// Waits until an attempt may begin: while the engine is known to be away, none would succeed.
    pub(crate) async fn begin_attempt(&mut self) -> WaitOutcome {
        let mut waited = WaitOutcome::Back;
        if self.is_down() && !self.ctx.max_park.is_zero() {
            waited = self.wait(Kind::ContainerEngine, false).await;
        }
        self.outages = self.engine.map_or(0, Dependency::outages);
        waited
    }

    /// The attempt has an environment.
    pub(crate) fn reset_wait(&mut self) {
        (self.since, self.waits) = (None, 0);
    }

    /// The service by whose silence an attempt failed, if it did; `had_environment` tells whether
    /// it had come that far.
    pub(crate) async fn unavailable_service(
        &mut self,
        error: &TrialError,
        had_environment: bool,
    ) -> Option<Kind> {
        if self.ctx.max_park.is_zero()
            || self.lost >= MAX_LOST_ENVIRONMENTS
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
                // The engine answers: it is the image of a service that could not be pulled.
                | ErrorType::EnvironmentStartFailed
        ) {
            Kind::ImageRegistry
        } else {
            Kind::ContainerEngine
        };
        if had_environment {
            self.reset_wait();
            self.lost += 1;
        }
        Some(kind)
    }

    /// Waits until the service answers or, where only an attempt can tell, until one is due. Without
    /// an environment the execution leaves its slot meanwhile.
    pub(crate) async fn wait(&mut self, on: Kind, has_environment: bool) -> WaitOutcome {
        let ctx = self.ctx;
        let end = *self.since.get_or_insert_with(Instant::now) + ctx.max_park;
        if Instant::now() >= end {
            return WaitOutcome::TooLong;
        }
        ctx.phases.parked(Some(on));
        if !has_environment {
            ctx.slot.release();
        }
        let stop = wait_for_stop(ctx.stop.clone());
        let waited = tokio::select! {
            biased;
            () = stop => WaitOutcome::Stopped,
            waited = self.wait_for_answer(on, end) => waited,
        };
        if !has_environment && waited == WaitOutcome::Back {
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

    /// Waits for the engine that has an environment, also when the execution was stopped, but not
    /// for long then.
    pub(crate) async fn wait_for_engine(&mut self) {
        if !self.is_down() {
            return;
        }
        let patience = self.ctx.max_park;
        self.ctx.phases.parked(Some(Kind::ContainerEngine));
        let back = async {
            let Some(engine) = self.engine else { return };
            while !engine.check().await {
                tokio::time::sleep(POLL_PAUSE).await;
            }
        };
        let given_up = async {
            tokio::select! {
                () = tokio::time::sleep(patience) => {}
                () = wait_for_stop(self.ctx.stop.clone()) => {
                    tokio::time::sleep(STOPPED_WAIT_LIMIT.min(patience)).await;
                }
            }
        };
        tokio::select! {
            () = back => {}
            () = given_up => {}
        }
        self.ctx.phases.parked(None);
    }

    /// Whether the engine gives no answer, as far as is known.
    pub(crate) fn is_down(&self) -> bool {
        self.engine.is_some_and(Dependency::is_down)
    }

    /// Whether the engine is away or was in the present attempt.
    pub(crate) async fn was_engine_down(&self) -> bool {
        let Some(engine) = self.engine else { return false };
        engine.outages() != self.outages || !engine.check().await
    }

    /// What an execution fails with that waited too long.
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
                return WaitOutcome::Back;
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
            // The next attempt asks.
            (Kind::ImageRegistry | Kind::ContainerEngine, _) => true,
        }
    }
}

/// Whether an error may come from a service that gave no answer.
fn may_be_outage(error: &TrialError) -> bool {
    const OURS: [ErrorCode; 7] = [
        ErrorCode::UNREACHABLE,
        ErrorCode::STORE_FAILED,
        ErrorCode::ENVIRONMENT_LOST,
        ErrorCode::PROVIDER_ERROR,
        ErrorCode::COLLECTION_FAILED,
        ErrorCode::PROCESSES_LEFT,
        ErrorCode::TIMED_OUT,
    ];
    // An environment that ended with its engine starts nothing any more.
    let ended = error.code == ErrorCode::EXEC_NOT_STARTED;
    ended || (error.is_retryable() && OURS.contains(&error.code))
}
