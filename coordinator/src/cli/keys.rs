//! `rollout keys`: the key reference of job, task and search files.

use clap::{Args, ValueEnum};
use rollout_protocol::exit::ExitCode;

use super::error::CliError;
use super::output::Printer;
use crate::config::reference::KeyReference;
use crate::config::{JOB_REFERENCE, TASK_REFERENCE, TREE_REFERENCE};
use crate::events::sinks::terminal::table;

/// Print every key of a kind of file, with its type, default and meaning
#[derive(Debug, Args)]
pub(super) struct KeysArgs {
    /// Kind of file
    file: FileKind,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    /// Print a Markdown table
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FileKind {
    /// Job files, `job.yaml`
    Job,
    /// Task files, `task.toml`
    Task,
    /// Search files, `tree.yaml`
    Tree,
}

/// Runs the command.
pub(super) fn run(args: &KeysArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let reference: &KeyReference = match args.file {
        FileKind::Job => &JOB_REFERENCE,
        FileKind::Task => &TASK_REFERENCE,
        FileKind::Tree => &TREE_REFERENCE,
    };
    let text = if args.json {
        let text = serde_json::to_string_pretty(&reference.keys)
            .map_err(|error| CliError::failure("cannot write the keys as JSON", &error))?;
        text + "\n"
    } else if args.markdown {
        reference.markdown()
    } else {
        render(reference, printer.out.width)
    };
    printer.data(&text)?;
    Ok(ExitCode::Success)
}

fn render(reference: &KeyReference, width: Option<usize>) -> String {
    let has_formats = reference.keys.iter().any(|entry| entry.format.is_some());
    let mut header = vec!["key", "type", "default"];
    if has_formats {
        header.push("format");
    }
    header.push("meaning");
    let rows = reference.keys.iter().map(|entry| {
        let mut row = vec![entry.key.as_str(), entry.kind, entry.default];
        if has_formats {
            row.push(entry.format.map_or("both", |format| format.as_str()));
        }
        row.push(entry.meaning);
        row.into_iter().map(str::to_owned).collect()
    });
    table::aligned(&header, rows.collect(), header.len(), width) + "\n"
}
