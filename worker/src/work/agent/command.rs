//! The commands of a search: their limits, and the files, model calls and work of their agents.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use rollout_base::secrets::Redactor;
use rollout_environment::{Environment, Upload, proxies};
use rollout_gateway::agents::{self, INSTRUCTION_VARIABLE};
use rollout_protocol::Timestamp;
use rollout_protocol::error::{
    ErrorClass as Class, ErrorCode as Code, ErrorType as Type, RetryClass as Retry, TrialError,
};
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::eval::{CommandAgent, EvalCommand, EvalStage};
use rollout_protocol::spec::gateway::GatewaySpec;
use rollout_protocol::spec::prompt;

use super::install::constants;
use super::{CallsRequest, KeptSession, ModelCalls, ScriptEnv, ScriptWork, ShellAgent, ToldLimits};
use crate::executor::errors::SetupError;
use crate::executor::{ExecutionContext, ExecutionServices};

/// File with the prompt of the agent.
const PROMPT: &str = "/commands/prompt.md";

/// The install script of the agent.
const INSTALL: &str = "/commands/install.sh";

/// Directory of the scripts.
const COMMANDS: &str = "/commands";

/// Directory for logs of the agent.
const AGENT_LOGS: &str = "/logs/agent";

/// Values of the placeholders of a prompt.
pub(in crate::work) type PromptValues = BTreeMap<&'static str, String>;

/// Context of the model calls of a command.
pub(in crate::work) struct CommandCalls<'a> {
    /// The model servers of the search.
    pub(in crate::work) servers: Option<&'a GatewaySpec>,
    /// Services of the worker.
    pub(in crate::work) services: &'a ExecutionServices,
    /// The execution.
    pub(in crate::work) execution: &'a ExecutionContext,
    /// Directory for the files of the calls.
    pub(in crate::work) directory: PathBuf,
    /// Masks secrets in these files.
    pub(in crate::work) redactor: Redactor,
}

/// The files of an agent, which are placed before its command begins.
pub(in crate::work) fn uploads(agent: &CommandAgent, values: &PromptValues) -> Vec<Upload> {
    let text = prompt::render(&agent.prompt, values);
    let bytes = Bytes::from(text.into_bytes());
    vec![
        Upload::Dir { path: AGENT_LOGS.to_owned() },
        Upload::File { path: PROMPT.to_owned(), bytes, executable: false },
    ]
}

/// The text that is placed as the script of a command.
pub(in crate::work) fn script(command: &EvalCommand) -> &str {
    match command.agent.as_ref().map(|agent| &agent.spec.kind) {
        Some(AgentKind::Script { execute, .. }) => execute.as_deref().unwrap_or_default(),
        Some(_) => "",
        None => &command.script,
    }
}

/// The variables that an agent has besides those of its command.
pub(in crate::work) fn variables() -> ScriptEnv {
    [(INSTRUCTION_VARIABLE.to_owned(), PROMPT.to_owned())].into()
}

/// Adds to the variables of a command its limits from now on and, for its agent, the addresses of model
/// servers, which no proxy is asked for. Returns the limits.
pub(in crate::work) fn complete(
    env: &mut ScriptEnv,
    command: &EvalCommand,
    models: &ModelCalls,
    limit: Duration,
) -> ToldLimits {
    let addresses = models.env();
    proxies::exempt(env, addresses.values().map(String::as_str));
    env.extend(addresses);
    let budget = command.agent.as_ref().and_then(|agent| agent.budget.as_ref());
    let told = ToldLimits::new(limit, Timestamp::now(), budget);
    env.extend(told.variables());
    told
}

/// Opens the gateway for the agent of a command and makes it reachable from its environment.
pub(in crate::work) async fn open_calls(
    models: &mut ModelCalls,
    agent: &CommandAgent,
    environment: &dyn Environment,
    calls: CommandCalls<'_>,
) -> Result<(), SetupError> {
    let CommandCalls { servers, services, execution, directory, redactor } = calls;
    let (agent, budget) = (&agent.spec, agent.budget);
    let request = CallsRequest { agent, servers, budget, services, execution, directory, redactor };
    if models.open(request).await? {
        let route = environment.listener_route().await.map_err(SetupError::GatewayRoute)?;
        models.serve(route).await?;
    }
    Ok(())
}

/// The end of a command, given that of its work: an agent whose requests were not answered could not
/// do it.
pub(in crate::work) async fn check_answers(
    models: &ModelCalls,
    stage: EvalStage,
    ended: Result<(), TrialError>,
) -> Result<(), TrialError> {
    let is_over = ended.is_ok();
    models.check_answers(ended).await.map_err(|error| match is_over {
        true => TrialError { message: format!("{}: {}", stage.as_str(), error.message), ..error },
        false => error,
    })
}

/// The end of a command, given that of its work: it has failed if the model calls of its agent
/// exceeded their budget.
pub(in crate::work) fn check_budget(
    models: &ModelCalls,
    stage: EvalStage,
    ended: Result<(), TrialError>,
) -> Result<(), TrialError> {
    models.check_budget(ended).map_err(|error| match error.code == Code::BUDGET_EXCEEDED {
        true => TrialError { message: format!("{}: {}", stage.as_str(), error.message), ..error },
        false => error,
    })
}

/// The work of a command: its script, run by `argv`, or the loop of the agent `shell`.
pub(in crate::work) fn work(
    command: &EvalCommand,
    servers: Option<&GatewaySpec>,
    models: &ModelCalls,
    argv: Vec<String>,
) -> Result<ScriptWork, TrialError> {
    let spec = command.agent.as_ref().map(|agent| &agent.spec);
    match spec.map(|spec| (spec, &spec.kind)) {
        None | Some((_, AgentKind::Script { .. })) => Ok(ScriptWork::Command(argv)),
        Some((spec, AgentKind::Shell(_))) => {
            let agent = ShellAgent::new(spec, servers, models.gateway(), &KeptSession::default());
            let missing = || refused("the agent `shell` has no model server");
            agent.map(ScriptWork::Shell).ok_or_else(missing)
        }
        Some((spec, _)) => {
            Err(refused(&format!("the agent `{}` cannot do the work of a search", spec.name)))
        }
    }
}

fn refused(message: &str) -> TrialError {
    TrialError::new(Type::TaskInvalid, Code::REFUSED, Class::Task, Retry::Permanent, message)
}

/// The install script of an agent and the constants that it reads: agents with equal ones are
/// installed once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::work) struct InstallScript {
    text: String,
    constants: ScriptEnv,
    has_codes: bool,
}

impl InstallScript {
    /// The install script of a command's agent, if it has one.
    pub(in crate::work) fn of(command: &EvalCommand) -> Option<Self> {
        let spec = &command.agent.as_ref()?.spec;
        let AgentKind::Script { install: Some(text), .. } = &spec.kind else { return None };
        let has_codes = agents::has_install_codes(&spec.kind);
        Some(Self { text: text.clone(), constants: constants(&command.env, text), has_codes })
    }

    /// Whether it ends with codes for their reasons.
    pub(in crate::work) const fn has_codes(&self) -> bool {
        self.has_codes
    }

    /// The uploads that place it.
    pub(in crate::work) fn uploads(&self) -> Vec<Upload> {
        let bytes = Bytes::copy_from_slice(self.text.as_bytes());
        vec![
            Upload::FreshDir { path: COMMANDS.to_owned() },
            Upload::File { path: INSTALL.to_owned(), bytes, executable: true },
        ]
    }

    /// The command that runs it.
    pub(in crate::work) fn argv() -> Vec<String> {
        agents::bash(INSTALL.to_owned())
    }
}

/// The error of an agent that could not be installed: it says nothing about an idea.
pub(in crate::work) fn not_installed(error: TrialError) -> TrialError {
    TrialError { class: Class::Infrastructure, ..error }
}
