//! The agent that writes ideas instead of a script.

use std::future::pending;

use rollout_environment::{BuildProxies, Image, Provider};
use rollout_protocol::error::TrialError;
use rollout_protocol::phase::Phase;
use rollout_protocol::spec::eval::CommandAgent;
use rollout_protocol::spec::timeout::seconds;

use super::run::IdeasRun;
use super::variables::{self, IDEAS, LOGS, PACK, REPOSITORY};
use crate::executor::errors::{ScriptError, ScriptStage};
use crate::executor::{COPY_LIMIT, Capture, NormalExit, PhaseInterrupt, ScriptLimit, with_timeout};
use crate::work::agent::command::{self, CommandCalls, InstallScript, PromptValues};
use crate::work::agent::{
    AgentInstallation, CALLS_DIRECTORY, PlannedScript, ScriptWork, install_in_image, run_to_end,
};

/// Directory of the output of the installation.
const INSTALL_DIRECTORY: &str = "install";

impl IdeasRun<'_> {
    /// The image with the agent installed, if there is one, and it and the provider allow it.
    pub(super) async fn install_in_image(
        &mut self,
        provider: &dyn Provider,
        image: Image,
    ) -> Image {
        let ctx = self.ctx;
        let command = &ctx.ideas.command;
        let Some(agent) = &command.agent else { return image };
        let installation = AgentInstallation {
            agent: &agent.spec,
            env: &command.env,
            limit_sec: agent.install_sec(),
            settings: ctx.ideas.settings.provider.clone(),
            proxies: BuildProxies::of(&self.variables.environment),
            redactor: &self.attempt.redactor,
            labels: ctx.execution.labels.clone(),
        };
        let installed = install_in_image(provider, &image, installation).await;
        self.is_installed = installed.is_some();
        installed.unwrap_or(image)
    }

    /// Installs the agent in the environment, if there is one and the image does not have it.
    pub(super) async fn install_agent(&mut self) -> Result<(), PhaseInterrupt> {
        let ctx = self.ctx;
        let command = &ctx.ideas.command;
        let (Some(agent), Some(script)) = (&command.agent, InstallScript::of(command)) else {
            return Ok(());
        };
        if self.is_installed {
            return Ok(());
        }
        self.attempt.enter(Phase::AgentSetup);
        let redactor = self.attempt.redactor.clone();
        let installing = ScriptStage::Install { has_codes: script.has_codes() };
        let typed =
            |error: ScriptError| command::not_installed(error.into_error(installing, &redactor));
        let placing = self.attempt.running_environment().copy_to(script.uploads());
        let placed = with_timeout(COPY_LIMIT, "placing the install script", placing).await;
        placed
            .map_err(|failure| typed(ScriptError::Place { what: "the install script", failure }))?;
        let directory = ctx.execution.scratch.join(INSTALL_DIRECTORY);
        let files = ["stdout.txt", "stderr.txt"].map(|name| directory.join(name));
        let (root, work) = (&ctx.execution.scratch, &ctx.execution.scratch_work);
        let capture = Capture::new(root, files, &redactor, work);
        let capture = std::sync::Arc::new(capture);
        self.install_capture = Some(capture.clone());
        let limit = seconds(agent.install_sec());
        let planned = PlannedScript {
            work: ScriptWork::Command(InstallScript::argv()),
            env: self.variables.command.clone(),
            workdir: Some(REPOSITORY.to_owned()),
            user: None,
            limit,
            normal: NormalExit::Zero,
            keep_processes: false,
            clock: None,
            told: None,
        };
        let environment = self.attempt.running_environment();
        let ran = run_to_end(environment, planned, capture.clone(), pending()).await;
        let limit = ScriptLimit { limit, whose: None };
        let ended = ran.end.into_result(environment, &capture, limit, NormalExit::Zero).await;
        self.record_processes_left(ran.processes_left);
        ended.map_err(typed)?;
        self.attempt.end_phase()
    }

    /// Places the script of the command and the prompt of its agent.
    pub(super) async fn place_command(&mut self) -> Result<(), TrialError> {
        let uploads = self.command_uploads();
        let placing = self.attempt.running_environment().copy_to(uploads);
        let placed = with_timeout(COPY_LIMIT, "placing a command", placing).await;
        placed.map_err(|failure| {
            let error = ScriptError::Place { what: "the command", failure };
            crate::work::eval::failure::command_error(
                error,
                super::run::STAGE,
                &self.attempt.redactor,
            )
        })
    }

    fn command_uploads(&self) -> Vec<rollout_environment::Upload> {
        let command = &self.ctx.ideas.command;
        let mut uploads = variables::script_uploads(command::script(command));
        if let Some(agent) = &command.agent {
            uploads.extend(command::uploads(agent, &self.prompt_values(agent)));
        }
        uploads
    }

    /// Values for the prompt of the agent.
    fn prompt_values(&self, agent: &CommandAgent) -> PromptValues {
        let ideas = &self.ctx.ideas;
        let earlier = ideas
            .earlier
            .iter()
            .map(|dir| format!("- {}", variables::earlier_ideas_dir(&dir.name)));
        let earlier: Vec<_> = earlier.collect();
        let earlier = if earlier.is_empty() { "- none".to_owned() } else { earlier.join("\n") };
        [
            ("search", ideas.name.tree.clone()),
            ("node", ideas.name.node.clone()),
            ("commit", ideas.repository.commit().to_owned()),
            ("repository", REPOSITORY.to_owned()),
            ("logs", LOGS.to_owned()),
            ("metrics", agent.metrics.clone()),
            ("count", ideas.count.to_string()),
            ("ideas_dir", IDEAS.to_owned()),
            ("context_dir", PACK.to_owned()),
            ("earlier_ideas", earlier),
        ]
        .into()
    }

    /// Opens the gateway for the agent, if there is one.
    pub(super) async fn open_calls(&mut self) -> Result<(), TrialError> {
        let Some(agent) = &self.ctx.ideas.command.agent else { return Ok(()) };
        let calls = CommandCalls {
            servers: self.ctx.ideas.gateway.as_ref(),
            services: self.services,
            execution: &self.ctx.execution,
            directory: self.ctx.execution.scratch.join(CALLS_DIRECTORY),
            redactor: self.attempt.redactor.clone(),
        };
        let environment = self.attempt.environment.expect_running();
        let opened = command::open_calls(&mut self.models, agent, environment, calls).await;
        opened.map_err(|error| error.into_error(&self.attempt.redactor))
    }

    /// Ends the model calls and keeps their failure.
    pub(super) async fn close_calls(&mut self) {
        self.call_failure = self.call_failure.or_else(|| self.models.failure());
        self.models.close().await;
    }
}
