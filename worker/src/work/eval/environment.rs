//! The environments of an eval: the one that its commands share, and an optional one for the sweep
//! alone. At most one of them exists at a time.

use std::sync::Arc;

use rollout_base::secrets::Redactor;
use rollout_environment::{BuildProxies, CreateRequest, EnvironmentPurpose, Provider, Upload};
use rollout_protocol::error::TrialError;
use rollout_protocol::phase::Phase;
use rollout_protocol::spec::environment::EnvironmentSpec;
use rollout_protocol::spec::eval::EvalSpec;
use rollout_protocol::spec::task::TaskEnvironment;

use super::checkout::Checkout;
use super::run::EvalRun;
use super::variables::{self, LOGS, REPOSITORY};
use super::{Mirror, failure};
use crate::executor::errors::SetupError;
use crate::executor::{ManagedEnvironment, PhaseInterrupt, RequestedImage, TaskPart};
use crate::work::readiness::{self, DeclaredStart};

/// Largest size of an idea, in bytes.
const IDEA_BYTES: u64 = rollout_protocol::limits::INSTRUCTION_BYTES;

/// The progress of an execution through its environments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvalEnvironmentState {
    /// It uses the shared environment, or creates it.
    Shared,
    /// It leaves the shared environment, whose logs have been collected or are being collected.
    Leaving,
    /// The shared environment is removed. The sweep's own exists, or is being created.
    Sweep,
}

/// An environment to create.
#[derive(Clone, Copy)]
struct EvalEnvironmentPlan<'s> {
    environment: &'s TaskEnvironment,
    settings: &'s EnvironmentSpec,
    purpose: EnvironmentPurpose,
}

impl<'s> EvalEnvironmentPlan<'s> {
    fn shared(eval: &'s EvalSpec) -> Self {
        let (environment, settings) = (&eval.environment, &eval.settings);
        Self { environment, settings, purpose: EnvironmentPurpose::Agent }
    }

    /// The sweep's own.
    fn sweep(eval: &'s EvalSpec) -> Option<Self> {
        let own = eval.sweep_environment.as_deref()?;
        let (environment, settings) = (&own.environment, &own.settings);
        Some(Self { environment, settings, purpose: EnvironmentPurpose::Verifier })
    }
}

impl<'a> EvalRun<'a> {
    /// Creates the checkout and the shared environment.
    pub(super) async fn setup(&mut self) -> Result<Checkout, PhaseInterrupt> {
        let (ctx, repositories): (&'a _, &'a _) = (self.ctx, self.repositories);
        let expanded = variables::expand(&self.services.variables, ctx);
        (self.variables, self.attempt.redactor) =
            expanded.map_err(|unset| SetupError::Unset(unset).into_error(&Redactor::default()))?;
        let eval = &ctx.eval;
        failure::check_supported(eval)?;
        let (shared, sweep) = (EvalEnvironmentPlan::shared(eval), EvalEnvironmentPlan::sweep(eval));
        // Fail early when this worker cannot run the sweep's environment.
        sweep.map(|environment| self.provider(environment)).transpose()?;
        let provider = self.provider(shared)?;
        let scratch = ctx.execution.create_scratch().await.map_err(SetupError::Disk);
        scratch.map_err(|error| error.into_error(&self.attempt.redactor))?;
        let mirror = repositories.mirrors.get(&eval.repository).await;
        let mirror =
            mirror.map_err(|error| failure::files_error(&error, &self.attempt.redactor))?;
        let (checkout, uploads) = self.checkout(&mirror, eval.repository.commit()).await?;
        self.create_environment(shared, provider, uploads).await?;
        Ok(checkout)
    }

    /// Replaces the shared environment by the sweep's own one, if it has one. That one gets nothing
    /// but the files of the candidate's commit.
    pub(super) async fn enter_sweep_environment(
        &mut self,
        shared: Checkout,
    ) -> Result<(), PhaseInterrupt> {
        let ctx: &'a _ = self.ctx;
        let Some(plan) = EvalEnvironmentPlan::sweep(&ctx.eval) else { return Ok(()) };
        self.attempt.end_phase()?;
        self.leave_shared_environment().await?;
        self.attempt.end_phase()?;
        self.attempt.enter(Phase::EnvironmentSetup);
        let mirror = shared.mirror.clone();
        drop(shared);
        self.return_slot().await;
        let candidate = self.candidate.as_ref().expect("the commit was made before");
        let commit = candidate.commit.clone();
        let (_checkout, uploads) = self.checkout(&mirror, &commit).await?;
        let provider = self.provider(plan)?;
        Ok(self.create_environment(plan, provider, uploads).await?)
    }

    /// Collects and removes the shared environment. When something of it may be left, no other one
    /// is created: there is room for only one.
    async fn leave_shared_environment(&mut self) -> Result<(), TrialError> {
        self.attempt.enter(Phase::Collection);
        self.environment_state = EvalEnvironmentState::Leaving;
        self.collected.logs = self.collect_logs("logs.tar").await;
        self.attempt.enter(Phase::Teardown);
        let removed = self.attempt.environment.remove().await;
        if let Some(failure) = removed.failure {
            return Err(failure::leftover_environment(&failure, &self.attempt.redactor));
        }
        self.removed_cost += self.environment_cost();
        self.removed_environment = self.attempt.environment.record.take();
        (self.attempt.environment, self.environment_state) =
            (ManagedEnvironment::default(), EvalEnvironmentState::Sweep);
        Ok(())
    }

    /// Cost of the current environment so far.
    pub(super) fn environment_cost(&self) -> f64 {
        let eval = &self.ctx.eval;
        let plan = match self.environment_state {
            EvalEnvironmentState::Shared | EvalEnvironmentState::Leaving => {
                EvalEnvironmentPlan::shared(eval)
            }
            EvalEnvironmentState::Sweep => {
                EvalEnvironmentPlan::sweep(eval).expect("only such evals come here")
            }
        };
        self.attempt.environment.cost(&plan.settings.rates)
    }

    fn provider(&self, plan: EvalEnvironmentPlan<'_>) -> Result<Arc<dyn Provider>, TrialError> {
        let provider =
            self.services.provider(plan.settings.provider.kind(), self.ctx.execution.labels.run);
        provider.map_err(|error| error.into_error(&self.attempt.redactor))
    }

    async fn checkout(
        &mut self,
        mirror: &Mirror,
        commit: &str,
    ) -> Result<(Checkout, Vec<Upload>), TrialError> {
        let checkout = self.repositories.check_out(mirror, commit, &mut self.slot, REPOSITORY);
        checkout.await.map_err(|error| failure::files_error(&error, &self.attempt.redactor))
    }

    /// Creates an environment with the files of a checkout, and waits until it is ready.
    async fn create_environment(
        &mut self,
        plan: EvalEnvironmentPlan<'_>,
        provider: Arc<dyn Provider>,
        checkout: Vec<Upload>,
    ) -> Result<(), TrialError> {
        let request = self.create_request(plan, provider.as_ref(), checkout).await;
        // The part must live as long as the source of the image is used.
        let (request, _part) = request.map_err(|error| error.into_error(&self.attempt.redactor))?;
        let created = self.attempt.environment.create(provider, request).await;
        created.map_err(|why| why.into_error(&self.attempt.redactor))?;
        let declared = DeclaredStart::Search(plan.environment);
        let capture = || self.attempt.unrecorded.start(&self.attempt.redactor);
        let ready = readiness::wait_until_ready(&mut self.attempt.environment, declared, capture);
        let ready = Box::pin(ready).await;
        ready.map_err(|error| error.into_error(&self.attempt.redactor))
    }

    async fn create_request(
        &mut self,
        plan: EvalEnvironmentPlan<'_>,
        provider: &dyn Provider,
        checkout: Vec<Upload>,
    ) -> Result<(CreateRequest, Option<TaskPart>), SetupError> {
        let (ctx, environment, settings) = (self.ctx, plan.environment, plan.settings);
        let files = &self.services.files;
        let requested = RequestedImage { environment, settings };
        let (source, part) = requested.source(files).await?;
        let env = match self.environment_state {
            EvalEnvironmentState::Shared | EvalEnvironmentState::Leaving => {
                &self.variables.environment
            }
            EvalEnvironmentState::Sweep => &self.variables.sweep_environment,
        };
        let (env, labels) = (env.clone(), &ctx.execution.labels);
        let (proxies, log) = (BuildProxies::of(&env), &mut self.build_log);
        let prepared = requested.prepare(provider, &source, proxies, labels, log).await;
        let image = prepared?;
        let image = match plan.purpose {
            EnvironmentPurpose::Agent => self.install_agents(provider, image).await,
            EnvironmentPurpose::Verifier => image,
        };
        let idea = files.bytes("the idea", &ctx.eval.idea, IDEA_BYTES).await;
        let bytes = idea.map_err(SetupError::Files)?;
        self.idea = bytes.clone();
        let mut uploads = vec![Upload::Dir { path: LOGS.to_owned() }];
        uploads.extend(checkout);
        let path = variables::IDEA.to_owned();
        uploads.push(Upload::File { path, bytes, executable: false });
        let request = CreateRequest {
            image,
            source,
            resources: environment.resources,
            env,
            workdir: environment.workdir.clone(),
            network: environment.network.clone(),
            compose: None,
            uploads,
            settings: settings.provider.clone(),
            labels: ctx.execution.labels.clone(),
            purpose: plan.purpose,
        };
        Ok((request, part))
    }
}
