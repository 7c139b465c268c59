//! Verification in an environment of its own, which gets nothing from the agent's but the
//! artifacts: whatever the agent did to its environment, it did nothing to this one.

use rollout_protocol::error::TrialError;
use rollout_protocol::phase::Phase;
use rollout_protocol::spec::task::{StepSpec, TaskEnvironment};

use super::artifacts::Taken;
use super::run::Run;
use super::score::Score;
use super::setup::Prepared;
use super::{health, setup, variables, verify};
use crate::environment::EnvironmentPurpose;
use crate::executor::Halt;
use crate::executor::errors::{self, ScriptError, SetupError, Stage};

impl Run<'_> {
    /// Verifies a step in an environment that is made for it.
    pub(super) async fn verify_apart(
        &mut self,
        step: &StepSpec,
        own: &TaskEnvironment,
        taken: Taken,
        last: bool,
    ) -> Result<Score, Halt> {
        if let Some(lack) = taken.lack {
            return Err(self.unverified(ScriptError::Lacking(lack)).into());
        }
        // Nobody works in the agent's environment any more: its host has the room for this one.
        if last && let Err(failure) = self.attempt.environment.stop().await {
            return Err(self.left(failure).into());
        }
        self.set_up_apart(own, step).await?;
        let verified = self.test_apart(step, taken).await;
        let score = self.verifier_logs(verified).await.map_err(Halt::Failed);
        if !last {
            self.retire().await;
        }
        score
    }

    /// Creates the verifier's environment and waits until it is ready.
    async fn set_up_apart(&mut self, own: &TaskEnvironment, step: &StepSpec) -> Result<(), Halt> {
        let ready = self.ready_apart(own, step).await;
        let Prepared { provider, request, services } =
            ready.map_err(|error| self.not_set_up(error))?;
        self.may_start().await?;
        let site = self.apart.insert(Box::default());
        let created = site.create_beside(provider, request, services).await;
        created
            .map_err(|why| why.into_error(&self.attempt.redactor).in_phase(Phase::Verification))?;
        if let Some(check) = &own.healthcheck {
            let capture = || self.outputs.aside(&self.attempt.redactor);
            let ready = health::ready(site.present(), check, capture).await;
            ready.map_err(|error| self.not_set_up(error))?;
        }
        Ok(())
    }

    async fn ready_apart(
        &mut self,
        own: &TaskEnvironment,
        step: &StepSpec,
    ) -> Result<Prepared, SetupError> {
        let (ctx, services) = (self.ctx, self.services);
        let provider = setup::provider(ctx, services)?;
        let (source, image) = self.image(own, provider.as_ref()).await?;
        let mut uploads = setup::directories(ctx);
        setup::instruction(ctx, &services.files, step, &mut uploads).await?;
        let (purpose, image) = (EnvironmentPurpose::Verifier, (source, image));
        let request = setup::request(ctx, services, own, purpose, image, uploads);
        let services = setup::sidecars(own, &services.files).await?;
        Ok(Prepared { provider, request, services })
    }

    /// Brings the artifacts to where they were, then the tests, and runs them.
    async fn test_apart(&mut self, step: &StepSpec, taken: Taken) -> Result<(), TrialError> {
        if let Some(policy) = &step.verifier.network {
            let reached = self.site().reach(policy).await;
            reached.map_err(|failure| self.unverified(ScriptError::Network(failure)))?;
        }
        let capture = self.capture(Stage::Verify, step);
        let mut env = variables::verifier(self.ctx, &self.services.variables, step);
        let site = self.apart.as_deref().expect("it was created");
        env.extend(site.sidecar_env());
        let (place, files) = ((site.present(), step), &self.services.files);
        let ended = verify::verify(self.ctx, files, place, taken.uploads, env, capture).await;
        self.test_exit = self.judge(Stage::Verify, ended)?.code;
        Ok(())
    }

    fn not_set_up(&self, error: SetupError) -> TrialError {
        error.into_error(&self.attempt.redactor).in_phase(Phase::Verification)
    }

    fn unverified(&self, error: ScriptError) -> TrialError {
        error.into_error(Stage::Verify, &self.attempt.redactor)
    }

    /// Removes the verifier's environment and notes what it was and cost.
    pub(super) async fn retire(&mut self) {
        let Some(site) = self.apart.as_deref_mut() else { return };
        let removed = site.remove().await;
        self.attempt
            .later
            .extend(removed.not_created.map(|why| why.into_error(&self.attempt.redactor)));
        if let Some(failure) = removed.failure {
            self.attempt.later.push(errors::teardown(&failure, &self.attempt.redactor));
        }
        self.spent += self.cost_of(self.apart.as_deref());
        self.apart_record = self.apart.take().and_then(|site| site.record);
    }
}
