//! `rollout retry`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Parser as _};
use rollout_protocol::exit::ExitCode;
use serde::{Deserialize, Serialize};

use super::args::{Cli, Command};
use super::error::CliError;
use super::output::Printer;
use super::run;
use crate::engine::Reopen;
use crate::results::files::layout;

/// Options of `rollout run` whose values may be secrets: they are not written down.
const SECRET: [&str; 5] = ["--agent-env", "--ae", "--verifier-env", "--ve", "--nats"];

/// Run settled trials of a run again, under the run's own options
///
/// What they came to before is kept as a superseded execution. Everything else of the run stays as
/// it is, and trials that are still owed run, too. Needs the job file where it was.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true))]
pub(super) struct RetryArgs {
    /// The run's directory
    #[arg(value_name = "RUN_DIR")]
    run_dir: PathBuf,

    /// All trials that failed
    #[arg(long, group = "which")]
    failed: bool,

    /// Trials that failed by the infrastructure's fault
    #[arg(long, group = "which")]
    infra: bool,

    /// This trial, whatever it came to: `agent/dataset/task__attempt`, or its item; can be repeated
    #[arg(long, value_name = "KEY", group = "which")]
    trial: Vec<String>,

    /// Options of `rollout run` beside those that the run was started with
    #[arg(last = true, value_name = "OPTION")]
    options: Vec<String>,
}

/// The command line that a run was started with.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Invocation {
    /// Where.
    directory: PathBuf,
    /// The arguments of `rollout run`.
    arguments: Vec<String>,
    /// Options whose values are not kept.
    #[serde(default)]
    left_out: Vec<String>,
}

impl Invocation {
    /// That of this process, if it is text.
    pub(super) fn of(arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let directory = std::env::current_dir().ok()?;
        let all = super::args::with_run(arguments.collect());
        let words: Option<Vec<String>> =
            all.into_iter().skip(2).map(|word| word.into_string().ok()).collect();
        let (arguments, left_out) = without_secrets(words?);
        Some(Self { directory, arguments, left_out })
    }

    fn read(run_dir: &Path) -> Result<Self, CliError> {
        let path = run_dir.join(layout::INVOCATION);
        let what = format!("cannot tell how the run in {} was started", run_dir.display());
        let text = std::fs::read(&path).map_err(|error| {
            CliError::failure(what.clone(), &error)
                .hint("start the run once more with `rollout run`: it writes down its options")
        })?;
        serde_json::from_slice(&text).map_err(|error| CliError::failure(what, &error))
    }
}

/// Leaves out options with values that may be secrets.
fn without_secrets(words: Vec<String>) -> (Vec<String>, Vec<String>) {
    let (mut kept, mut left_out) = (Vec::new(), Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (word.clone(), None),
        };
        // A server's address may have a password in it.
        if !SECRET.contains(&name.as_str()) {
            kept.push(word);
            continue;
        }
        let value = value.or_else(|| words.next()).unwrap_or_default();
        if name == "--nats" && !value.contains('@') {
            kept.extend([name, value]);
        } else {
            left_out.push(name);
        }
    }
    (kept, left_out)
}

/// Runs the command.
pub(super) async fn retry(args: RetryArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let RetryArgs { run_dir, failed, trial, options, .. } = args;
    let reopen = match (failed, trial.is_empty()) {
        (true, _) => Reopen::Failed,
        (false, true) => Reopen::Infrastructure,
        (false, false) => Reopen::Trials(trial),
    };
    let Invocation { directory, arguments, left_out } = Invocation::read(&run_dir)?;
    let missing: Vec<_> = left_out.iter().filter(|name| !options.contains(name)).collect();
    if let Some(name) = missing.first() {
        return Err(CliError::usage(format!(
            "the run was started with `{name}`, whose value is not kept: give it again, as in \
             `rollout retry {} --failed -- {name} VALUE`",
            run_dir.display()
        )));
    }
    // Paths among the options are relative to it.
    if std::env::current_dir().ok().as_ref() != Some(&directory) {
        let directory = directory.display();
        return Err(CliError::usage(format!(
            "the run was started in {directory}: run this command there"
        )));
    }
    let words = ["rollout".to_owned(), "run".to_owned()].into_iter().chain(arguments);
    let parsed = Cli::try_parse_from(words.chain(options))
        .map_err(|error| CliError::usage(format!("cannot read the run's options: {error}")))?;
    let Command::Run(mut again) = parsed.command else {
        return Err(CliError::usage("the options are not those of a run"));
    };
    again.reopen = Some(reopen);
    run::run(*again, printer).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn invocation_keeps_no_values_of_secrets() {
        let all = "job.yaml --agent-env KEY=secret --nats nats://h:1 --ve=A=b -n 4";
        let (kept, left_out) = without_secrets(words(all));
        assert_eq!(kept, words("job.yaml --nats nats://h:1 -n 4"));
        assert_eq!(left_out, ["--agent-env", "--ve"]);
        let (kept, left_out) = without_secrets(words("job.yaml --nats nats://u:p@h:1"));
        assert_eq!((kept, left_out), (words("job.yaml"), words("--nats")));
    }
}
