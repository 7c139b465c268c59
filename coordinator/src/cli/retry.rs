//! `rollout retry`.

use std::path::{Path, PathBuf};

use clap::Parser as _;
use rollout_protocol::exit::ExitCode;

use super::args::{Cli, Command, RetryArgs, RunArgs};
use super::error::CliError;
use super::invocation::Invocation;
use super::live::{self, LiveRun, ServerArgs};
#[cfg(feature = "nats")]
use super::nats::ServerAddress;
use super::output::Printer;
use super::run_place::CatalogAddress;
use super::{resume, run, search_dir};
use crate::engine::ReopenSelection;

/// Hint for the directory of a search.
const SEARCH_HINT: &str = "run the search's own `rollout tree run` command again: it retries what \
                           the infrastructure failed, and with `--rerun-evals` all evals of the \
                           current depth";

/// Runs the command.
pub(super) async fn retry(args: RetryArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let RetryArgs { run: run_dir, failed, trial, json, server, mut options, .. } = args;
    let reopen = match (failed, trial.is_empty()) {
        (true, _) => ReopenSelection::Failed,
        (false, true) => ReopenSelection::Infrastructure,
        (false, false) => ReopenSelection::Trials(trial),
    };
    let text = run_dir.to_string_lossy();
    if let Some(live) = LiveRun::find(&text, &server, "retry", SEARCH_HINT).await?
        && let Some(code) = live::retry(&live, &reopen, json, printer).await?
    {
        return Ok(code);
    }
    #[cfg(feature = "nats")]
    if ServerAddress::parse(&run_dir).is_some() {
        return Err(CliError::refused("cannot retry: the coordinator of the run does not run")
            .hint("retry in its run directory, or in its catalog: `s3://bucket/prefix#RUN`"));
    }
    options.extend(json.then(|| "--json".to_owned()).filter(|json| !options.contains(json)));
    let address = CatalogAddress::parse(&run_dir)?;
    add_server(&server, address.is_none().then_some(&run_dir), &mut options);
    if let Some(address) = address {
        #[cfg(feature = "nats")]
        return Box::pin(resume::retry_in_catalog(address, reopen, options, printer)).await;
        #[cfg(not(feature = "nats"))]
        return Err(resume::not_built(&address));
    }
    search_dir::refuse("retry", &run_dir, SEARCH_HINT)?;
    let again = Some(reopen.clone());
    let ran = run_again(&run_dir, again, options, printer).await;
    ran.map_err(|error| for_retry(error, &run_dir, &reopen))
}

/// Adds the server of this command to the options of a new session, if they need one: a run
/// directory keeps the address of its server unless that holds a password.
#[cfg(feature = "nats")]
pub(super) fn add_server(
    server: &ServerArgs,
    run_dir: Option<&PathBuf>,
    options: &mut Vec<String>,
) {
    const OPTION: &str = "--nats";
    let is_needed = run_dir.is_none_or(|run_dir| {
        let known = Invocation::read(run_dir);
        known.is_ok_and(|known| known.left_out.iter().any(|name| name == OPTION))
    });
    let is_given = options.iter().any(|word| is_option(word, OPTION));
    if let Some(url) = server.url.as_ref().filter(|_| is_needed && !is_given) {
        options.extend([OPTION.to_owned(), url.clone()]);
    }
}

/// Whether a word gives an option, with or without its value.
#[cfg(feature = "nats")]
fn is_option(word: &str, option: &str) -> bool {
    word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// A program without the queue has no servers.
#[cfg(not(feature = "nats"))]
pub(super) fn add_server(_: &ServerArgs, _: Option<&PathBuf>, _: &mut Vec<String>) {}

/// Runs the command that a run was started with again, with trials to reopen and further options.
pub(super) async fn run_again(
    run_dir: &Path,
    reopen: Option<ReopenSelection>,
    options: Vec<String>,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let Invocation { directory, arguments, left_out } = Invocation::read(run_dir)?;
    let missing: Vec<_> = left_out.iter().filter(|name| !options.contains(name)).collect();
    let (verb, selection) = match &reopen {
        Some(reopen) => ("retry", format!(" {}", option(reopen))),
        None => ("resume", String::new()),
    };
    if let Some(name) = missing.first() {
        return Err(CliError::usage(format!(
            "cannot {verb}: the run's value of `{name}` is not stored; give it again, as in \
             `rollout {verb} {}{selection} -- {name} VALUE`",
            run_dir.display(),
        )));
    }
    // Paths in the options are relative to it.
    if std::env::current_dir().ok().as_ref() != Some(&directory) {
        let directory = directory.display();
        return Err(CliError::usage(format!(
            "cannot {verb} here: the run was started in {directory}; run this command there"
        )));
    }
    let mut again = run_args(arguments.into_iter().chain(options))?;
    (again.reopen, again.is_again) = (reopen, true);
    let printer = printer.with_quiet(again.quiet);
    run::run(*again, &printer).await
}

/// An error of the run with hints for the command `rollout retry`, which takes options of the run
/// after `--` only.
fn for_retry(mut error: CliError, run_dir: &Path, reopen: &ReopenSelection) -> CliError {
    let run_dir = run_dir.display();
    let command = format!("rollout retry {run_dir} {}", option(reopen));
    let names_option = |hint: &String| hint.contains("`--store") || hint.contains("`--nats");
    match error.code {
        ExitCode::LockHeld => {
            error.hints = vec![format!(
                "wait until its owner ends, or take the run over: add `--force` after `--`, as in \
                 `{command} -- --force`"
            )];
            #[cfg(feature = "nats")]
            let error = error.hint(
                "if its coordinator runs on another host, name its NATS server with `--nats`: the \
                 trials then get another try within its session",
            );
            error
        }
        ExitCode::StaleCopy => {
            error.hints = vec!["retry in the directory that has them".to_owned()];
            error
        }
        ExitCode::PlanMismatch => {
            error.hints = vec![format!(
                "undo the changes, or run these trials again as well: `rollout retry {run_dir} \
                 --trial KEY`, with one `--trial` for every trial that runs again"
            )];
            error
        }
        _ if error.hints.iter().any(names_option) => error.hint(&format!(
            "add options of `rollout run` after `--`, as in `{command} -- --store URL`"
        )),
        _ => error,
    }
}

/// The options of a run.
fn run_args(words: impl Iterator<Item = String>) -> Result<Box<RunArgs>, CliError> {
    let command = ["rollout".to_owned(), "run".to_owned()];
    let parsed = Cli::try_parse_from(command.into_iter().chain(words))
        .map_err(|error| CliError::usage(format!("cannot read the run's options: {error}")))?;
    match parsed.command {
        Command::Run(args) => Ok(args),
        _ => Err(CliError::usage("cannot use the stored options: they are not those of a run")),
    }
}

/// The option of `rollout retry` that selects these trials.
fn option(reopen: &ReopenSelection) -> String {
    match reopen {
        ReopenSelection::Failed => "--failed".to_owned(),
        ReopenSelection::Infrastructure => "--infra".to_owned(),
        ReopenSelection::Trials(trials) => format!("--trial {}", trials.join(" --trial ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_hint_repeats_selection_of_command_line() {
        let trials = vec!["a/d/t__1".to_owned(), "a/d/t__2".to_owned()];
        assert_eq!(option(&ReopenSelection::Failed), "--failed");
        assert_eq!(option(&ReopenSelection::Infrastructure), "--infra");
        let named = option(&ReopenSelection::Trials(trials));
        assert_eq!(named, "--trial a/d/t__1 --trial a/d/t__2");
    }

    /// The hints of `rollout retry jobs/demo --failed` for a refusal of the run.
    fn hints(code: ExitCode, hint: &str) -> Vec<String> {
        let refused = CliError::new(code, "refused").hint(hint);
        for_retry(refused, Path::new("jobs/demo"), &ReopenSelection::Failed).hints
    }

    #[test]
    fn retry_with_changed_plan_hints_trials_by_name() {
        let run = "use `--name` for a new run, or `rollout retry jobs/demo --failed`";
        assert_eq!(
            hints(ExitCode::PlanMismatch, run),
            ["undo the changes, or run these trials again as well: `rollout retry jobs/demo \
              --trial KEY`, with one `--trial` for every trial that runs again"]
        );
    }

    #[test]
    fn retry_of_held_run_hints_force_of_run() {
        let held = hints(ExitCode::LockHeld, "use `--name` for another run, or `--force`");
        assert_eq!(
            held[0],
            "wait until its owner ends, or take the run over: add `--force` after `--`, as in \
             `rollout retry jobs/demo --failed -- --force`"
        );
        let copy = hints(ExitCode::StaleCopy, "or use `--name` for another run");
        assert_eq!(copy, ["retry in the directory that has them"]);
        let no_store = hints(ExitCode::Failure, "give its new place with `--store URL`");
        assert_eq!(no_store.len(), 2);
        assert!(no_store[1].contains("after `--`"), "{no_store:?}");
        assert_eq!(hints(ExitCode::Failure, "free space"), ["free space"]);
    }

    #[cfg(feature = "nats")]
    #[test]
    fn option_with_longer_name_is_another_option() {
        for given in ["--nats", "--nats=nats://far"] {
            assert!(is_option(given, "--nats"), "{given}");
        }
        for other in ["--nats-creds", "--nats-creds=file", "nats", "--na"] {
            assert!(!is_option(other, "--nats"), "{other}");
        }
    }

    #[test]
    fn retry_with_quiet_option_prints_errors_only() {
        let words = ["job.yaml", "-q"].map(str::to_owned);
        let args = run_args(words.into_iter()).expect("valid");
        assert!(Printer::from_environment(false).with_quiet(args.quiet).is_quiet());
        assert!(Printer::from_environment(true).with_quiet(false).is_quiet());
    }
}
