//! The model calls of a trial's agent: its gateway, its clock, and the records of its calls.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::dependency::Dependency as Kind;
use rollout_protocol::error::{ErrorClass, ErrorCode, RetryClass, TrialError};
use rollout_protocol::record::GatewaySummary;
use tokio::time::Instant;

use super::run::TrialRun;
use super::variables::ScriptEnv;
use crate::dependency::Dependency;
use crate::executor::errors::SetupError;
use crate::executor::{ExecutionContext, PhaseSink, RecordFile};
use crate::gateway::{TryCalls, TryGateway, TryRequest, Upstream};

/// Directory of the records, below the trial's directory.
const DIRECTORY: &str = "gateway";

/// Longest time between two looks at a clock: an outage is shown that late.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest time between two looks at a clock that stands still.
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The model calls of an attempt.
#[derive(Debug, Default)]
pub(super) struct ModelCalls {
    gateway: Option<Arc<dyn TryGateway>>,
    env: ScriptEnv,
    closed: Option<TryCalls>,
}

/// The part of a record that model calls have.
#[derive(Debug, Default)]
pub(super) struct FinishedCalls {
    pub(super) summary: Option<Box<GatewaySummary>>,
    pub(super) files: Vec<RecordFile>,
}

impl FinishedCalls {
    /// Cost of the calls.
    pub(super) fn cost(&self) -> f64 {
        self.summary.as_ref().map_or(0.0, |summary| summary.cost)
    }
}

/// A clock that stands still while a model server does not answer.
#[derive(Debug)]
pub(super) struct AgentClock {
    gateway: Arc<dyn TryGateway>,
    phases: Arc<dyn PhaseSink>,
    /// Longest time for which it stands still.
    max_stop: Duration,
}

impl TrialRun<'_> {
    /// Opens the gateway for the agent, if the job has one.
    pub(super) async fn open_gateway(&mut self) -> Result<(), SetupError> {
        let ctx = self.ctx;
        let Some(spec) = &ctx.settings.gateway else { return Ok(()) };
        if !ctx.agent.kind.runs_own_scripts() {
            return Ok(());
        }
        let gateway = self.services.gateway.as_ref().ok_or(SetupError::NoGateway)?;
        let upstream = |spec: &rollout_protocol::spec::gateway::UpstreamSpec| {
            let key = spec.key.as_ref().map(|key| self.services.variables.value(key)).transpose();
            Ok(Upstream { spec: spec.clone(), key: key.map_err(SetupError::Unset)? })
        };
        let upstreams = spec.upstreams.iter().map(upstream).collect::<Result<_, SetupError>>()?;
        let route = self.attempt.running_environment().listener_route().await;
        let route = route.map_err(SetupError::GatewayRoute)?;
        let request = TryRequest {
            upstreams,
            directory: self.outputs.scratch().join(DIRECTORY),
            redactor: self.attempt.redactor.clone(),
        };
        let opened = gateway.open(request).await.map_err(SetupError::Gateway)?;
        self.models.env = opened.serve(route).await.map_err(SetupError::Gateway)?;
        self.models.gateway = Some(opened);
        Ok(())
    }
}

impl ModelCalls {
    /// Variables of the agent's scripts.
    pub(super) fn env(&self) -> ScriptEnv {
        self.env.clone()
    }

    /// The clock of the agent's scripts.
    pub(super) fn clock(&self, ctx: &ExecutionContext) -> Option<AgentClock> {
        Some(AgentClock {
            gateway: Arc::clone(self.gateway.as_ref()?),
            phases: Arc::clone(&ctx.phases),
            max_stop: ctx.max_park,
        })
    }

    /// The error of an agent that failed after its last call got no answer: no answer is no verdict.
    pub(super) fn blame_server(&self, error: TrialError) -> TrialError {
        let unanswered = self.gateway.as_ref().is_some_and(|gateway| gateway.lost_last_call());
        if !unanswered || error.class != ErrorClass::Agent {
            return error;
        }
        let message = format!("a model server does not answer: {}", error.message);
        let (class, retry) = (ErrorClass::Infrastructure, RetryClass::Transient);
        TrialError::new(error.kind, ErrorCode::MODEL_UNREACHABLE, class, retry, message)
            .in_phase(error.phase)
    }

    /// Ends all calls.
    pub(super) async fn close(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            self.closed = Some(gateway.close().await);
        }
    }

    /// The calls for the record.
    pub(super) fn finish(&mut self) -> FinishedCalls {
        let Some(calls) = self.closed.take() else { return FinishedCalls::default() };
        let file = |path: std::path::PathBuf| {
            let name = path.file_name()?.to_str()?.to_owned();
            let bytes = fs::metadata(&path).ok()?.len();
            Some(RecordFile::text(path, format!("{DIRECTORY}/{name}"), bytes, false))
        };
        FinishedCalls {
            summary: Some(Box::new(calls.summary)),
            files: calls.files.into_iter().filter_map(file).collect(),
        }
    }
}

impl AgentClock {
    /// Returns when the clock has reached the limit. Outages of the environment's engine do not
    /// count either.
    pub(super) async fn wait_for_limit(&self, limit: Duration, engine: Option<&Dependency>) {
        let downtime = || engine.map(Dependency::downtime).unwrap_or_default();
        let (began, models, engine_before) =
            (Instant::now(), self.gateway.stopped_time(), downtime());
        let mut shown = false;
        loop {
            let stopped = self.gateway.is_stopped();
            if stopped != shown {
                self.phases.parked(stopped.then_some(Kind::ModelServer));
                shown = stopped;
            }
            let stood = self.gateway.stopped_time().saturating_sub(models).min(self.max_stop);
            let stood = stood + downtime().saturating_sub(engine_before);
            let left = limit.saturating_sub(began.elapsed().saturating_sub(stood));
            if left.is_zero() {
                return;
            }
            let look = left.min(LOOK_INTERVAL);
            let look = if stopped { look.max(MIN_LOOK_INTERVAL) } else { look };
            tokio::time::sleep(look).await;
        }
    }
}

impl Drop for AgentClock {
    fn drop(&mut self) {
        if self.gateway.is_stopped() {
            self.phases.parked(None);
        }
    }
}
