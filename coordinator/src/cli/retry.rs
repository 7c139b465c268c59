//! `rollout retry`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Arg, CommandFactory as _, FromArgMatches as _, Id};
use rollout_engine::ReopenSelection;
use rollout_engine::journal::RunLayout;
use rollout_protocol::exit::ExitCode;

use super::args::{Cli, Command, RetryArgs};
use super::error::CliError;
use super::hint_command::{self, HintedRun, RunAction};
use super::invocation::{self, Invocation};
use super::live::{self, LiveRun, ServerArgs};
#[cfg(feature = "nats")]
use super::nats::ServerAddress;
use super::output::Printer;
use super::run_place::CatalogAddress;
use super::tree::TreeCommand;
use super::{resume, run};

/// Hint for the directory of a search on the way to a coordinator, which is never asked.
const SEARCH_HINT: &str = "`rollout retry DIR --infra` retries the evals of a search";

/// Runs the command.
pub(super) async fn retry(args: RetryArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let reopen = args.selection();
    let RetryArgs { run: run_dir, json, server, mut options, .. } = args;
    let text = run_dir.to_string_lossy();
    let is_search = RunLayout::is_search(&run_dir);
    if is_search {
        let mut session = with_json(options.clone(), json);
        add_server(&server, Some(&run_dir), &mut session);
        check_search(&run_dir, &reopen, &session)?;
    } else if let Some(live) = LiveRun::find(&text, &server, "retry", SEARCH_HINT).await? {
        live.refuse_options("retry", &options).await?;
        if let Some(code) = live::retry(&live, &reopen, json, printer).await? {
            return Ok(code);
        }
    }
    #[cfg(feature = "nats")]
    if ServerAddress::parse(&run_dir).is_some() {
        return Err(CliError::refused("cannot retry: the coordinator of the run does not run")
            .hint("retry in its run directory, or in its catalog: `s3://bucket/prefix#RUN`"));
    }
    options = with_json(options, json);
    let address = CatalogAddress::parse(&run_dir)?;
    add_server(&server, address.is_none().then_some(&run_dir), &mut options);
    if let Some(address) = address {
        #[cfg(feature = "nats")]
        return Box::pin(resume::retry_in_catalog(address, reopen, options, printer)).await;
        #[cfg(not(feature = "nats"))]
        return Err(resume::not_built(&address));
    }
    let again = Some(reopen.clone());
    let ran = run_again(&run_dir, again, options.clone(), printer).await;
    ran.map_err(|error| match is_search {
        true => error,
        false => for_retry(error, &run_dir, &reopen, &options),
    })
}

/// The options of a session that prints JSON, if it does.
fn with_json(mut options: Vec<String>, json: bool) -> Vec<String> {
    options.extend(json.then(|| "--json".to_owned()).filter(|json| !options.contains(json)));
    options
}

/// The options of a session and further ones without a value.
fn with_further<'a>(given: &'a [String], further: &[&'a str]) -> Vec<&'a str> {
    let mut all: Vec<&str> = given.iter().map(String::as_str).collect();
    all.extend(further.iter().filter(|option| !given.iter().any(|word| word == *option)));
    all
}

/// The options of a session, and options with an address that the user fills in, which replace those of
/// the session.
fn with_addresses<'a>(given: &'a [String], options: &[&'a str]) -> Vec<&'a str> {
    let (mut all, mut words) = (Vec::new(), given.iter().map(String::as_str));
    while let Some(word) = words.next() {
        if options.contains(&word) {
            let _replaced = words.next();
        } else if !options.iter().any(|option| invocation::is_option(word, option)) {
            all.push(word);
        }
    }
    all.extend(options.iter().flat_map(|option| [*option, "URL"]));
    all
}

/// Whether a hint names an option, not one whose name only begins with it.
fn is_named(option: &str, hint: &str) -> bool {
    hint.contains(&format!("`{option}`")) || hint.contains(&format!("`{option} "))
}

/// Refuses a selection that a search does not have: what the infrastructure failed in it is pending,
/// and the failure of an eval is a result.
fn check_search(
    run_dir: &Path,
    reopen: &ReopenSelection,
    options: &[String],
) -> Result<(), CliError> {
    if *reopen == ReopenSelection::Infrastructure {
        return Ok(());
    }
    let run = HintedRun::Directory(run_dir.to_owned());
    let infra = RunAction::Retry(ReopenSelection::Infrastructure);
    let infra = hint_command::command(&run, &infra, &with_further(options, &[]));
    let rerun = with_further(options, &["--rerun-evals"]);
    let all = hint_command::command(&run, &RunAction::Resume, &rerun);
    let what = format!("cannot retry these evals of the search in `{}`", run_dir.display());
    Err(CliError::usage(what)
        .hint(&format!("run {infra} to retry what the infrastructure failed"))
        .hint(&format!("run {all} to run all evals of the current depth again")))
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
        known.is_ok_and(|known| known.left_out.iter().any(|option| option.is(OPTION)))
    });
    let is_given = options.iter().any(|word| invocation::is_option(word, OPTION));
    if let Some(url) = server.url.as_ref().filter(|_| is_needed && !is_given) {
        options.extend([OPTION.to_owned(), url.clone()]);
    }
}

/// A program without the queue has no servers.
#[cfg(not(feature = "nats"))]
pub(super) fn add_server(_: &ServerArgs, _: Option<&PathBuf>, _: &mut Vec<String>) {}

/// Runs the command that a run or a search was started with again, with trials to reopen and further
/// options.
pub(super) async fn run_again(
    run_dir: &Path,
    reopen: Option<ReopenSelection>,
    options: Vec<String>,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let invocation = Invocation::read(run_dir)?;
    check(&invocation, run_dir, reopen.as_ref(), &options)?;
    check_options(&invocation.command, &options)?;
    let session = options.clone();
    match parse(invocation.words(options))? {
        Command::Run(mut again) => {
            (again.reopen, again.again) = (reopen, Some(run_dir.to_owned()));
            again.session_options = session;
            let printer = printer.with_quiet(again.quiet);
            Box::pin(run::run(*again, &printer)).await
        }
        Command::Tree(TreeCommand::Run(mut again)) => {
            (again.again, again.session_options) = (Some(run_dir.to_owned()), session);
            let printer = printer.with_quiet(again.quiet);
            Box::pin(TreeCommand::Run(again).run(&printer)).await
        }
        _ => Err(CliError::usage("cannot use the stored options: they are of another command")),
    }
}

/// Refuses to run a stored command without an option that is not stored, or in another directory.
fn check(
    invocation: &Invocation,
    run_dir: &Path,
    reopen: Option<&ReopenSelection>,
    options: &[String],
) -> Result<(), CliError> {
    let (verb, action) = match reopen {
        Some(reopen) => ("retry", RunAction::Retry(reopen.clone())),
        None => ("resume", RunAction::Resume),
    };
    let run = HintedRun::Directory(run_dir.to_owned());
    // All of them: nothing has been done with them.
    let command = || hint_command::command(&run, &action, &with_further(options, &[]));
    let mut left_out = invocation.left_out.iter();
    if let Some(option) = left_out.find(|option| !invocation::is_given(option, options)) {
        return Err(CliError::usage(format!(
            "cannot {verb}: the stored command has no value of `{}`; give it again, as in {}",
            option.shown(),
            command()
        )));
    }
    // Paths in the options are relative to it.
    if std::env::current_dir().ok().as_ref() != Some(&invocation.directory) {
        let directory = invocation.directory.display();
        let what = format!("cannot {verb} here: the run was started in {directory}");
        return Err(CliError::usage(what).hint(&format!("run {}", command())));
    }
    Ok(())
}

/// An error of the run with hints for the command `rollout retry`, which takes options of the run
/// after `--` only.
fn for_retry(
    mut error: CliError,
    run_dir: &Path,
    reopen: &ReopenSelection,
    options: &[String],
) -> CliError {
    let command = |words: &[&str]| {
        let run = HintedRun::Directory(run_dir.to_owned());
        hint_command::command(&run, &RunAction::Retry(reopen.clone()), words)
    };
    match error.code {
        ExitCode::LockHeld => {
            error.command_hints.clear();
            error.hints = vec![format!(
                "wait until its owner ends, or take the run over: add `--force` after `--`, as in {}",
                command(&with_further(options, &["--force"]))
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
        _ => {
            let mut named = vec!["--store", "--nats"];
            named.retain(|option| error.hints.iter().any(|hint| is_named(option, hint)));
            let needs_credentials = error.hints.iter().any(|hint| hint.contains("`--nats-"));
            let add = "add options of `rollout run` after `--`";
            match named.is_empty() {
                true if needs_credentials => error.hint(add),
                true => error,
                false => error
                    .hint(&format!("{add}, as in {}", command(&with_addresses(options, &named)))),
            }
        }
    }
}

/// Refuses options of this session that exclude each other: the last one would replace the others.
fn check_options(command: &[String], options: &[String]) -> Result<(), CliError> {
    let words = command.iter().chain(options).map(String::as_str);
    let parsed = Cli::command()
        .args_override_self(true)
        .try_get_matches_from(std::iter::once("rollout").chain(words));
    match parsed {
        // Without the stored options, others may be missing.
        Err(error) if error.kind() == ErrorKind::ArgumentConflict => Err(unreadable(&error)),
        _ => Ok(()),
    }
}

/// The command of a stored command line. An option replaces earlier ones that it repeats or excludes:
/// those of this session count.
fn parse(words: Vec<String>) -> Result<Command, CliError> {
    let program = Cli::command()
        .args_override_self(true)
        .mut_subcommand("run", replace_excluded)
        .mut_subcommand("tree", |tree| tree.mut_subcommand("run", replace_excluded));
    let parsed = program.try_get_matches_from(words);
    let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map(|cli| cli.command).map_err(|error| unreadable(&error))
}

/// The command with options that replace earlier options which they exclude, and are not refused.
fn replace_excluded(command: clap::Command) -> clap::Command {
    let is_option = |arg: &&Arg| !arg.is_positional();
    let excluded_by = |arg: &Arg| -> Vec<Id> {
        let excluded = command.get_arg_conflicts_with(arg).into_iter().filter(is_option);
        excluded.map(|arg| arg.get_id().clone()).collect()
    };
    let options = command.get_arguments().filter(is_option);
    let excluded: HashMap<Id, Vec<Id>> =
        options.map(|arg| (arg.get_id().clone(), excluded_by(arg))).collect();
    command.mut_args(|arg| {
        let excluded = excluded.get(arg.get_id()).cloned().unwrap_or_default();
        arg.overrides_with_all(excluded)
    })
}

fn unreadable(error: &clap::Error) -> CliError {
    CliError::usage(format!("cannot read the run's options: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::RunArgs;
    use crate::results::view::RunDirectory;
    use crate::workloads::repair::{self, RepairRequest};

    fn run_args(words: &str) -> Box<RunArgs> {
        let words = words.split(' ').map(str::to_owned).collect();
        match parse(words).expect("valid") {
            Command::Run(args) => args,
            other => panic!("{other:?}"),
        }
    }

    /// The hints of `rollout retry jobs/demo --failed` for a refusal of the run.
    fn hints(code: ExitCode, hint: &str) -> Vec<String> {
        let refused = CliError::new(code, "refused").hint(hint);
        for_retry(refused, Path::new("jobs/demo"), &ReopenSelection::Failed, &[]).hints
    }

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn hint_of_retry_replaces_the_store_that_the_user_gave() {
        let reopen = selection("--failed");
        for given in ["-n 4 --store OLD", "--store=OLD -n 4"] {
            let refused = CliError::new(ExitCode::Failure, "refused")
                .hint("give its new place with `--store URL`");
            let hints = for_retry(refused, Path::new("jobs/demo"), &reopen, &words(given)).hints;
            let expected = "`rollout retry jobs/demo --failed -- -n 4 --store URL`";
            assert!(hints[1].ends_with(expected), "{hints:?}");
        }
    }

    #[test]
    fn hint_of_retry_adds_only_the_addresses_that_the_refusal_names() {
        let reopen = selection("--failed");
        let given = words("--store s3://b/x --nats=nats://old:1");
        for (hint, expected) in [
            ("check its address in `--nats` or `V`", "--store s3://b/x --nats URL"),
            ("choose another with `--store URL`", "--nats nats://old:1 --store URL"),
            ("use the `--store` of the server in `--nats URL`", "--store URL --nats URL"),
        ] {
            let refused = CliError::new(ExitCode::Failure, "refused").hint(hint);
            let hints = for_retry(refused, Path::new("jobs/demo"), &reopen, &given).hints;
            let expected = format!("`rollout retry jobs/demo --failed -- {expected}`");
            assert!(hints[1].ends_with(&expected), "{hints:?}");
        }
        let credentials = hints(ExitCode::Failure, "check the credentials: `--nats-user`");
        assert_eq!(credentials[1], "add options of `rollout run` after `--`");
    }

    #[test]
    fn hint_of_retry_repeats_what_the_user_gave() {
        let reopen = selection("--failed --agent a");
        let given = words("-n 4 --accept-changed");
        let hinted = |code, hint: &str| {
            let refused = CliError::new(code, "refused").hint(hint);
            for_retry(refused, Path::new("jobs/demo"), &reopen, &given).hints.join("\n")
        };
        let same = "rollout retry jobs/demo --failed --agent a -- -n 4 --accept-changed";
        let held = hinted(ExitCode::LockHeld, "");
        assert!(held.contains(&format!("`{same} --force`")), "{held}");
        let store = hinted(ExitCode::Failure, "give its new place with `--store URL`");
        assert!(store.contains(&format!("`{same} --store URL`")), "{store}");
        let search = check_search(Path::new("jobs/tree"), &reopen, &words("--json"));
        assert_eq!(
            search.expect_err("no selection of a search").hints,
            [
                "run `rollout retry jobs/tree --infra -- --json` to retry what the infrastructure \
                 failed",
                "run `rollout resume jobs/tree -- --json --rerun-evals` to run all evals of the \
                 current depth again"
            ]
        );
    }

    #[test]
    fn refusal_before_the_session_repeats_its_options() {
        let temp = tempfile::tempdir().expect("a directory");
        let (path, given) = (temp.path(), words("--accept-changed -n 4 --ae B=secret"));
        let refusal = |directory: PathBuf, left_out: &[&str]| {
            let stored = serde_json::json!({
                "directory": directory, "arguments": ["job.yaml"], "left_out": left_out
            });
            std::fs::write(path.join("invocation.json"), stored.to_string()).expect("written");
            let invocation = Invocation::read(path).expect("stored");
            let refused = check(&invocation, path, None, &given).expect_err("refused");
            [vec![refused.message], refused.hints].concat().join("\n")
        };
        let again = format!("rollout resume {} -- --accept-changed -n 4", path.display());
        let current = std::env::current_dir().expect("a directory");
        let lacking = refusal(current, &["--agent-env=A"]);
        assert!(lacking.contains(&again) && lacking.contains("${B:?}"), "{lacking}");
        let elsewhere = refusal("/".into(), &["--agent-env=B"]);
        assert!(elsewhere.contains(&again) && elsewhere.contains("${B:?}"), "{elsewhere}");
        assert!(!elsewhere.contains("secret"), "{elsewhere}");
    }

    /// The selection of `rollout retry DIR` with these options.
    fn selection(options: &str) -> ReopenSelection {
        let words = format!("rollout retry jobs/demo {options}");
        match parse(words.split(' ').map(str::to_owned).collect()).expect("valid") {
            Command::Retry(args) => args.selection(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn retry_options_give_selection_and_hint_gives_them_back() {
        for options in [
            "--failed",
            "--infra",
            "--trial a/d/t__1 --trial a/d/t__2",
            "--agent a",
            "--failed --agent a --agent b --task d/t",
            "--infra --task t",
        ] {
            let (action, run) = (RunAction::Retry(selection(options)), Path::new("jobs/demo"));
            let command = hint_command::command(&HintedRun::Directory(run.into()), &action, &[]);
            assert_eq!(command.line, format!("rollout retry jobs/demo {options}"));
        }
        for refused in ["", "--failed --infra", "--agent a --trial k", "--failed --trial k"] {
            let words = format!("rollout retry jobs/demo {refused}");
            let words = words.split(' ').filter(|word| !word.is_empty()).map(str::to_owned);
            assert!(parse(words.collect()).is_err(), "{refused}");
        }
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

    #[test]
    fn option_of_session_replaces_stored_option() {
        let args = run_args("rollout run job.yaml --fail-under 0.5 -a x --fail-under=0.7 -a y");
        assert_eq!(args.fail_under, Some(0.7));
        let settings = args.keys.settings().expect("valid");
        assert_eq!(settings.len(), 2, "both agents");
    }

    #[test]
    fn flag_of_session_may_repeat_stored_flag() {
        let args = run_args("rollout run job.yaml --json -q --json --no-wait -q --no-wait");
        assert!(args.json && args.quiet && args.no_wait);
        let words = "rollout tree run t.yaml --json -q --json -q";
        match parse(words.split(' ').map(str::to_owned).collect()).expect("valid") {
            Command::Tree(TreeCommand::Run(args)) => assert!(args.quiet),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn option_of_session_replaces_stored_option_that_it_excludes() {
        let args = run_args("rollout run job.yaml --no-wait --force");
        assert!(args.force && !args.no_wait);
        let args = run_args("rollout run job.yaml --quiet --log-level debug");
        assert!(args.log_level.is_some() && !args.quiet);
        let args = run_args("rollout run job.yaml --log-level debug -v --quiet");
        assert!(args.quiet && !args.verbose && args.log_level.is_none());
        let file = "rollout run job.yaml -c other.yaml".split(' ').map(str::to_owned).collect();
        assert!(parse(file).is_err(), "the job file is no option");
    }

    #[cfg(feature = "nats")]
    #[test]
    fn credentials_of_session_replace_stored_ones_of_another_kind() {
        let stored = "rollout run j --nats-user u --nats-password-file p";
        for given in ["--nats-creds c", "--nats-nkey k", "--nats-token-file t"] {
            run_args(&format!("{stored} {given}"));
        }
    }

    #[test]
    fn options_of_session_that_exclude_each_other_are_refused() {
        let check = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            check_options(&["run".to_owned()], &words)
        };
        assert_eq!(check("--force --no-wait").expect_err("no").code, ExitCode::Usage);
        for valid in ["--force", "--json --json", "--fail-under 0.5 --fail-under 0.7"] {
            assert!(check(valid).is_ok(), "{valid}");
        }
    }

    #[test]
    fn retry_with_quiet_option_prints_errors_only() {
        let args = run_args("rollout run job.yaml -q");
        assert!(Printer::from_environment(false).with_quiet(args.quiet).is_quiet());
        assert!(Printer::from_environment(true).with_quiet(false).is_quiet());
    }

    #[tokio::test]
    async fn retry_and_resume_of_no_run_say_so() {
        let temp = tempfile::tempdir().expect("a directory");
        for reopen in [None, Some(ReopenSelection::Failed)] {
            let printer = Printer::from_environment(true);
            let ran = run_again(&temp.path().join("nope"), reopen, Vec::new(), &printer).await;
            let refused = ran.expect_err("no run");
            assert_eq!(refused.code, ExitCode::Config);
            assert!(refused.message.contains("no run at "), "{}", refused.message);
            assert!(refused.hints[0].contains("rollout list "), "{:?}", refused.hints);
        }
    }

    #[tokio::test]
    async fn retry_resume_and_repair_of_another_path_say_what_status_says() {
        let temp = tempfile::tempdir().expect("a directory");
        let file = temp.path().join("j.yaml");
        std::fs::write(&file, "jobs_dir: jobs\n").expect("written");
        for path in [temp.path(), file.as_path()] {
            let status = RunDirectory::open(path).expect_err("no run");
            let status = CliError::from(status);
            let printer = Printer::from_environment(true);
            let same = |refused: CliError| {
                assert_eq!(refused.code, ExitCode::Config);
                assert_eq!((&refused.message, &refused.hints), (&status.message, &status.hints));
            };
            for reopen in [None, Some(ReopenSelection::Failed)] {
                let ran = run_again(path, reopen, Vec::new(), &printer).await;
                same(ran.expect_err("no run"));
            }
            let layout = RunLayout::new(path);
            let repaired = repair::repair(RepairRequest { layout, store: None, dry_run: true });
            same(repaired.await.expect_err("no run").into());
        }
        let layout = RunLayout::new(temp.path().join("nope"));
        let repaired = repair::repair(RepairRequest { layout, store: None, dry_run: true }).await;
        let refused = CliError::from(repaired.expect_err("no run"));
        assert_eq!(refused.code, ExitCode::Config);
        assert!(refused.message.contains("no run at "), "{}", refused.message);
    }

    #[tokio::test]
    async fn run_directory_is_not_sent_to_an_api_server() {
        let run_dir = tempfile::tempdir().expect("a directory");
        let directory = std::env::current_dir().expect("a directory");
        let stored = serde_json::json!({ "directory": directory, "arguments": ["job.yaml"] });
        let path = run_dir.path().join("invocation.json");
        std::fs::write(path, stored.to_string()).expect("written");
        for reopen in [None, Some(ReopenSelection::Failed)] {
            let options = ["--remote-endpoint", "http://127.0.0.1:1"].map(str::to_owned).to_vec();
            let printer = Printer::from_environment(true);
            let refused = run_again(run_dir.path(), reopen, options, &printer).await;
            let refused = refused.expect_err("it would be a new run");
            assert_eq!(refused.code, ExitCode::Usage);
            assert!(refused.message.contains("with a run directory"), "{}", refused.message);
        }
    }
}
