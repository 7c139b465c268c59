//! `commands` and `environment` of search files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rollout_protocol::spec::environment::ProviderSpec;
use rollout_protocol::spec::resources::Resources;
use rollout_worker::environment::descriptor::{self, CapabilitySupport};

use super::super::diagnostics::ErrorKind;
use super::super::elements::variables::{self, Variable};
use super::super::elements::{environment, resources};
use super::super::reader::{Field, Fields};
use super::super::task::docker_image;

keys! {
    /// The keys of `commands`.
    pub(crate) table CommandsKeys {
        ideas: "table", "", "Generates ideas for a node, one file each.";
        implement: "table", "", "Implements an idea in the checkout that it runs in.";
        tests: "table", "", "Checks that the change works.";
        review: "table", "", "Checks that the change matches the idea.";
        sweep: "table", "", "Measures the change and writes `results_file`.",
            "ideas" => CommandKeys::ALL;
    }

    /// The keys of a command.
    pub(crate) table CommandKeys {
        run: "text", "", "The script.";
        timeout_sec: "number", "3600", "Its time limit, s.";
        env: "table", "", "Its variables.";
        environment: "table", "`environment`", "Its environment.";
    }

    /// The keys of a command's environment.
    pub(crate) table PlaceKeys {
        kind as "type": descriptor::NAMES, descriptor::DEFAULT_KIND.as_str(),
            "Provider of the environment.";
        docker_image: "text", "", "Its image.";
        context: "path", "", "Directory of a Dockerfile, instead of `docker_image`.";
        provider_config: "table", "", "Settings of the provider.",
            "" => resources::PlaceResourceKeys::ALL;
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
    /// `run`: a script.
    pub run: String,
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
}

/// Reads the commands. Missing required commands are errors.
pub(super) fn read(field: &Field<'_>, default: &CommandEnvironment) -> SearchCommands {
    let nothing = || SearchCommand {
        run: String::new(),
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
    let needed = |fields: &mut Fields<'_>, key| {
        let field = fields.take(key);
        field.required("a mapping with `run`");
        command(&field, default, None).unwrap_or_else(nothing)
    };
    let implement = needed(&mut fields, CommandsKeys::implement);
    let shared = Some(&implement.environment);
    let commands = SearchCommands {
        ideas: needed(&mut fields, CommandsKeys::ideas),
        tests: command(&fields.take(CommandsKeys::tests), default, shared),
        review: command(&fields.take(CommandsKeys::review), default, shared),
        sweep: needed(&mut fields, CommandsKeys::sweep),
        implement,
    };
    fields.finish();
    commands
}

/// Reads a command. If there is a `shared` environment, the command must run in it.
fn command(
    field: &Field<'_>,
    default: &CommandEnvironment,
    shared: Option<&CommandEnvironment>,
) -> Option<SearchCommand> {
    let mut fields = field.mapping().filter(|_| field.is_present())?;
    let run = fields.take(CommandKeys::run);
    run.required("a script");
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
        run: run.non_empty_string().unwrap_or_default(),
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
