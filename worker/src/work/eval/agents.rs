//! Agents that do the work of an eval's commands.

use std::future::pending;

use rollout_environment::{BuildProxies, Image, Provider};
use rollout_gateway::CallFailure;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::spec::eval::{CommandAgent, EvalCommand, EvalStage};
use rollout_protocol::spec::timeout::seconds;

use super::decision::{self, Decision};
use super::failure;
use super::run::EvalRun;
use super::variables::{self, IDEA, LOGS, REPOSITORY};
use crate::executor::errors::{ScriptError, ScriptStage};
use crate::executor::{COPY_LIMIT, NormalExit, PhaseInterrupt, ScriptLimit, with_timeout};
use crate::work::agent::command::{self, CommandCalls, InstallScript, PromptValues};
use crate::work::agent::{
    AgentInstallation, CALLS_DIRECTORY, PlannedScript, ScriptWork, blame_server, install_in_image,
    run_to_end,
};

/// The stages that an agent may do.
const AGENT_STAGES: [EvalStage; 2] = [EvalStage::Implement, EvalStage::Review];

impl EvalRun<'_> {
    /// The image with the agents installed, as far as they and the provider allow it.
    pub(super) async fn install_agents(&mut self, provider: &dyn Provider, image: Image) -> Image {
        let (ctx, mut image) = (self.ctx, image);
        let commands = AGENT_STAGES.iter().filter_map(|stage| ctx.eval.commands.command(*stage));
        for command in commands {
            let (Some(agent), Some(script)) = (&command.agent, InstallScript::of(command)) else {
                continue;
            };
            if self.installed.contains(&script) {
                continue;
            }
            let installation = AgentInstallation {
                agent: &agent.spec,
                env: &command.env,
                limit_sec: agent.install_sec(),
                settings: ctx.eval.settings.provider.clone(),
                proxies: BuildProxies::of(&self.variables.environment),
                redactor: &self.attempt.redactor,
                labels: ctx.execution.labels.clone(),
            };
            if let Some(installed) = install_in_image(provider, &image, installation).await {
                image = installed;
                self.installed.push(script);
            }
        }
        image
    }

    /// Installs the agent of a command in the environment, unless the image has it.
    pub(super) async fn install_agent(
        &mut self,
        stage: EvalStage,
        command: &EvalCommand,
    ) -> Result<(), PhaseInterrupt> {
        let (Some(agent), Some(script)) = (&command.agent, InstallScript::of(command)) else {
            return Ok(());
        };
        if self.installed.contains(&script) {
            return Ok(());
        }
        self.attempt.enter(Phase::AgentSetup);
        let (env, user) = (self.variables.for_stage(stage), self.ctx.eval.user.clone());
        let limit = seconds(agent.install_sec());
        let planned = PlannedScript {
            work: ScriptWork::Command(InstallScript::argv()),
            env,
            workdir: Some(REPOSITORY.to_owned()),
            user,
            limit,
            normal: NormalExit::Zero,
            keep_processes: false,
            clock: None,
            told: None,
        };
        let redactor = self.attempt.redactor.clone();
        let installing = ScriptStage::Install { has_codes: script.has_codes() };
        let typed =
            |error: ScriptError| command::not_installed(error.into_error(installing, &redactor));
        let placing = self.attempt.running_environment().copy_to(script.uploads());
        let placed = with_timeout(COPY_LIMIT, "placing the install script", placing).await;
        placed
            .map_err(|failure| typed(ScriptError::Place { what: "the install script", failure }))?;
        let capture = self.start_capture(install_directory(stage));
        let environment = self.attempt.running_environment();
        let ran = run_to_end(environment, planned, capture.clone(), pending()).await;
        let limit = ScriptLimit { limit, whose: None };
        let ended = ran.end.into_result(environment, &capture, limit, NormalExit::Zero).await;
        self.record_processes_left(ran.processes_left);
        ended.map_err(typed)?;
        self.installed.push(script);
        self.attempt.end_phase()
    }

    /// Values for the prompt of an agent.
    pub(super) fn prompt_values(&self, agent: &CommandAgent) -> PromptValues {
        let eval = &self.ctx.eval;
        [
            ("search", eval.name.tree.clone()),
            ("node", eval.name.node.clone()),
            ("eval", eval.name.eval.clone()),
            ("commit", eval.repository.commit().to_owned()),
            ("repository", REPOSITORY.to_owned()),
            ("logs", LOGS.to_owned()),
            ("metrics", agent.metrics.clone()),
            ("idea", String::from_utf8_lossy(&self.idea).trim_end().to_owned()),
            ("idea_file", IDEA.to_owned()),
            ("decision_file", variables::DECISION.to_owned()),
        ]
        .into()
    }

    /// Opens the gateway for the agent of a command, if it has one.
    pub(super) async fn open_calls(
        &mut self,
        stage: EvalStage,
        command: &EvalCommand,
    ) -> Result<(), TrialError> {
        let Some(agent) = &command.agent else { return Ok(()) };
        self.calling = Some(stage);
        let calls = CommandCalls {
            servers: self.ctx.eval.gateway.as_ref(),
            services: self.services,
            execution: &self.ctx.execution,
            directory: self.ctx.execution.scratch.join(stage.as_str()).join(CALLS_DIRECTORY),
            redactor: self.attempt.redactor.clone(),
        };
        let environment = self.attempt.environment.expect_running();
        let opened = command::open_calls(&mut self.models, agent, environment, calls).await;
        opened.map_err(|error| error.into_error(&self.attempt.redactor))
    }

    /// Ends the model calls of the command that runs, and keeps their records.
    pub(super) async fn close_calls(&mut self) {
        self.call_failure = self.models.failure();
        self.models.close().await;
        let Some(stage) = self.calling.take() else { return };
        let finished = self.models.finish(&format!("{}/", stage.as_str())).await;
        self.call_files.extend(finished.files);
        if let Some(summary) = finished.summary {
            self.gateway.insert(stage, *summary);
        }
    }

    /// Checks what the agent of a review left.
    pub(super) async fn read_decision(
        &mut self,
        stage: EvalStage,
        command: &EvalCommand,
    ) -> Result<(), TrialError> {
        if stage != EvalStage::Review || command.agent.is_none() {
            return Ok(());
        }
        let read = decision::read(self.attempt.running_environment()).await;
        let redactor = &self.attempt.redactor;
        match read {
            Ok(Decision::Approved) => Ok(()),
            Ok(Decision::Rejected(reason)) => Err(failure::rejected(&reason, redactor)),
            Ok(Decision::Unclear(why)) => {
                Err(self.models.blame_server(failure::no_decision(&why, redactor)))
            }
            Err(failure) => {
                Err(failure::command_error(ScriptError::Exec(failure), stage, redactor))
            }
        }
    }

    /// The error of an idea that changed nothing because its agent got no answer of a model.
    pub(super) fn unanswered_error(&self) -> Option<TrialError> {
        self.ctx.eval.commands.implement.agent.as_ref()?;
        self.implement_failure.map(unanswered)
    }
}

/// The error of an agent that changed nothing because of this failure of its calls.
fn unanswered(failure: CallFailure) -> TrialError {
    let (kind, code) = (ErrorType::AgentExecutionFailed, ErrorCode::NON_ZERO_EXIT);
    let text = "implement: the agent changed nothing";
    let error = TrialError::new(kind, code, ErrorClass::Agent, RetryClass::Permanent, text);
    blame_server(Some(failure), error.in_phase(Phase::AgentExecution))
}

/// Directory of the output of an installation.
const fn install_directory(stage: EvalStage) -> &'static str {
    match stage {
        EvalStage::Review => "review-install",
        _ => "implement-install",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_that_changes_nothing_without_an_answer_is_no_verdict_on_idea() {
        for (failure, code, retry) in [
            (CallFailure::Unanswered, ErrorCode::MODEL_UNREACHABLE, RetryClass::Transient),
            (CallFailure::Refused, ErrorCode::MODEL_REFUSED, RetryClass::Permanent),
        ] {
            let error = unanswered(failure);
            assert_eq!((&error.code, error.retry), (&code, retry));
            assert_eq!(error.class, ErrorClass::Infrastructure, "{error}");
            assert_eq!(error.phase, Phase::AgentExecution, "{error}");
            assert!(error.message.ends_with("implement: the agent changed nothing"), "{error}");
        }
    }
}
