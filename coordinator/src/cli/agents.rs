//! `rollout agents`: the agents of the catalogue.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use clap::{Args, Subcommand};
use rollout_protocol::exit::ExitCode;
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::gateway::ModelDialect;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::error::CliError;
use super::output::Printer;
use crate::config::{
    AgentCatalogue, AgentEntry, BUILT_IN_AGENTS, BuiltInAgent, SessionEntry, nearest,
};
use crate::events::sinks::terminal::table;

/// Subcommands of `rollout agents`.
#[derive(Debug, Subcommand)]
pub(super) enum AgentsCommand {
    /// List the agents: built-in ones and those of the catalogue
    List(AgentListArgs),
    /// Print an agent with its scripts
    Show(AgentShowArgs),
    /// Check the entries of a directory, or of the catalogue
    Check(AgentCheckArgs),
}

/// Arguments of `rollout agents list`.
#[derive(Debug, Args)]
pub(super) struct AgentListArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Arguments of `rollout agents show`.
#[derive(Debug, Args)]
pub(super) struct AgentShowArgs {
    /// Name of the agent
    name: String,

    #[command(flatten)]
    source: SourceArgs,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Arguments of `rollout agents check`.
#[derive(Debug, Args)]
pub(super) struct AgentCheckArgs {
    #[command(flatten)]
    source: SourceArgs,
}

#[derive(Debug, Args)]
struct SourceArgs {
    /// Directory with further agents, a TOML file each
    #[arg(long = "agents", value_name = "DIR")]
    directory: Option<PathBuf>,
}

impl AgentsCommand {
    /// Runs the command.
    pub(super) async fn run(self, printer: &Printer) -> Result<ExitCode, CliError> {
        match self {
            Self::List(args) => list(&args, printer),
            Self::Show(args) => show(&args, printer),
            Self::Check(args) => check(&args, printer).await,
        }
    }
}

fn catalogue(source: &SourceArgs) -> Result<AgentCatalogue, CliError> {
    let Some(directory) = source.directory.as_deref() else {
        return Ok(AgentCatalogue::shipped().clone());
    };
    AgentCatalogue::with_directory(directory).map_err(|error| {
        let what = format!("cannot use the agents in {}", Path::new(directory).display());
        CliError::config(what, &error)
    })
}

fn list(args: &AgentListArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let catalogue = catalogue(&args.source)?;
    if args.json {
        let built_in = BUILT_IN_AGENTS.iter().map(built_in_document);
        let entries: Vec<_> = built_in.chain(catalogue.entries().map(document)).collect();
        printer.json(&entries)?;
        return Ok(ExitCode::Success);
    }
    let built_in = BUILT_IN_AGENTS.iter().map(|agent| {
        let (name, summary) = (agent.name.to_owned(), agent.summary.to_owned());
        vec![name, "built in".to_owned(), dialects(agent.dialects), summary]
    });
    let row = |entry: &AgentEntry| {
        let tried = if entry.untried { ", untried" } else { "" };
        let version = entry.version.clone().unwrap_or_default();
        vec![
            entry.name.clone(),
            version,
            dialects(&entry.dialects),
            format!("{}{tried}", entry.summary),
        ]
    };
    let rows = built_in.chain(catalogue.entries().map(row)).collect();
    printer.data(
        &(table::aligned(&["agent", "version", "dialects", "summary"], rows, 4, printer.out.width)
            + "\n"),
    )?;
    Ok(ExitCode::Success)
}

fn dialects(dialects: &[ModelDialect]) -> String {
    let dialects: Vec<_> = dialects.iter().map(ToString::to_string).collect();
    dialects.join(", ")
}

fn show(args: &AgentShowArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    if let Some(agent) = BuiltInAgent::find(&args.name) {
        match args.json {
            true => printer.json(&built_in_document(agent))?,
            false => printer.data(&built_in_text(agent))?,
        }
        return Ok(ExitCode::Success);
    }
    let catalogue = catalogue(&args.source)?;
    let entry = catalogue.find(&args.name).ok_or_else(|| {
        let error = CliError::usage(format!("the catalogue has no agent `{}`", args.name));
        let built_in = BUILT_IN_AGENTS.iter().map(|agent| agent.name);
        let known = built_in.chain(catalogue.entries().map(|entry| entry.name.as_str()));
        match nearest(&args.name, known) {
            Some(near) => error.hint(&format!("did you mean `{near}`?")),
            None => error.hint("`rollout agents list` lists them"),
        }
    })?;
    if args.json {
        printer.json(&document(entry))?;
    } else {
        printer.data(&text(entry))?;
    }
    Ok(ExitCode::Success)
}

/// An agent that the program has itself, with the keys of an entry of the catalogue.
fn built_in_document(agent: &BuiltInAgent) -> Value {
    json!({
        "name": agent.name,
        "built_in": true,
        "summary": agent.summary,
        "homepage": null,
        "version": null,
        "untried": false,
        "dialects": agent.dialects,
        "accepts": agent.options,
        "sessions": [],
        "session_calls": null,
        "env": {},
        "install": null,
        "execute": null,
    })
}

fn built_in_text(agent: &BuiltInAgent) -> String {
    let none_if_empty = |text: String| if text.is_empty() { "none".to_owned() } else { text };
    let lines = [
        format!("{}: {}", agent.name, agent.summary),
        "version   built in".to_owned(),
        format!("dialects  {}", none_if_empty(dialects(agent.dialects))),
        format!("options   {}", none_if_empty(agent.options.join(", "))),
    ];
    lines.join("\n") + "\n"
}

fn document(entry: &AgentEntry) -> Value {
    json!({
        "name": entry.name,
        "built_in": false,
        "summary": entry.summary,
        "homepage": entry.homepage,
        "version": entry.version,
        "untried": entry.untried,
        "dialects": entry.dialects,
        "accepts": entry.accepts.iter().map(|option| option.as_str()).collect::<Vec<_>>(),
        "sessions": entry.sessions,
        "session_calls": entry.session_calls.as_ref().map(SessionEntry::format),
        "env": entry.env,
        "install": entry.install,
        "execute": entry.execute,
    })
}

fn text(entry: &AgentEntry) -> String {
    let list = |items: &[String]| {
        if items.is_empty() { "none".to_owned() } else { items.join(", ") }
    };
    let accepts: Vec<String> =
        entry.accepts.iter().map(|option| option.as_str().to_owned()).collect();
    let env: Vec<_> = entry.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut lines = vec![
        format!("{}: {}", entry.name, entry.summary),
        format!("homepage  {}", entry.homepage.as_deref().unwrap_or("none")),
        format!("version   {}", entry.version.as_deref().unwrap_or("none")),
        format!("dialects  {}", dialects(&entry.dialects)),
        format!("options   {}", list(&accepts)),
        format!("sessions  {}", list(&entry.sessions)),
        format!("variables {}", list(&env)),
    ];
    if let Some(install) = &entry.install {
        lines.push(format!("\ninstall:\n{}", install.trim()));
    }
    lines.push(format!("\nexecute:\n{}\n", entry.execute.trim()));
    lines.join("\n")
}

/// Checks the entries, and the syntax of their scripts as they are run.
async fn check(args: &AgentCheckArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let catalogue = catalogue(&args.source)?;
    let mut failed = Vec::new();
    for entry in catalogue.entries() {
        let AgentKind::Script { install, execute } = entry.scripts() else { continue };
        for (name, script) in [("install", install), ("execute", execute)] {
            let Some(script) = script else { continue };
            if let Err(why) = check_syntax(&script).await? {
                failed.push(format!("{}: `{name}` is no valid bash script: {why}", entry.name));
            }
        }
    }
    if failed.is_empty() {
        printer.data(&format!("{} agents are valid\n", catalogue.entries().count()))?;
        return Ok(ExitCode::Success);
    }
    let mut error = CliError::new(ExitCode::Config, "agents are invalid");
    error.details = failed;
    Err(error)
}

/// The syntax error of a script, if it has one.
async fn check_syntax(script: &str) -> Result<Result<(), String>, CliError> {
    let failed = |error: std::io::Error| CliError::failure("cannot run bash", &error);
    let mut bash = tokio::process::Command::new("bash")
        .arg("-n")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = bash.stdin.take() {
        // Bash may end before it has read everything; its exit code tells.
        let _closed = stdin.write_all(script.as_bytes()).await;
    }
    let ended = bash.wait_with_output().await.map_err(failed)?;
    let said = String::from_utf8_lossy(&ended.stderr);
    Ok(if ended.status.success() { Ok(()) } else { Err(said.trim().to_owned()) })
}
