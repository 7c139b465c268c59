//! `rollout check`.

use std::path::PathBuf;

use clap::Args;
use rollout_base::supervise;
use rollout_environment::descriptor;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::spec::task::{NetworkPolicy, TaskFormat};

use super::env_file;
use super::error::CliError;
use super::output::Printer;
use super::own_words;
use crate::config::without_logins_of;
use crate::events::sinks::terminal::Style;
use crate::results::escape;
use crate::sources::check::{self, CheckReport, CheckRequest, TaskExplanation, TaskReport};

/// Blanks before the lines that continue a finding on a narrow terminal.
const FINDING_INDENT: usize = 4;

/// Blanks before the text of a fact.
const FACT_INDENT: usize = 12;

/// A line, and the blanks before those that continue it on a narrow terminal.
type CheckLine = (String, usize);

/// Check a task, or all tasks of a directory, without running anything
///
/// Prints errors (exit code 3), warnings, and how a task is read: its format and the reason for it,
/// its image, its limits.
///
/// A missing solution is a warning: `rollout run --strict` refuses such tasks for the oracle only.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Directory of a task, or of tasks
    path: PathBuf,

    /// Format of the task files
    #[arg(long, value_name = "auto|rollout|harbor", default_value = "auto", value_parser = format)]
    format: FormatOption,

    /// Provider to check the tasks for
    #[arg(long, value_name = descriptor::NAMES, default_value = descriptor::DEFAULT_KIND.as_str(), value_parser = provider)]
    environment: ProviderKind,

    /// File of variables, one `NAME=VALUE` a line, that count as set beside those of this process
    #[arg(long, value_name = "FILE")]
    env_file: Option<PathBuf>,

    /// Print everything as one JSON document
    #[arg(long)]
    json: bool,
}

/// A format; `None` detects it from the files.
#[derive(Debug, Clone, Copy)]
struct FormatOption(Option<TaskFormat>);

/// Runs the command.
pub(super) async fn run(args: CheckArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let CheckArgs { path, format: FormatOption(format), environment: provider, env_file, json } =
        args;
    let request = CheckRequest { path, format, provider };
    let given = match &env_file {
        Some(file) => env_file::read(file).map_err(CliError::usage)?,
        None => Vec::new(),
    };
    let is_set =
        move |name: &str| given.iter().any(|(set, _)| set == name) || std::env::var(name).is_ok();
    let checked = supervise::blocking(move || check::check(&request, &is_set)).await;
    let report = checked.map_err(|error| CliError::failure("cannot check the tasks", &error))?;
    let text = if json {
        let text = serde_json::to_string_pretty(&report)
            .map_err(|error| CliError::failure("cannot write the findings as JSON", &error))?;
        text + "\n"
    } else {
        render(&report, printer.out)
    };
    // A path that was meant as an address may have a login.
    printer.data(&without_logins_of(&own_words(), &text))?;
    Ok(if report.n_errors() > 0 { ExitCode::Config } else { ExitCode::Success })
}

fn format(text: &str) -> Result<FormatOption, String> {
    match text {
        "auto" => Ok(FormatOption(None)),
        "rollout" => Ok(FormatOption(Some(TaskFormat::Rollout))),
        "harbor" => Ok(FormatOption(Some(TaskFormat::Harbor))),
        _ => Err("expected auto, rollout or harbor".to_owned()),
    }
}

fn provider(text: &str) -> Result<ProviderKind, String> {
    let found = descriptor::by_name(text).map(|descriptor| descriptor.kind);
    found.ok_or_else(|| format!("expected {}", descriptor::names()))
}

/// The findings as text. Of several tasks only those with findings or a guessed format are shown.
fn render(report: &CheckReport, style: Style) -> String {
    let alone = report.tasks.len() == 1;
    let mut lines = Vec::new();
    for task in &report.tasks {
        let is_guess = task.explained.as_ref().is_some_and(|explained| explained.format.guessed);
        if alone || is_guess || !task.errors.is_empty() || !task.warnings.is_empty() {
            lines.extend(task_lines(task, alone));
        }
    }
    lines.extend(report.errors.iter().flat_map(|error| indented("error: ", &error.to_string())));
    lines.extend(report.warnings.iter().flat_map(|w| indented("warning: ", &w.to_string())));
    let count = |count: usize, noun: &str| match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    };
    let totals = format!(
        "{}: {}, {}",
        count(report.tasks.len(), "task"),
        count(report.n_errors(), "error"),
        count(report.n_warnings(), "warning"),
    );
    lines.push((totals, FINDING_INDENT));
    let shown = lines.iter().map(|(line, indent)| style.wrapped_at(&escape::line(line), *indent));
    shown.map(|line| line + "\n").collect()
}

fn task_lines(task: &TaskReport, alone: bool) -> Vec<CheckLine> {
    let first = match &task.explained {
        Some(explained) => {
            let format = &explained.format;
            format!("{}: format {}, {}", task.task, format.name, format.reason)
        }
        None => format!("{}:", task.task),
    };
    let mut lines = vec![(first, FINDING_INDENT)];
    if let Some(explained) = task.explained.as_ref().filter(|_| alone) {
        lines.extend(explain(explained));
    }
    lines.extend(task.errors.iter().flat_map(|error| indented("  error: ", &error.to_string())));
    lines.extend(task.warnings.iter().flat_map(|w| indented("  warning: ", &w.to_string())));
    lines
}

fn indented(word: &str, text: &str) -> Vec<CheckLine> {
    let mut lines = text.lines();
    let first = lines.next().map(|line| format!("{word}{line}"));
    let lines = first.into_iter().chain(lines.map(|line| format!("  {line}")));
    lines.map(|line| (line, FINDING_INDENT)).collect()
}

fn explain(explained: &TaskExplanation) -> Vec<CheckLine> {
    let TaskExplanation { resources, timeouts, .. } = explained;
    let none = || "none".to_owned();
    let mib = |amount: Option<u64>| amount.map_or_else(none, |amount| format!("{amount} MiB"));
    let sec = |limit: Option<f64>| limit.map_or_else(none, |limit| format!("{limit} s"));
    let network = match &explained.network {
        NetworkPolicy::Public => "public".to_owned(),
        NetworkPolicy::NoNetwork => "none".to_owned(),
        NetworkPolicy::Allowlist(hosts) => hosts.join(", "),
    };
    let verifier = if explained.separate_verifier {
        "separate environment"
    } else {
        "environment of the agent"
    };
    let mut rows = vec![
        ("image", explained.image.clone()),
        (
            "ceilings",
            format!(
                "cpus {}, memory {}, storage {}, gpus {}",
                resources.cpu_ceiling().map_or_else(none, |cpus| cpus.to_string()),
                mib(resources.memory_ceiling_mb()),
                mib(resources.storage_ceiling_mb()),
                resources.gpus,
            ),
        ),
        (
            "limits",
            format!(
                "build {}, install {}, agent {}, verifier {}",
                sec(Some(timeouts.build_sec)),
                sec(Some(timeouts.install_sec)),
                sec(timeouts.agent_sec),
                sec(Some(timeouts.verifier_sec)),
            ),
        ),
        ("network", network),
        ("verifier", verifier.to_owned()),
    ];
    if !explained.steps.is_empty() {
        rows.push(("steps", explained.steps.join(", ")));
    }
    if !explained.variables.is_empty() {
        let names: Vec<&str> = explained.variables.iter().map(String::as_str).collect();
        rows.push(("variables", format!("{} (a job lists them in `task_env`)", names.join(", "))));
    }
    rows.into_iter().map(|(what, text)| (format!("  {what:<10}{text}"), FACT_INDENT)).collect()
}
