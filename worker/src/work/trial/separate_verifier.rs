//! Verification in an environment of its own, which gets only the artifacts from the agent's
//! environment: nothing else that the agent did can affect it.

use rollout_environment::EnvironmentPurpose;
use rollout_protocol::error::TrialError;
use rollout_protocol::phase::Phase;
use rollout_protocol::spec::task::{StepSpec, TaskEnvironment};

use super::artifacts::CollectedArtifacts;
use super::run::TrialRun;
use super::score::VerifierScore;
use super::setup::PreparedEnvironment;
use super::{setup, variables, verify};
use crate::executor::PhaseInterrupt;
use crate::executor::errors::{self, ScriptError, ScriptStage, SetupError};
use crate::work::readiness::{self, DeclaredStart};

impl TrialRun<'_> {
    /// Verifies a step in an environment that is created for it.
    pub(super) async fn verify_separately(
        &mut self,
        step: &StepSpec,
        own: &TaskEnvironment,
        collected: CollectedArtifacts,
        last: bool,
    ) -> Result<VerifierScore, PhaseInterrupt> {
        if let Some(incomplete) = collected.incomplete {
            return Err(self.verifier_error(ScriptError::Incomplete(incomplete)).into());
        }
        // Nothing runs in the agent's environment any more: its host has room for this one.
        if last && let Err(failure) = self.attempt.environment.stop().await {
            return Err(self.processes_left(failure).into());
        }
        self.create_verifier_environment(own, step).await?;
        let verified = self.run_separate_tests(step, collected).await;
        let score = self.collect_verifier_logs(verified).await.map_err(PhaseInterrupt::Failed);
        if !last {
            self.remove_verifier_environment().await;
        }
        score
    }

    /// Creates the verifier's environment and waits until it is ready.
    async fn create_verifier_environment(
        &mut self,
        own: &TaskEnvironment,
        step: &StepSpec,
    ) -> Result<(), PhaseInterrupt> {
        let ready = self.prepare_verifier_environment(own, step).await;
        let PreparedEnvironment { provider, request, services, workdir_files } =
            ready.map_err(|error| self.verifier_setup_error(error))?;
        self.wait_for_start().await?;
        let environment = self.verifier_environment.insert(Box::default());
        environment.share_access(&self.attempt.environment);
        let created = environment.create_beside(provider, request, services).await;
        created
            .map_err(|why| why.into_error(&self.attempt.redactor).in_phase(Phase::Verification))?;
        if let Some(part) = workdir_files {
            let placed = setup::place_workdir_files(environment.expect_running(), &part).await;
            self.parts.push(part);
            let in_phase = |error: TrialError| error.in_phase(Phase::Verification);
            placed.map_err(|error| in_phase(error.into_error(&self.attempt.redactor)))?;
        }
        let capture = || self.attempt.unrecorded.start(&self.attempt.redactor);
        let declared = DeclaredStart::Task(own);
        let ready = Box::pin(readiness::wait_until_ready(environment, declared, capture)).await;
        Ok(ready.map_err(|error| self.verifier_setup_error(error))?)
    }

    async fn prepare_verifier_environment(
        &mut self,
        own: &TaskEnvironment,
        step: &StepSpec,
    ) -> Result<PreparedEnvironment, SetupError> {
        let (ctx, services) = (self.ctx, self.services);
        let provider = setup::provider(ctx, services)?;
        let (source, image) = self.prepare_image(own, provider.as_ref()).await?;
        let mut uploads = setup::output_directories(ctx);
        setup::add_instruction(ctx, &services.files, step, &mut uploads).await?;
        let (purpose, image) = (EnvironmentPurpose::Verifier, (source, image));
        let request = setup::create_request(ctx, services, own, purpose, image, uploads);
        let workdir_files = setup::workdir_files(own, &services.files).await?;
        let services = setup::sidecars(own, &[], &services.files).await?;
        Ok(PreparedEnvironment { provider, request, services, workdir_files })
    }

    /// Places the artifacts at their original paths, then the tests, and runs the tests.
    async fn run_separate_tests(
        &mut self,
        step: &StepSpec,
        collected: CollectedArtifacts,
    ) -> Result<(), TrialError> {
        if let Some(policy) = &step.verifier.network {
            let reached = self.script_environment().set_network(policy).await;
            reached.map_err(|failure| self.verifier_error(ScriptError::Network(failure)))?;
        }
        let capture = self.start_capture(ScriptStage::Verify, step);
        let mut env = variables::verifier_env(self.ctx, &self.services.variables, step);
        let environment = self.verifier_environment.as_deref().expect("it was created");
        env.extend(environment.sidecar_env());
        let (target, files) = ((environment.expect_running(), step), &self.services.files);
        let ended =
            verify::run_tests(self.ctx, files, target, collected.uploads, env, capture).await;
        self.test_exit = self.script_result(ScriptStage::Verify, ended)?.code;
        Ok(())
    }

    fn verifier_setup_error(&self, error: SetupError) -> TrialError {
        error.into_error(&self.attempt.redactor).in_phase(Phase::Verification)
    }

    fn verifier_error(&self, error: ScriptError) -> TrialError {
        error.into_error(ScriptStage::Verify, &self.attempt.redactor)
    }

    /// Removes the verifier's environment, and records it and its cost.
    pub(super) async fn remove_verifier_environment(&mut self) {
        let Some(environment) = self.verifier_environment.as_deref_mut() else { return };
        let removed = environment.remove().await;
        self.attempt
            .secondary_errors
            .extend(removed.not_created.map(|why| why.into_error(&self.attempt.redactor)));
        if let Some(failure) = removed.failure {
            self.attempt
                .secondary_errors
                .push(errors::teardown_failed(&failure, &self.attempt.redactor));
        }
        self.removed_cost += self.environment_cost(self.verifier_environment.as_deref());
        self.verifier_record =
            self.verifier_environment.take().and_then(|environment| environment.record);
    }
}
