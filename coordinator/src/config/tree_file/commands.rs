//! `commands` and `environment` of search files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rollout_environment::descriptor::{self, CapabilitySupport};
use rollout_protocol::spec::environment::ProviderSpec;
use rollout_protocol::spec::eval::{CommandKind, EvalStage};
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::HostRule;

use super::super::diagnostics::ErrorKind;
use super::super::elements::proxies::{self, ProxyConfig, ProxyKeys};
use super::super::elements::step_agent::StepAgentKeys;
use super::super::elements::variables::{self, Variable};
use super::super::elements::{environment, resources, timeouts};
use super::super::reader::Field;
use super::super::task::docker_image;
use super::agents::{AgentReading, StepAgent};

keys! {
    /// The keys of `commands`.
    pub(crate) table CommandsKeys {
        ideas: Value("table"), "", "Generates ideas for a node, one file each.";
        implement: Value("table"), "", "Implements an idea in the checkout that it runs in.";
        tests: Value("table"), "", "Checks that the change works.";
        review: Value("table"), "", "Checks that the change matches the idea.";
        sweep: Value("table"), "", "Measures the change and writes `results_file`.",
            "ideas" => CommandKeys::ALL, "ideas" => StepAgentKeys::ALL, "tests" => CommandKeys::ALL;
    }

    /// The keys of a command.
    pub(crate) table CommandKeys {
        run: Value("text"), "", "The script; a command with an agent has none.";
        timeout_sec: Value("number"), "3600", "Its time limit, s.";
        env: Value("table"), "", "Its variables.";
        environment: Value("table"), "`environment`", "Its environment.";
    }

    /// The keys of a command's environment.
    pub(crate) table PlaceKeys {
        kind as "type": Value(descriptor::NAMES), descriptor::DEFAULT_KIND.as_str(),
            "Provider of the environment.";
        docker_image: Value("text"), "", "Its image.";
        context: Source("path", HostSource::OperatorPath), "", "Directory of a Dockerfile, instead of `docker_image`.";
        provider_config: Value("table"), "", "Settings of the provider.",
            "" => resources::PlaceResourceKeys::ALL;
        proxy: Value("table"), "none",
            "Proxies of the network, for image builds, installations and commands.",
            "proxy" => ProxyKeys::ALL;
        start_grace_sec: Value("seconds"), "until its own programs have settled",
            "Time between the start of the environment and its first command.";
    }
}

/// The command that generates ideas.
pub(super) const IDEAS_COMMAND: &str = "ideas";

/// Default time limit of a command, seconds.
const DEFAULT_TIMEOUT_SEC: f64 = 3600.0;

/// Variables set for commands, besides those that begin with `ROLLOUT_`.
const PROVIDED_VARIABLES: &[&str] = &["AGENTIC_OUTPUT_DIR", "AGENTIC_RESULTS_CSV"];

/// The commands of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchCommands {
    /// `ideas`: generates ideas for a node.
    pub ideas: SearchCommand,
    /// `implement`: implements an idea in the checkout that it runs in.
    pub implement: SearchCommand,
    /// `tests`: checks that the change works.
    pub tests: Option<SearchCommand>,
    /// `review`: checks that the change matches the idea.
    pub review: Option<SearchCommand>,
    /// `sweep`: measures the change.
    pub sweep: SearchCommand,
}

/// A command of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchCommand {
    /// `run`: a script; empty if there is an agent.
    pub run: String,
    /// The agent that does the work instead.
    pub agent: Option<Box<StepAgent>>,
    /// `timeout_sec`.
    pub timeout_sec: f64,
    /// `env`: unexpanded values.
    pub env: BTreeMap<String, Variable>,
    /// `environment`, or the file's.
    pub environment: CommandEnvironment,
}

/// The environment of a command.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandEnvironment {
    /// Provider of the environment.
    pub provider: ProviderSpec,
    /// `docker_image`.
    pub docker_image: Option<String>,
    /// `context`: a directory with a Dockerfile; relative to the file.
    pub context: Option<PathBuf>,
    /// `cpus`, `memory_mb`, `storage_mb`.
    pub resources: Resources,
    /// `proxy`.
    pub proxies: ProxyConfig,
    /// `start_grace_sec`.
    pub start_grace_sec: Option<f64>,
}

impl SearchCommands {
    /// The commands that are set, with their names.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &SearchCommand)> {
        let Self { ideas, implement, tests, review, sweep } = self;
        [
            (IDEAS_COMMAND, Some(ideas)),
            ("implement", Some(implement)),
            ("tests", tests.as_ref()),
            ("review", review.as_ref()),
            ("sweep", Some(sweep)),
        ]
        .into_iter()
        .filter_map(|(name, command)| Some((name, command?)))
    }

    /// Sets whether images and builds of their environments are checked, for providers that can, and the
    /// registries that are listed then.
    pub fn set_build_guard(&mut self, registries: Option<&[HostRule]>) {
        let Self { ideas, implement, tests, review, sweep } = self;
        let optional = tests.iter_mut().chain(review.iter_mut());
        for command in [ideas, implement, sweep].into_iter().chain(optional) {
            command.environment.provider.set_build_guard(registries);
        }
    }
}

/// Reads the commands. Missing required commands are errors.
pub(super) fn read(
    field: &Field<'_>,
    default: &CommandEnvironment,
    agents: &mut AgentReading<'_>,
) -> SearchCommands {
    let nothing = || SearchCommand {
        run: String::new(),
        agent: None,
        timeout_sec: DEFAULT_TIMEOUT_SEC,
        env: BTreeMap::new(),
        environment: default.clone(),
    };
    field.required("a mapping with `ideas`, `implement` and `sweep`");
    let Some(mut fields) = field.mapping().filter(|_| field.is_present()) else {
        return SearchCommands {
            ideas: nothing(),
            implement: nothing(),
            tests: None,
            review: None,
            sweep: nothing(),
        };
    };
    let mut needed = |key, stage, agents: &mut AgentReading<'_>| {
        let field = fields.take(key);
        field.required("a mapping with `run` or `agent`");
        command(&field, stage, default, None, agents).unwrap_or_else(nothing)
    };
    let implement = needed(CommandsKeys::implement, EvalStage::Implement, agents);
    let ideas = needed(CommandsKeys::ideas, EvalStage::Ideas, agents);
    let sweep = needed(CommandsKeys::sweep, EvalStage::Sweep, agents);
    let mut optional = |key, stage| {
        command(&fields.take(key), stage, default, Some(&implement.environment), agents)
    };
    let tests = optional(CommandsKeys::tests, EvalStage::Tests);
    let review = optional(CommandsKeys::review, EvalStage::Review);
    let commands = SearchCommands { ideas, implement, tests, review, sweep };
    fields.finish();
    commands
}

/// Reads a command. If there is a `shared` environment, the command must run in it.
fn command(
    field: &Field<'_>,
    stage: EvalStage,
    default: &CommandEnvironment,
    shared: Option<&CommandEnvironment>,
    agents: &mut AgentReading<'_>,
) -> Option<SearchCommand> {
    let mut fields = field.mapping().filter(|_| field.is_present())?;
    let may_be_agent = stage.kind() == Some(CommandKind::Llm);
    let has_agent = may_be_agent && fields.take(StepAgentKeys::agent).is_present();
    let agent = may_be_agent.then(|| agents.read(stage, field, &mut fields)).flatten();
    let run = fields.take(CommandKeys::run);
    match (has_agent, may_be_agent) {
        (true, _) if run.is_present() => {
            run.reject(ErrorKind::Conflict, "a script beside `agent`", "only one of the two");
        }
        (true, _) => {}
        (false, true) => drop(run.required("a script, or `agent` instead")),
        (false, false) => drop(run.required("a script")),
    }
    let seconds = "a number of seconds above 0, at most 1e9";
    let timeout = fields.take(CommandKeys::timeout_sec).number(seconds, |v| v > 0.0 && v <= 1e9);
    let env = fields.take(CommandKeys::env);
    for (name, value) in env.entries().unwrap_or_default() {
        if PROVIDED_VARIABLES.contains(&name) || name.starts_with("ROLLOUT_") {
            let expected = "another name: Rollout sets this variable for commands";
            value.reject(ErrorKind::BadValue, "this name", expected);
        }
    }
    let own = fields.take(CommandKeys::environment);
    let environment = if own.is_present() { read_environment(&own) } else { default.clone() };
    if shared.is_some_and(|shared| *shared != environment) {
        let (at, found) = match own.is_present() {
            true => (&own, "another environment than that of `commands.implement`"),
            false => (field, "no environment, while `commands.implement` has one of its own"),
        };
        let expected = "the environment of `commands.implement`: both run in one checkout";
        at.reject(ErrorKind::Conflict, found, expected);
    }
    let command = SearchCommand {
        run: run.non_empty_string().filter(|_| !has_agent).unwrap_or_default(),
        agent: agent.map(Box::new),
        timeout_sec: timeout.unwrap_or(DEFAULT_TIMEOUT_SEC),
        env: variables::read(&env),
        environment,
    };
    fields.finish();
    Some(command)
}

/// Reads an environment; the default provider is Docker.
pub(super) fn read_environment(field: &Field<'_>) -> CommandEnvironment {
    let mut environment = CommandEnvironment {
        provider: environment::default_provider(),
        docker_image: None,
        context: None,
        resources: Resources::default(),
        proxies: ProxyConfig::default(),
        start_grace_sec: None,
    };
    let Some(mut fields) = field.mapping().filter(|_| field.is_present()) else {
        return environment;
    };
    let kind = environment::provider(&fields.take(PlaceKeys::kind));
    let config = fields.take(PlaceKeys::provider_config);
    if let Some(kind) = kind {
        (environment.provider, _) = environment::provider_config(kind, &config);
    }
    let (image, context) = (fields.take(PlaceKeys::docker_image), fields.take(PlaceKeys::context));
    environment.docker_image = docker_image(&image);
    environment.context = context.path();
    environment.resources = resources::read_command_resources(&mut fields);
    environment.proxies = proxies::read(&fields.take(PlaceKeys::proxy));
    environment.start_grace_sec =
        timeouts::read_start_grace(&fields.take(PlaceKeys::start_grace_sec));
    fields.finish();
    let images = kind.map(|kind| descriptor::for_kind(kind).capabilities.images);
    match (images, image.is_present(), context.is_present()) {
        (_, true, true) => {
            context.reject(ErrorKind::Conflict, "also `docker_image`", "only one of the two");
        }
        (Some(CapabilitySupport::No(why)), true, false) => {
            image.reject(ErrorKind::Conflict, "an image", format!("none: {why}"));
        }
        (Some(CapabilitySupport::No(why)), false, true) => {
            context.reject(ErrorKind::Conflict, "a Dockerfile", format!("none: {why}"));
        }
        (Some(CapabilitySupport::Yes), false, false) => field.reject(
            ErrorKind::MissingKey,
            "neither `docker_image` nor `context`",
            "the image that commands run in, or the directory of its Dockerfile",
        ),
        _ => {}
    }
    environment
}
