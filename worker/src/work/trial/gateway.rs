//! The model calls of a trial's agent: its gateway, its clock, and the records of its calls.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::blob::MediaType;
use rollout_protocol::dependency::Dependency as Kind;
use rollout_protocol::error::{ErrorClass, ErrorCode, RetryClass, TrialError};
use rollout_protocol::record::GatewaySummary;
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::task::{NetworkPolicy, StepSpec, TaskSpec};
use tokio::time::Instant;

use super::TrialContext;
use super::run::TrialRun;
use super::variables::ScriptEnv;
use crate::dependency::Dependency;
use crate::environment::{Failure, FailureKind, ListenerRoute};
use crate::executor::errors::SetupError;
use crate::executor::{ExecutionContext, PhaseSink, RecordFile};
use crate::gateway::{CallFailure, TrajectoryAgent, TryCalls, TryGateway, TryRequest, Upstream};

/// Directory of the records, below the trial's directory.
const DIRECTORY: &str = "gateway";

/// Variable with the version of an agent of the catalogue.
const VERSION_VARIABLE: &str = "ROLLOUT_AGENT_VERSION";

/// Version of an agent whose version is not known.
const UNKNOWN_VERSION: &str = "unknown";

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

/// A clock that stands still while a model server does not answer, or a pause keeps calls back.
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
        if !ctx.agent.kind.calls_models() {
            return Ok(());
        }
        let gateway = self.services.gateway.as_ref().ok_or(SetupError::NoGateway)?;
        let upstream = |spec: &rollout_protocol::spec::gateway::UpstreamSpec| {
            let key = spec.key.as_ref().map(|key| self.services.variables.value(key)).transpose();
            Ok(Upstream { spec: spec.clone(), key: key.map_err(SetupError::Unset)? })
        };
        let upstreams = spec.upstreams.iter().map(upstream).collect::<Result<_, SetupError>>()?;
        let request = TryRequest {
            run: ctx.execution.labels.run,
            upstreams,
            only: ctx.agent.model.as_ref().map(|model| model.upstream.clone()),
            is_leased: ctx.execution.has_model_leases,
            directory: self.outputs.scratch().join(DIRECTORY),
            redactor: self.attempt.redactor.clone(),
            agent: trajectory_agent(ctx),
        };
        let opened = gateway.open(request).await.map_err(SetupError::Gateway)?;
        self.models.gateway = Some(opened);
        self.serve_gateway().await
    }

    /// Makes the gateway reachable from the agent's environment. Its network may be another one than
    /// in the step before, if it was restarted.
    pub(super) async fn serve_gateway(&mut self) -> Result<(), SetupError> {
        let Some(gateway) = self.models.gateway.clone() else { return Ok(()) };
        // The worker itself calls the models of the agent `shell`.
        if matches!(self.ctx.agent.kind, AgentKind::Shell(_)) {
            return Ok(());
        }
        let route = self.attempt.environment.expect_running().listener_route().await;
        let route = route.and_then(|route| check_route(route, &self.ctx.task));
        let route = route.map_err(SetupError::GatewayRoute)?;
        self.models.env = gateway.serve(route).await.map_err(SetupError::Gateway)?;
        Ok(())
    }
}

/// The agent as its trajectory names it. Agents with scripts of the job have no version that is known.
fn trajectory_agent(ctx: &TrialContext) -> TrajectoryAgent {
    let agent = &ctx.agent;
    let stated = agent.env.get(VERSION_VARIABLE).and_then(|text| text.expand(|_| None).ok());
    let own = || matches!(agent.kind, AgentKind::Shell(_)).then_some(env!("CARGO_PKG_VERSION"));
    let version = stated.or_else(|| own().map(str::to_owned));
    TrajectoryAgent {
        name: agent.name.clone(),
        version: version.unwrap_or_else(|| UNKNOWN_VERSION.to_owned()),
        model: agent.model.as_ref().map(|model| format!("{}/{}", model.provider, model.name)),
        session: ctx.execution.labels.exec.to_string(),
    }
}

/// Refuses a way over a network that an agent of the task does not have.
fn check_route(route: ListenerRoute, task: &TaskSpec) -> Result<ListenerRoute, Failure> {
    let network = |step: &StepSpec| {
        step.agent.network.clone().unwrap_or_else(|| task.environment.network.clone())
    };
    let needs_network = matches!(route, ListenerRoute::HostAddress(_));
    if needs_network && task.steps.iter().any(|step| network(step) != NetworkPolicy::Public) {
        let text = "the agent of a step has no network, and the worker cannot listen in its \
                    environment; run the worker as root on the engine's host";
        return Err(Failure::new(FailureKind::Unsupported, text));
    }
    Ok(route)
}

impl ModelCalls {
    /// The gateway, if it is open.
    pub(super) fn gateway(&self) -> Option<&Arc<dyn TryGateway>> {
        self.gateway.as_ref()
    }

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

    /// The error of an agent that failed after its last call: a call that failed for a reason that is
    /// none of the agent's is no verdict.
    pub(super) fn blame_server(&self, error: TrialError) -> TrialError {
        let failure = self.gateway.as_ref().and_then(|gateway| gateway.last_failure());
        let Some(failure) = failure.filter(|_| error.class == ErrorClass::Agent) else {
            return error;
        };
        let (code, retry, why) = match failure {
            CallFailure::Unanswered => {
                let why = "a model server does not answer";
                (ErrorCode::MODEL_UNREACHABLE, RetryClass::Transient, why)
            }
            CallFailure::Refused => {
                let why = "a model server refuses the key or the model";
                (ErrorCode::MODEL_REFUSED, RetryClass::Permanent, why)
            }
        };
        let message = format!("{why}: {}", error.message);
        TrialError::new(error.kind, code, ErrorClass::Infrastructure, retry, message)
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
            let extension = path.extension().and_then(|extension| extension.to_str());
            let extension = extension.map(str::to_owned);
            let file = RecordFile::text(path, format!("{DIRECTORY}/{name}"), bytes, false);
            let media_type = match extension.as_deref() {
                Some("jsonl") => file.media_type,
                Some("json") => MediaType::Json,
                _ => MediaType::Bytes,
            };
            Some(RecordFile { media_type, ..file })
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
        let engine_time = || engine.map(Dependency::downtime).unwrap_or_default();
        let (began, engine_before) = (Instant::now(), engine_time());
        let (mut models, mut looked) = (self.gateway.stopped_time(), began);
        let (mut stood, mut shown) = (Duration::ZERO, false);
        loop {
            let stopped = self.gateway.is_stopped();
            if stopped != shown {
                self.phases.parked(stopped.then_some(Kind::ModelServer));
                shown = stopped;
            }
            // Servers that do not answer during a pause stop the clock once.
            let (now, models_now) = (Instant::now(), self.gateway.stopped_time());
            stood += models_now.saturating_sub(models).min(now - looked);
            (models, looked) = (models_now, now);
            let engine_stood = engine_time().saturating_sub(engine_before);
            let stood = stood.min(self.max_stop) + engine_stood;
            let left = limit.saturating_sub((now - began).saturating_sub(stood));
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
