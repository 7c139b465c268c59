//! The model calls of an agent: its gateway, its clock, and the records of its calls.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rollout_base::dependency::Dependency;
use rollout_base::secrets::Redactor;
use rollout_base::supervise;
use rollout_environment::ListenerRoute;
use rollout_gateway::{
    CallFailure, SessionFiles, TrajectoryAgent, TryCalls, TryGateway, TryRequest, Upstream,
};
use rollout_protocol::blob::MediaType;
use rollout_protocol::dependency::Dependency as Kind;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::record::GatewaySummary;
use rollout_protocol::spec::agent::{AgentKind, AgentSpec, SessionFormat};
use rollout_protocol::spec::budget::{ModelUse, TryBudget};
use rollout_protocol::spec::gateway::{GatewaySpec, UpstreamSpec};
use tokio::sync::watch;
use tokio::time::Instant;

use super::ScriptEnv;
use crate::executor::errors::SetupError;
use crate::executor::{ExecutionContext, ExecutionServices, PhaseSink, RecordFile};

/// Directory of the records, below the directory of the execution or its command.
pub(in crate::work) const CALLS_DIRECTORY: &str = "gateway";

/// Variable with the version of an agent of the catalogue.
const VERSION_VARIABLE: &str = "ROLLOUT_AGENT_VERSION";

/// Version of an agent whose version is not known.
const UNKNOWN_VERSION: &str = "unknown";

/// Longest time between two looks at a clock: an outage is shown that late.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest time between two looks at a clock that stands still.
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Shortest time that the clock stood still, while it runs and while it stands, that is told: an agent
/// reads a file about it.
const MIN_TOLD_STOP: Duration = Duration::from_secs(1);
const MIN_TOLD_STOP_NOW: Duration = Duration::from_secs(30);

/// Why there is no verdict on an agent whose requests were not answered.
const UNANSWERED: &str = "a model server does not answer";

/// The model calls of an attempt.
#[derive(Debug, Default)]
pub(in crate::work) struct ModelCalls {
    gateway: Option<Arc<dyn TryGateway>>,
    env: ScriptEnv,
    session: Option<SessionFiles>,
    closed: Option<TryCalls>,
}

/// The needs of an agent's model calls.
pub(in crate::work) struct CallsRequest<'a> {
    /// The agent.
    pub(in crate::work) agent: &'a AgentSpec,
    /// The model servers, if there are any.
    pub(in crate::work) servers: Option<&'a GatewaySpec>,
    /// Budget of the calls; without a limit when absent.
    pub(in crate::work) budget: Option<TryBudget>,
    /// Services of the worker.
    pub(in crate::work) services: &'a ExecutionServices,
    /// The execution.
    pub(in crate::work) execution: &'a ExecutionContext,
    /// Directory for the files of the calls.
    pub(in crate::work) directory: PathBuf,
    /// Masks secrets in these files.
    pub(in crate::work) redactor: Redactor,
}

/// The part of a record that model calls have.
#[derive(Debug, Default)]
pub(in crate::work) struct FinishedCalls {
    pub(in crate::work) summary: Option<Box<GatewaySummary>>,
    /// Use of the calls.
    pub(in crate::work) used: ModelUse,
    pub(in crate::work) files: Vec<RecordFile>,
}

impl FinishedCalls {
    /// Cost of the calls.
    pub(in crate::work) fn cost(&self) -> f64 {
        self.summary.as_ref().map_or(0.0, |summary| summary.cost)
    }
}

/// A clock that stands still while a model server does not answer, or a pause keeps calls back.
#[derive(Debug)]
pub(in crate::work) struct AgentClock {
    gateway: Arc<dyn TryGateway>,
    phases: Arc<dyn PhaseSink>,
    /// Longest time for which it stands still.
    max_stop: Duration,
}

impl ModelCalls {
    /// Opens the gateway for an agent, if there are model servers and it may call them. Returns
    /// whether it must be made reachable from the environment with [`Self::serve`]: the worker itself
    /// calls the models of the agent `shell`.
    pub(in crate::work) async fn open(
        &mut self,
        request: CallsRequest<'_>,
    ) -> Result<bool, SetupError> {
        let CallsRequest { agent, servers, budget, services, execution, .. } = request;
        let CallsRequest { directory, redactor, .. } = request;
        let Some(servers) = servers.filter(|_| agent.kind.calls_models()) else {
            return Ok(false);
        };
        let gateway = services.gateway.as_ref().ok_or(SetupError::NoGateway)?;
        let upstream = |spec: &UpstreamSpec| {
            let key = spec.key.as_ref().map(|key| services.variables.value(key)).transpose();
            Ok(Upstream { spec: spec.clone(), key: key.map_err(SetupError::Unset)? })
        };
        let upstreams =
            servers.upstreams.iter().map(upstream).collect::<Result<_, SetupError>>()?;
        let request = TryRequest {
            run: execution.labels.run,
            upstreams,
            budget,
            only: agent.model.as_ref().map(|model| model.upstream.clone()),
            is_leased: execution.has_model_leases,
            directory,
            redactor,
            agent: trajectory_agent(agent, execution),
        };
        self.gateway = Some(gateway.open(request).await.map_err(SetupError::Gateway)?);
        Ok(!matches!(agent.kind, AgentKind::Shell(_)))
    }

    /// Makes the gateway reachable from an environment.
    pub(in crate::work) async fn serve(&mut self, route: ListenerRoute) -> Result<(), SetupError> {
        let Some(gateway) = &self.gateway else { return Ok(()) };
        self.env = gateway.serve(route).await.map_err(SetupError::Gateway)?;
        Ok(())
    }

    /// Why the calls say nothing about the agent, if they do not.
    pub(in crate::work) fn failure(&self) -> Option<CallFailure> {
        self.gateway.as_ref().and_then(|gateway| gateway.call_failure())
    }

    /// Time in which the agent's clock stood still.
    pub(in crate::work) fn stopped_time(&self) -> Duration {
        self.gateway.as_ref().map_or(Duration::ZERO, |gateway| gateway.stopped_time())
    }

    /// The gateway, if it is open.
    pub(in crate::work) fn gateway(&self) -> Option<&Arc<dyn TryGateway>> {
        self.gateway.as_ref()
    }

    /// Variables of the agent's scripts.
    pub(in crate::work) fn env(&self) -> ScriptEnv {
        self.env.clone()
    }

    /// The clock of the agent's scripts.
    pub(in crate::work) fn clock(&self, ctx: &ExecutionContext) -> Option<AgentClock> {
        Some(AgentClock {
            gateway: Arc::clone(self.gateway.as_ref()?),
            phases: Arc::clone(&ctx.phases),
            max_stop: ctx.max_park,
        })
    }

    /// The error of an agent whose calls failed for a reason that is none of the agent's: it is no
    /// verdict.
    pub(in crate::work) fn blame_server(&self, error: TrialError) -> TrialError {
        blame_server(self.failure(), error)
    }

    /// The end of the agent, given that of its work. With the last request of a conversation
    /// unanswered for a cause of the server there is no verdict, however the agent ended: it could not
    /// do its work. A refused key or model explains the failure of an agent only, because an agent
    /// can provoke it without a call that counts.
    pub(in crate::work) async fn check_answers(
        &self,
        ended: Result<(), TrialError>,
    ) -> Result<(), TrialError> {
        if let Some(gateway) = &self.gateway {
            gateway.wait_for_calls().await;
        }
        match ended {
            Ok(()) if self.failure() == Some(CallFailure::Unanswered) => {
                let (kind, class) = (ErrorType::AgentExecutionFailed, ErrorClass::Infrastructure);
                let message =
                    format!("{UNANSWERED}: the last request of a conversation has no reply");
                let code = ErrorCode::MODEL_UNREACHABLE;
                Err(TrialError::new(kind, code, class, RetryClass::Transient, message))
            }
            Ok(()) => Ok(()),
            Err(error) => Err(self.blame_server(error)),
        }
    }

    /// The end of the agent, given that of its script: an agent whose calls exceeded its budget has
    /// failed, however it ended. A failure of the infrastructure stays one, also if the agent repeated
    /// requests that no server answered until the budget ended.
    pub(in crate::work) fn check_budget(
        &self,
        ended: Result<(), TrialError>,
    ) -> Result<(), TrialError> {
        let exceeded = self.gateway.as_ref().and_then(|gateway| gateway.exceeded_budget());
        let Some(exceeded) = exceeded else { return ended };
        if ended.as_ref().is_err_and(|error| error.class == ErrorClass::Infrastructure) {
            return ended;
        }
        let message = format!("the model calls of the agent exceeded its budget: {exceeded}");
        let (kind, class) = (ErrorType::AgentExecutionFailed, ErrorClass::Agent);
        let code = ErrorCode::BUDGET_EXCEEDED;
        let error = TrialError::new(kind, code, class, RetryClass::Permanent, message);
        Err(self.blame_server(error))
    }

    /// Sets the archive of `/logs` with the files of the agent's own session.
    pub(in crate::work) fn set_logs(&mut self, agent: &AgentSpec, archive: &Path) {
        self.session = agent.session_calls.as_ref().map(|format| SessionFiles {
            archive: archive.to_owned(),
            format: SessionFormat::clone(format),
        });
    }

    /// Ends all calls.
    pub(in crate::work) async fn close(&mut self) {
        let session = self.session.take();
        if let Some(gateway) = self.gateway.take() {
            self.closed = Some(gateway.close(session).await);
        }
    }

    /// The calls for the record, with their files below the directory `parent` of the record.
    pub(in crate::work) async fn finish(&mut self, parent: &str) -> FinishedCalls {
        let Some(calls) = self.closed.take() else { return FinishedCalls::default() };
        let file = |(path, bytes): (PathBuf, u64)| {
            let name = path.file_name()?.to_str()?.to_owned();
            let extension = path.extension().and_then(|extension| extension.to_str());
            let extension = extension.map(str::to_owned);
            let file =
                RecordFile::text(path, format!("{parent}{CALLS_DIRECTORY}/{name}"), bytes, false);
            let media_type = match extension.as_deref() {
                Some("jsonl") => file.media_type,
                Some("json") => MediaType::Json,
                _ => MediaType::Bytes,
            };
            Some(RecordFile { media_type, ..file })
        };
        FinishedCalls {
            summary: Some(Box::new(calls.summary)),
            used: calls.used,
            files: with_sizes(calls.files).await.into_iter().filter_map(file).collect(),
        }
    }
}

/// Files with their sizes. One that cannot be found is left out.
async fn with_sizes(files: Vec<PathBuf>) -> Vec<(PathBuf, u64)> {
    if files.is_empty() {
        return Vec::new();
    }
    let sized = |path: PathBuf| {
        let bytes = fs::metadata(&path).ok()?.len();
        Some((path, bytes))
    };
    supervise::blocking(move || files.into_iter().filter_map(sized).collect()).await
}

/// The agent as its trajectory names it. Agents with scripts of the job have no version that is known.
fn trajectory_agent(agent: &AgentSpec, execution: &ExecutionContext) -> TrajectoryAgent {
    let stated = agent.env.get(VERSION_VARIABLE).and_then(|text| text.expand(|_| None).ok());
    let own = || matches!(agent.kind, AgentKind::Shell(_)).then_some(env!("CARGO_PKG_VERSION"));
    let version = stated.or_else(|| own().map(str::to_owned));
    TrajectoryAgent {
        name: agent.name.clone(),
        version: version.unwrap_or_else(|| UNKNOWN_VERSION.to_owned()),
        model: agent.model.as_ref().map(|model| format!("{}/{}", model.provider, model.name)),
        session: execution.labels.exec.to_string(),
    }
}

/// The error of an agent whose calls failed, as [`ModelCalls::blame_server`].
pub(in crate::work) fn blame_server(failure: Option<CallFailure>, error: TrialError) -> TrialError {
    // The verdict of a review is the verifier's.
    let is_verdict = matches!(error.class, ErrorClass::Agent | ErrorClass::Verifier);
    let Some(failure) = failure.filter(|_| is_verdict) else { return error };
    let (code, retry, why) = match failure {
        CallFailure::Unanswered => {
            (ErrorCode::MODEL_UNREACHABLE, RetryClass::Transient, UNANSWERED)
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

impl AgentClock {
    /// Returns when the clock has reached the limit, or calls have exceeded the budget. Outages of the
    /// environment's engine do not count either. Tells `told` how long it stood still.
    pub(in crate::work) async fn wait_for_limit(
        &self,
        limit: Duration,
        engine: Option<&Dependency>,
        told: &watch::Sender<Duration>,
    ) {
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
            let longer = if stopped { MIN_TOLD_STOP_NOW } else { MIN_TOLD_STOP };
            let told_before = *told.borrow();
            if stood >= told_before + longer && !engine.is_some_and(Dependency::is_down) {
                told.send_replace(stood);
            }
            let left = limit.saturating_sub((now - began).saturating_sub(stood));
            if left.is_zero() || self.gateway.exceeded_budget().is_some() {
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
