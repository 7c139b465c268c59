//! Files of a step: placed before the agent's work, and collected after it.

use std::collections::BTreeMap;
use std::io;

use rollout_environment::{ExecCommand, Upload, with_words};
use rollout_gateway::agents::{self, bash, shell};
use rollout_protocol::error::{ErrorClass, TrialError};
use rollout_protocol::spec::task::{CollectHook, StepSpec};
use rollout_protocol::spec::timeout::seconds;
use rollout_store::archive::{self, ArchiveError, ArchiveLimits, ArchiveTruncation};

use super::artifacts::CollectedArtifacts;
use super::failure;
use super::outputs::step_prefix;
use super::run::TrialRun;
use super::setup;
use crate::executor::errors::{ScriptError, ScriptStage, SetupError};
use crate::executor::{
    self, COPY_LIMIT, EnvironmentFault, FilesError, NormalExit, PhaseInterrupt, ScriptEnd,
    TaskPart, with_timeout,
};
use crate::verifier::{TESTS_DIR, fresh_logs};
use crate::work::agent::{PlannedScript, ScriptWork, run_script};
use crate::work::health::{self, HealthProbe};

/// A script among the files for the working directory: it prepares the step and is then removed.
const SETUP_SCRIPT: &str = "setup.sh";

impl TrialRun<'_> {
    /// Prepares the environment for a step with a name.
    pub(super) async fn prepare_step(
        &mut self,
        index: usize,
        step: &StepSpec,
    ) -> Result<(), PhaseInterrupt> {
        if index > 0 {
            self.attempt.end_phase()?;
            self.set_network(None, ScriptStage::Prepare).await?;
        }
        let setup = self.place_step_files(index, step).await;
        if setup.map_err(|error| error.into_error(&self.attempt.redactor))? {
            self.run_step_setup(step).await?;
        }
        if let Some(check) = &step.healthcheck {
            let capture = || self.attempt.unrecorded.start(&self.attempt.redactor);
            let check = HealthProbe::from(check);
            let ready =
                health::wait_until_healthy(&self.attempt.environment, &check, capture).await;
            ready.map_err(|error| error.into_error(&self.attempt.redactor))?;
        }
        Ok(())
    }

    /// Places a step's files. Those of the first step were placed when the environment was created,
    /// except those in the working directory. Returns whether there is a setup script among them.
    async fn place_step_files(
        &mut self,
        index: usize,
        step: &StepSpec,
    ) -> Result<bool, SetupError> {
        let (ctx, files) = (self.ctx, &self.services.files);
        let (mut uploads, mut parts, mut has_setup) = (Vec::new(), Vec::new(), false);
        if index > 0 {
            // Nothing of the previous verification may be seen.
            uploads.push(Upload::FreshDir { path: TESTS_DIR.to_owned() });
            uploads.extend(fresh_logs());
            setup::add_instruction(ctx, files, step, &mut uploads).await?;
            setup::add_trajectory(ctx, files, index, step, &mut uploads).await?;
            let plan = agents::plan(&ctx.agent, ctx.task.format, step).unwrap_or_default();
            setup::add_solution(ctx, files, &plan, &mut uploads, &mut parts).await?;
        }
        if let Some(blob) = &step.files.workdir {
            let part = files.archive("the step's files", blob).await.map_err(SetupError::Files)?;
            has_setup = has_setup_script(&part).await?;
            let path = self.attempt.environment.expect_running().workdir().to_owned();
            uploads.push(Upload::Merge { path, tar: part.path().to_owned() });
            parts.push(part);
        }
        if !uploads.is_empty() {
            let placing = self.attempt.environment.expect_running().copy_to(uploads);
            let placed = with_timeout(COPY_LIMIT, "placing the step's files", placing).await;
            placed.map_err(SetupError::Place)?;
        }
        Ok(has_setup)
    }

    /// Runs the setup script and removes it: the agent must not see it.
    async fn run_step_setup(&mut self, step: &StepSpec) -> Result<(), TrialError> {
        // It does the work of a build, so it has the time limit of one.
        let limit = seconds(self.ctx.task.environment.build_sec);
        let network_env = self.attempt.environment.network_env();
        let script = |argv, normal| PlannedScript {
            work: ScriptWork::Command(argv),
            env: network_env.clone(),
            workdir: None,
            user: None,
            limit,
            normal,
            keep_processes: false,
            clock: None,
            told: None,
        };
        let path = format!(
            "{}/{SETUP_SCRIPT}",
            self.attempt.environment.expect_running().workdir().trim_end_matches('/')
        );
        let capture = self.start_capture(ScriptStage::Prepare, step);
        let running = script(bash(path), NormalExit::Zero);
        let ended = run_script(self.attempt.environment.expect_running(), running, capture).await;
        self.script_result(ScriptStage::Prepare, ended)?;
        let capture = self.attempt.unrecorded.start(&self.attempt.redactor);
        let removing = script(shell(format!("rm -f {SETUP_SCRIPT}")), NormalExit::Zero);
        let ended = run_script(self.attempt.environment.expect_running(), removing, capture).await;
        self.script_result(ScriptStage::Prepare, ended).map(drop)
    }

    /// Collects a step's artifacts, after its hooks. Before a verification in another environment,
    /// all processes are killed, so that nothing changes the artifacts, unless the agent continues
    /// in further steps.
    pub(super) async fn collect_artifacts(
        &mut self,
        step: &StepSpec,
        last: bool,
    ) -> Result<CollectedArtifacts, TrialError> {
        self.set_network(None, ScriptStage::Verify).await?;
        for hook in &step.verifier.collect {
            self.run_hook(hook).await?;
        }
        if last
            && step.verifier.environment.is_some()
            && let Some(left) =
                executor::kill_processes(self.attempt.environment.expect_running()).await
        {
            return Err(self.processes_left(left));
        }
        let (environment, prefix) =
            (self.attempt.environment.expect_running(), step_prefix(step.name.as_deref()));
        let to = (self.outputs.scratch(), prefix.as_str());
        let (artifacts, wanted) = (&mut self.artifacts, &step.artifacts);
        Ok(artifacts.collect(self.ctx, environment, wanted, to, &self.attempt.redactor).await)
    }

    /// The error when processes of the agent may still be alive.
    pub(super) fn processes_left(&mut self, failure: rollout_environment::Failure) -> TrialError {
        self.attempt.environment.tainted = true;
        ScriptError::ProcessesLeft(failure).into_error(ScriptStage::Verify, &self.attempt.redactor)
    }

    /// Runs a hook. A failure is only recorded: the hook's artifact may be missing. A timeout, or a
    /// failure of the engine, ends the trial without a reward.
    async fn run_hook(&mut self, hook: &CollectHook) -> Result<(), TrialError> {
        let (capture, limit) =
            (self.attempt.unrecorded.start(&self.attempt.redactor), seconds(hook.timeout_sec));
        let environment = self.attempt.environment.expect_running();
        let (target, argv) = match &hook.service {
            None => (Some(environment), shell(hook.command.clone())),
            // A service's image need not have `bash`.
            Some(name) => {
                let argv = ["sh", "-c", &hook.command].map(str::to_owned).to_vec();
                (environment.service(name), argv)
            }
        };
        let env = match &hook.service {
            None => self.attempt.environment.network_env(),
            Some(_) => BTreeMap::new(),
        };
        let command = ExecCommand { argv, env, workdir: None, user: hook.user.clone() };
        let why = match target {
            None => "there is no such service in this environment".to_owned(),
            Some(place) => {
                let normal = NormalExit::AnyCode;
                let ran =
                    executor::run_command(place, command, limit, capture.clone(), normal).await;
                if let Some(left) = ran.processes_left {
                    return Err(self.processes_left(left));
                }
                match ran.end {
                    ScriptEnd::Exited(exit) if exit.code == 0 => return Ok(()),
                    ScriptEnd::Exited(exit) => {
                        let words = executor::stderr_summary(&capture).await;
                        with_words(format!("it ended with code {}", exit.code), &words)
                    }
                    // Everything else was killed with it: nothing is left to verify.
                    ScriptEnd::TimedOut => {
                        let why = format!("it exceeded its time limit of {limit:?}");
                        return Err(failure::not_ready(
                            &hook.command,
                            &why,
                            &self.attempt.redactor,
                        ));
                    }
                    ScriptEnd::Failed(failure) => {
                        let words = failure.chain();
                        let error = ScriptError::Exec(failure)
                            .into_error(ScriptStage::Verify, &self.attempt.redactor);
                        // Not the hook failed, and what it killed is missed by the verifier.
                        if error.class == ErrorClass::Infrastructure {
                            return Err(error);
                        }
                        words
                    }
                }
            }
        };
        if self.hook_fault.is_none() {
            self.hook_fault = EnvironmentFault::at_present(&self.attempt.environment).await;
        }
        self.attempt.secondary_errors.push(failure::not_ready(
            &hook.command,
            &why,
            &self.attempt.redactor,
        ));
        Ok(())
    }
}

/// Whether there is a setup script at the top of an archive.
async fn has_setup_script(part: &TaskPart) -> Result<bool, SetupError> {
    let path = part.path().to_owned();
    let what = "the step's files";
    let unread = |source| SetupError::Files(FilesError::Disk { what, path: path.clone(), source });
    let file = tokio::fs::File::open(&path).await.map_err(unread)?;
    let listed = archive::list(file, ArchiveLimits::BUNDLE).await;
    let members = listed.map_err(|cut| match cut {
        ArchiveTruncation::Source(reason) => unread(io::Error::other(reason)),
        cut => {
            let source = ArchiveError::Invalid { reason: cut.to_string() };
            SetupError::Files(FilesError::Unpack { what, source })
        }
    })?;
    let is_setup = |member: &archive::ArchiveMember| {
        let path = member.path.as_ref().ok().and_then(Option::as_ref);
        path.is_some_and(|path| path.as_bytes() == SETUP_SCRIPT.as_bytes())
    };
    Ok(members.iter().any(is_setup))
}
