//! One execution of an eval.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rollout_gateway::CallFailure;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{
    CheckoutChanges, CommandRecord, EnvironmentRecord, EvalEnd, EvalRecord, GatewaySummary,
};
use rollout_protocol::spec::eval::EvalStage;

use super::candidate::Candidate;
use super::checkout_slots::CheckoutSlot;
use super::collect::EvalOutputs;
use super::environment::EvalEnvironmentState;
use super::record;
use super::variables::{self, EvalVariables};
use super::{EvalContext, Repositories};
use crate::executor::{
    self, AttemptState, BuildLog, Capture, ExecutionServices, Finished, PhaseInterrupt, RecordFile,
    WorkRecipe,
};
use crate::work::agent::ModelCalls;
use crate::work::agent::command::InstallScript;

/// Runs one execution of an eval to its end. Must not be dropped before: the environment would stay
/// until a reaper finds that its owner is dead.
pub async fn run(
    ctx: EvalContext,
    services: &ExecutionServices,
    repositories: &Repositories,
) -> Finished<EvalRecord> {
    let ctx = variables::with_host_proxies(ctx, services);
    let kind = ctx.eval.settings.provider.kind();
    let recipe = || EvalRun::new(&ctx, services, repositories);
    executor::execute(&ctx.execution, services, kind, recipe).await
}

/// An execution in progress.
pub(super) struct EvalRun<'a> {
    pub(super) ctx: &'a EvalContext,
    pub(super) services: &'a ExecutionServices,
    pub(super) repositories: &'a Repositories,
    pub(super) attempt: AttemptState,
    pub(super) variables: EvalVariables,
    pub(super) captures: Vec<(&'static str, Arc<Capture>)>,
    pub(super) commands: Vec<CommandRecord>,
    pub(super) end: EvalEnd,
    pub(super) candidate: Option<Candidate>,
    pub(super) changes: Option<CheckoutChanges>,
    pub(super) collected: EvalOutputs,
    /// Variables of values that look like secrets in its commit and in what was collected.
    pub(super) possible_secrets: BTreeSet<String>,
    /// Total cost that the commands reported.
    pub(super) reported_cost: Option<f64>,
    pub(super) slot: Option<CheckoutSlot>,
    /// The idea.
    pub(super) idea: Bytes,
    /// Model calls of the agent that runs.
    pub(super) models: ModelCalls,
    /// Its command.
    pub(super) calling: Option<EvalStage>,
    /// Why the calls of the last agent say nothing about it, if they do not.
    pub(super) call_failure: Option<CallFailure>,
    /// The same for the agent that implemented the idea.
    pub(super) implement_failure: Option<CallFailure>,
    /// Model calls of the agents that ran.
    pub(super) gateway: BTreeMap<EvalStage, GatewaySummary>,
    /// Files of the model calls.
    pub(super) call_files: Vec<RecordFile>,
    /// The agents that are installed.
    pub(super) installed: Vec<InstallScript>,
    /// The log of an image build.
    pub(super) build_log: BuildLog,
    /// The environment in use.
    pub(super) environment_state: EvalEnvironmentState,
    /// Cost of the shared environment, once the sweep has its own.
    pub(super) removed_cost: f64,
    /// Its record, then.
    pub(super) removed_environment: Option<EnvironmentRecord>,
    /// Time that is left for commands; `None` without a limit.
    pub(super) time_left: Option<Duration>,
    /// Whether the sweep succeeded.
    pub(super) sweep_succeeded: bool,
}

impl<'a> EvalRun<'a> {
    fn new(
        ctx: &'a EvalContext,
        services: &'a ExecutionServices,
        repositories: &'a Repositories,
    ) -> Self {
        Self {
            ctx,
            services,
            repositories,
            attempt: AttemptState::new(&ctx.execution),
            variables: EvalVariables::default(),
            captures: Vec::new(),
            commands: Vec::new(),
            end: EvalEnd::Failed,
            candidate: None,
            changes: None,
            collected: EvalOutputs::default(),
            possible_secrets: BTreeSet::new(),
            reported_cost: None,
            slot: None,
            idea: Bytes::new(),
            models: ModelCalls::default(),
            calling: None,
            call_failure: None,
            implement_failure: None,
            gateway: BTreeMap::new(),
            call_files: Vec::new(),
            installed: Vec::new(),
            build_log: BuildLog::new(&ctx.execution.scratch),
            environment_state: EvalEnvironmentState::Shared,
            removed_cost: 0.0,
            removed_environment: None,
            time_left: None,
            sweep_succeeded: false,
        }
    }

    /// Returns the checkout slot.
    pub(super) async fn return_slot(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.return_cleaned().await;
        }
    }
}

impl WorkRecipe for EvalRun<'_> {
    type Record = EvalRecord;

    fn attempt(&mut self) -> &mut AttemptState {
        &mut self.attempt
    }

    async fn phases(&mut self) -> Result<(), PhaseInterrupt> {
        self.run_phases().await
    }

    async fn collect(&mut self) {
        self.collect_outputs().await;
    }

    /// An eval without a result does not count against its idea when its environment was removed, the proxy of
    /// its allowed hosts failed, or a disk of this host was full meanwhile, unless the eval itself filled the
    /// disk beyond its own limit.
    async fn settle_errors(&mut self) {
        let came_to_nothing = matches!(self.end, EvalEnd::Failed | EvalEnd::NoChanges);
        if !came_to_nothing {
            return;
        }
        let captures = self.captures.iter().map(|(_, capture)| capture.as_ref()).collect();
        let without_cause = ": it changed nothing";
        if self.attempt.blame_host(self.services, captures, "eval", without_cause).await {
            self.end = EvalEnd::Failed;
        }
    }

    fn had_environment(&mut self) -> bool {
        self.environment_state != EvalEnvironmentState::Shared
            || self.attempt.environment.was_created()
    }

    async fn release(&mut self) {
        self.close_calls().await;
        self.return_slot().await;
    }

    fn start_over(&mut self) {
        self.ctx.permits.start_over();
    }

    async fn finished(self, stopped: Option<Phase>) -> Finished<EvalRecord> {
        record::finished(self, stopped).await
    }
}
