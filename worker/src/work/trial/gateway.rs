//! The gateway of a trial's agent.

use rollout_environment::{Failure, FailureKind, ListenerRoute};
use rollout_protocol::spec::task::StepSpec;

use super::TrialContext;
use super::run::TrialRun;
use super::step::agent_network;
use crate::executor::errors::SetupError;
use crate::work::agent::{CALLS_DIRECTORY, CallsRequest};

impl TrialRun<'_> {
    /// Opens the gateway for the agent, if the job has one.
    pub(super) async fn open_gateway(&mut self) -> Result<(), SetupError> {
        let ctx = self.ctx;
        let request = CallsRequest {
            agent: &ctx.agent,
            servers: ctx.settings.gateway.as_ref(),
            budget: ctx.settings.budget,
            services: self.services,
            execution: &ctx.execution,
            directory: self.outputs.scratch().join(CALLS_DIRECTORY),
            redactor: self.attempt.redactor.clone(),
        };
        self.serves_gateway = self.models.open(request).await?;
        self.serve_gateway().await
    }

    /// Makes the gateway reachable from the agent's environment. Its network may be another one than
    /// in the step before, if it was restarted.
    pub(super) async fn serve_gateway(&mut self) -> Result<(), SetupError> {
        if !self.serves_gateway {
            return Ok(());
        }
        let route = self.attempt.environment.expect_running().listener_route().await;
        let route = route.and_then(|route| check_route(route, self.ctx));
        self.models.serve(route.map_err(SetupError::GatewayRoute)?).await
    }
}

/// Refuses a way over a network that an agent of the task does not have.
fn check_route(route: ListenerRoute, ctx: &TrialContext) -> Result<ListenerRoute, Failure> {
    let is_limited = |step: &StepSpec| !agent_network(ctx, step).is_public();
    let needs_network = matches!(route, ListenerRoute::HostAddress(_));
    if needs_network && ctx.task.steps.iter().any(is_limited) {
        let text = "the agent of a step has no network, and the worker cannot listen in its \
                    environment; run the worker as root on the engine's host";
        return Err(Failure::new(FailureKind::Unsupported, text));
    }
    Ok(route)
}
