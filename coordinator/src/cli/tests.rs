use std::ffi::OsString;

use clap::{CommandFactory as _, Parser as _};
use rollout_engine::{LockError, LockLostError, OpenError, RunError};
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::exit::ExitCode;
use rollout_protocol::record::{ItemOutcome, Verdict};
use rollout_queue::traits::QueueError;
use rollout_store::StoreError;
use rollout_store::archive::ArchiveError;
use rollout_store::host::WorkerDirError;

use super::args::{self, Cli, Command, RunArgs};
use super::error::CliError;
use super::hint_command::ShellCommand;
use super::output;
use crate::config::{ConfigErrors, ErrorKind, SourceLocation};
use crate::events::sinks::terminal::Style;
use crate::launch::exit;
use crate::plan::BuildError;
use crate::results::metrics::{FailureParty, Tally, TrialScore};
use crate::sources::datasets::BundleError;

fn parse(words: &[&str]) -> Result<RunArgs, clap::Error> {
    let words = words.iter().map(OsString::from).collect();
    Cli::try_parse_from(args::with_run(words)).map(|cli| match cli.command {
        Command::Run(args) => *args,
        _ => panic!("not a run"),
    })
}

#[test]
fn cli_definition_passes_clap_debug_assert() {
    Cli::command().debug_assert();
}

#[test]
fn job_file_without_subcommand_means_run() {
    for words in [
        &["rollout", "job.yaml"][..],
        &["rollout", "run", "job.yaml"],
        &["rollout", "job.yml", "--json"],
        &["rollout", "--json", "dir/job.json"],
        &["rollout", "Cargo.toml"],
    ] {
        let run = parse(words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        let file = run.job.expect("a job file");
        assert_eq!(file.as_os_str(), *words.iter().rfind(|w| w.contains('.')).expect("a file"));
    }
    for words in [&["rollout"][..], &["rollout", "sing"], &["rollout", "no-such-file"]] {
        assert!(parse(words).is_err(), "{words:?}");
    }
}

#[test]
fn address_of_an_option_is_named_without_its_login() {
    for (words, flag) in [
        (&["-p", "https://me:word@h/r"][..], "-p https://h/r"),
        (&["--repo", "https://me:word@h/r"], "--repo https://h/r"),
        (&["-m", "a/b", "--base-url", "https://me:word@h/v1"], "--base-url https://h/v1"),
    ] {
        let run = parse(&[&["rollout", "run", "job.yaml"][..], words].concat()).expect("valid");
        let settings = format!("{:?}", run.keys.settings().expect("valid"));
        assert!(settings.contains(&format!("flag: \"{flag}\"")), "{settings}");
    }
}

#[test]
fn run_options_set_keys_of_job_config() {
    let words = "rollout run -p dir -a oracle -k 2 -n 8 -e docker -t a* -t b -x c -l 10 \
                 --set verifier.disable=true --ae KEY=secret --artifact /out -o runs --job-name j";
    let run = parse(&words.split_whitespace().collect::<Vec<_>>()).expect("valid");
    let settings = run.keys.settings().expect("valid");
    let mut problems = crate::config::Diagnostics::default();
    let options = crate::config::JobOptions {
        settings,
        ..crate::config::JobOptions::for_command_line(&|_| true)
    };
    let job = crate::config::job_from_settings(&options, &mut problems).expect("a job");
    let (job, _) = problems.finish(job).expect("no faults");
    assert_eq!((job.n_attempts, job.n_concurrent_trials), (2, 8));
    assert_eq!(job.run_dir(), std::path::Path::new("runs/j"));
    assert_eq!(job.datasets[0].selection.names, ["a*", "b"]);
    assert_eq!(job.datasets[0].selection.max_tasks, Some(10));
    assert!(job.settings.verifier.disable);
    let shown = format!("{:?}", job.provenance);
    assert!(!shown.contains("secret") && shown.contains("--agent-env KEY"), "{shown}");
    for bad in [
        &["rollout", "run"][..],
        &["rollout", "run", "-p", "d", "--no-delete", "--preserve-env", "never"],
        &["rollout", "run", "-p", "d", "-r", "-1"],
        &["rollout", "run", "job.yaml", "-c", "other.yaml"],
    ] {
        assert!(parse(bad).is_err(), "{bad:?}");
    }
    let run = parse(&["rollout", "run", "-p", "d", "--set", "x"]).expect("valid");
    assert!(run.keys.settings().is_err());
    for (name, said) in [
        ("bench", "cannot find the dataset `bench`: add `--registry PATH` or `--registry URL`"),
        ("org/bench@1", "packages of a hub are not supported; add `--registry PATH`"),
    ] {
        let run = parse(&["rollout", "run", "-d", name]).expect("valid");
        let error = run.keys.settings().expect_err("no registry");
        assert!(error.contains(said) && error.contains("--repo URL"), "{error}");
    }
}

#[test]
fn memory_of_options_is_read_as_docker_writes_it() {
    for (amount, mib) in [("500m", 500), ("2G", 2048), ("512Mi", 512), ("2048", 2048), ("1e9", 954)]
    {
        let words = ["rollout", "run", "-p", "d", "-a", "oracle"];
        let amounts = ["--override-memory", amount, "--override-storage", amount];
        let run = parse(&[&words[..], &amounts[..]].concat()).expect("valid");
        let settings = run.keys.settings().expect("settings");
        let mut problems = crate::config::Diagnostics::default();
        let options = crate::config::JobOptions {
            settings,
            ..crate::config::JobOptions::for_command_line(&|_| true)
        };
        let job = crate::config::job_from_settings(&options, &mut problems).expect("a job");
        let (job, _) = problems.finish(job).expect("no faults");
        let said = crate::config::job_document(&job);
        assert_eq!(said["environment"]["override_memory_mb"], mib, "{amount}");
        assert_eq!(said["environment"]["override_storage_mb"], mib, "{amount}");
    }
}

#[test]
fn other_options_of_harbor_set_keys_of_job_config() {
    let words = "rollout run -p d -a oracle --override-memory-mb 512 --override-storage-mb 1024 \
                 --delete --no-force-build --enable-verification --silent --print-config --ek \
                 network=none --allow-environment-host a.example --allow-verifier-host b.example \
                 --retry-include SSHAccessError --retry-exclude AgentTimeoutError";
    let run = parse(&words.split_whitespace().collect::<Vec<_>>()).expect("valid");
    assert!(run.quiet && run.keys.harbor.print_config);
    let settings = run.keys.settings().expect("settings");
    let mut problems = crate::config::Diagnostics::default();
    let options = crate::config::JobOptions {
        settings,
        ..crate::config::JobOptions::for_command_line(&|_| true)
    };
    let job = crate::config::job_from_settings(&options, &mut problems).expect("a job");
    let (job, _) = problems.finish(job).expect("no faults");
    let said = crate::config::job_document(&job);
    assert_eq!(said["environment"]["override_memory_mb"], 512);
    assert_eq!(said["environment"]["override_storage_mb"], 1024);
    assert_eq!(said["environment"]["provider_config"]["network"], "none");
    assert_eq!(said["environment"]["extra_allowed_hosts"], serde_json::json!(["a.example"]));
    assert_eq!(said["verifier"]["extra_allowed_hosts"], serde_json::json!(["b.example"]));

    for (option, name, said) in [
        ("--retry-include", "AgentTimeoutError", "never an agent's"),
        ("--retry-exclude", "SSHAccessError", "all of them"),
    ] {
        let run = parse(&["rollout", "run", "-p", "d", option, name]).expect("valid");
        let error = run.keys.settings().expect_err("it cannot be chosen");
        assert!(error.contains(said) && error.contains(name), "{error}");
    }
    for bad in [["--delete", "--no-delete"], ["--no-force-build", "--force-build"]] {
        assert!(parse(&[&["rollout", "run", "-p", "d"][..], &bad].concat()).is_err(), "{bad:?}");
    }
}

#[test]
fn options_of_harbor_with_paths_and_install_only_set_keys_of_job_config() {
    let dir = tempfile::tempdir().expect("a directory");
    let (skill, compose) = (dir.path().join("zebra"), dir.path().join("more.yaml"));
    std::fs::create_dir(&skill).expect("made");
    std::fs::write(skill.join("SKILL.md"), "").expect("written");
    std::fs::write(&compose, "services: {}\n").expect("written");
    let [skill, compose] = [&skill, &compose].map(|path| path.to_str().expect("text"));
    let words = ["rollout", "run", "-p", "d", "-a", "shell", "-m", "openai/m", "--install-only"];
    let more = ["--skill", skill, "--extra-docker-compose", compose];
    let run = parse(&[&words[..], &more[..]].concat()).expect("valid");
    let settings = run.keys.settings().expect("settings");
    let mut problems = crate::config::Diagnostics::default();
    // No variable is set, not even the key of the model server.
    let options = crate::config::JobOptions {
        settings,
        ..crate::config::JobOptions::for_command_line(&|_| false)
    };
    let job = crate::config::job_from_settings(&options, &mut problems).expect("a job");
    let (job, _) = problems.finish(job).expect("no faults");
    assert!(job.settings.install_only && job.settings.verifier.disable);
    assert_eq!(job.settings.compose_overlays, ["services: {}\n"]);
    let skills = &job.agents[0].spec.task_options.skills;
    assert_eq!(skills.iter().map(|skill| skill.name.as_str()).collect::<Vec<_>>(), ["zebra"]);
}

#[test]
fn harbor_options_set_keys_of_job_config() {
    let words = ["rollout", "run", "-p", "d", "-a", "oracle", "--debug", "-y"];
    let more = ["-r", "4", "--no-delete", "--ak", "description=every agent", "--env-file", "f"];
    let run = parse(&[&words[..], &more[..]].concat()).expect("valid");
    assert!(run.verbose && run.yes);
    assert_eq!(run.env_file.as_deref(), Some(std::path::Path::new("f")));
    let settings = run.keys.settings().expect("settings");
    let mut problems = crate::config::Diagnostics::default();
    let options = crate::config::JobOptions {
        settings,
        ..crate::config::JobOptions::for_command_line(&|_| true)
    };
    let job = crate::config::job_from_settings(&options, &mut problems).expect("a job");
    let (job, _) = problems.finish(job).expect("no faults");
    let said = crate::config::job_document(&job);
    assert_eq!(said["retry"]["max_attempts"], 5);
    assert_eq!(said["environment"]["preserve_env"], "always");
    assert_eq!(said["agents"][0]["description"], "every agent");
}

#[test]
fn option_with_invalid_value_is_refused_with_exit_code_2() {
    let run = parse(&["rollout", "job.yaml", "--fail-under", "0.5", "--materialize", "none"]);
    assert_eq!(run.expect("valid").fail_under, Some(0.5));
    for bad in [
        &["--fail-under", "1.5"][..],
        &["--fail-under", "NaN"],
        &["--materialize", "some"],
        &["-q", "-v"],
        &["--log-level", "loud"],
    ] {
        let words: Vec<&str> = ["rollout", "job.yaml"].iter().chain(bad).copied().collect();
        let error = parse(&words).expect_err("a mistake");
        assert!(error.use_stderr() && error.exit_code() == 2, "{words:?}");
    }
}

#[test]
fn exit_code_of_run_follows_tally_and_fail_under() {
    let tally = |trials: &[(f64, Option<FailureParty>)]| {
        let mut tally = Tally::default();
        for (reward, failure) in trials {
            tally.add(&TrialScore {
                outcome: if failure.is_some() {
                    ItemOutcome::Failed
                } else {
                    ItemOutcome::Completed
                },
                reward: failure.is_none().then_some(*reward),
                passed: failure.is_none() && *reward == 1.0,
                with_error: false,
                step_unverified: false,
                failure: *failure,
                before_agent: false,
                model_use: rollout_protocol::spec::budget::ModelUse::NONE,
                cost: 0.0,
                retries: 0,
                lost: 0,
                unreachable: false,
                not_installed: false,
                format_doubt: false,
            });
        }
        tally
    };
    let half = tally(&[(1.0, None), (0.0, None)]);
    assert_eq!(exit::for_run(false, &half, None), ExitCode::Success);
    assert_eq!(exit::for_run(false, &half, Some(0.5)), ExitCode::Success);
    assert_eq!(exit::for_run(false, &half, Some(0.51)), ExitCode::FailUnder);
    assert_eq!(exit::for_run(true, &half, Some(0.51)), ExitCode::Cancelled);
    for least in [0.0, 0.1] {
        assert_eq!(exit::for_run(false, &tally(&[]), Some(least)), ExitCode::NothingMeasured);
    }
    let failed = tally(&[(1.0, None), (0.0, Some(FailureParty::Agent))]);
    assert_eq!(exit::for_run(false, &failed, None), ExitCode::Success);
    assert_eq!(exit::for_run(false, &failed, Some(1.0)), ExitCode::FailUnder);
    let broken = tally(&[(1.0, None), (0.0, Some(FailureParty::Infrastructure))]);
    assert_eq!(exit::for_run(false, &broken, None), ExitCode::Infrastructure);
    assert_eq!(exit::for_run(false, &broken, Some(0.9)), ExitCode::Infrastructure);
    assert_eq!(exit::for_run(false, &broken, Some(0.5)), ExitCode::Success);
    let hopeless = tally(&[(0.0, None), (0.0, None), (0.0, Some(FailureParty::Infrastructure))]);
    assert_eq!(exit::for_run(false, &hopeless, Some(0.5)), ExitCode::FailUnder);
    let unsupported = tally(&[(1.0, None), (0.0, Some(FailureParty::Unsupported))]);
    assert_eq!(exit::for_run(false, &unsupported, None), ExitCode::Success);
    assert_eq!(exit::for_run(false, &unsupported, Some(1.0)), ExitCode::Success);
    let invalid = tally(&[(1.0, None), (0.0, Some(FailureParty::Task))]);
    assert_eq!(exit::for_run(false, &invalid, None), ExitCode::Success);
    assert_eq!(exit::for_run(false, &invalid, Some(0.5)), ExitCode::Success);
    assert_eq!(exit::for_run(false, &invalid, Some(0.9)), ExitCode::Infrastructure);
}

#[test]
fn exit_code_of_run_without_scored_trial_is_never_success() {
    let verdicts = |outcome, error: Option<TrialError>| {
        let mut tally = Tally::default();
        let verdict = Verdict { outcome, error, reward: None, ..Verdict::completed(1.0) };
        tally.add(&TrialScore::from_verdict(&verdict, &[]));
        tally
    };
    let lost = TrialError::transient(ErrorType::InternalError, ErrorCode::BUG, "lost");
    let (class, retry) = (ErrorClass::Task, RetryClass::Permanent);
    let invalid = (ErrorType::TaskInvalid, ErrorCode::MISSING_FILE);
    let invalid = TrialError::new(invalid.0, invalid.1, class, retry, "no tests");
    let early = TrialError { before_agent: true, ..invalid };
    let unsupported = TrialError::unsupported("no graphics processors");
    let cases = [
        (ItemOutcome::Failed, Some(lost), ExitCode::Infrastructure, ExitCode::Infrastructure),
        (
            ItemOutcome::Failed,
            Some(unsupported),
            ExitCode::NothingMeasured,
            ExitCode::NothingMeasured,
        ),
        (ItemOutcome::Failed, Some(early), ExitCode::NothingMeasured, ExitCode::NothingMeasured),
        (ItemOutcome::Cancelled, None, ExitCode::NothingMeasured, ExitCode::NothingMeasured),
        // The job disables verification: it asks for no score.
        (ItemOutcome::Unverified, None, ExitCode::Success, ExitCode::NothingMeasured),
    ];
    for (outcome, error, without, with) in cases {
        let tally = verdicts(outcome, error);
        assert_eq!(exit::for_run(false, &tally, None), without, "{outcome:?}");
        for least in [0.0, 0.5] {
            assert_eq!(exit::for_run(false, &tally, Some(least)), with, "{outcome:?} {least}");
        }
    }
}

#[test]
fn cli_error_is_rendered_escaped_with_details_and_hints() {
    let error = CliError {
        code: ExitCode::Config,
        message: "2 faults".into(),
        details: vec!["job.yaml:1: name: found \x1b[2J, expected a name".into(), "  more".into()],
        hints: vec!["look there".into()],
        command_hints: Vec::new(),
    };
    assert_eq!(
        output::render(&error, Style::PLAIN),
        "error: 2 faults\n  job.yaml:1: name: found \\x1b[2J, expected a name\n    more\n\
         hint: look there\n"
    );
    let stopped = CliError { code: ExitCode::Cancelled, ..error };
    assert!(output::render(&stopped, Style::PLAIN).starts_with("stopped: "));
}

#[test]
fn cli_error_message_contains_each_cause_once() {
    let error = CliError::failure("cannot start", &std::io::Error::other("no thread left"));
    assert_eq!(error.message, "cannot start: no thread left");
}

/// The hints of an error that end with a command.
fn texts(error: &CliError) -> Vec<String> {
    let line = "rollout resume jobs/x".to_owned();
    let command = ShellCommand { line, needs: Vec::new() };
    error.command_hints.iter().map(|hint| hint.text(&command)).collect()
}

#[test]
fn full_disk_while_packing_is_no_configuration_error() {
    let source = std::io::ErrorKind::StorageFull.into();
    let cause = ArchiveError::Io { action: "write", path: "/scratch/0.0".into(), source };
    let failed = CliError::from(BuildError::Bundle(BundleError::Scratch(cause)));
    assert_eq!(failed.code, ExitCode::Failure);
    let start = "cannot pack the tasks: cannot write /scratch/0.0: ";
    assert!(failed.message.starts_with(start), "{}", failed.message);
    assert_eq!(
        texts(&failed),
        ["free space on this disk, then run `rollout resume jobs/x` to start again"]
    );
}

#[test]
fn server_out_of_reach_has_one_exit_code_before_and_during_a_run() {
    let unreachable = || QueueError::Unreachable { reason: "it is down".to_owned() };
    let during = CliError::from(RunError::Queue(unreachable()));
    let before = CliError::from(OpenError::Lock(LockError::KvStore(unreachable())));
    assert_eq!([during.code, before.code], [ExitCode::OutOfReach; 2]);
    assert!(during.message.ends_with("it is down"), "{}", during.message);
}

#[test]
fn full_disk_hints_to_free_space() {
    let full = || std::io::Error::from_raw_os_error(28);
    let cause = "No space left on device (os error 28)";
    let hint = |to| [format!("free space on this disk, then run `rollout resume jobs/x` to {to}")];
    let stored = StoreError::DiskFull { path: "/blobs/tmp/0".to_owned(), source: full() };
    let stored = CliError::from(stored);
    assert_eq!(stored.message, format!("cannot write to the blob store: /blobs/tmp/0: {cause}"));
    assert_eq!(texts(&stored), hint("try again"));
    let path = "/jobs/new".into();
    let made = CliError::from(WorkerDirError { action: "create", path, source: full() });
    assert_eq!(made.message, format!("cannot create the working directory /jobs/new: {cause}"));
    assert_eq!(texts(&made), hint("try again"));
    let path = "/jobs/plan.json".into();
    let written = CliError::from(RunError::File { action: "write", path, source: full() });
    assert_eq!(texts(&written), hint("resume"));
}

#[test]
fn failed_fetch_is_no_configuration_error() {
    let location = SourceLocation { key: "-d tb".to_owned(), line: None };
    let said = "cannot fetch the registry http://h/r.json: connection refused";
    let error = location.failure("job.yaml".as_ref(), ErrorKind::FetchFailed, said);
    let refused = CliError::from(ConfigErrors { errors: vec![error], warnings: Vec::new() });
    assert_eq!(refused.code, ExitCode::Config);
    assert_eq!(refused.message, "cannot fetch the tasks; nothing was started");
    assert_eq!(refused.details, [format!("command line: -d tb: {said}")]);
}

#[test]
fn interrupted_run_says_once_that_it_cannot_continue() {
    let lost = RunError::LockLost(LockLostError::TakenOver { by: "another process".to_owned() });
    assert_eq!(
        CliError::from(lost).message,
        "cannot continue the run: it was taken over by another process"
    );
    let gone = RunError::LockLost(LockLostError::DirectoryGone { root: "/jobs/x".into() });
    let gone = CliError::from(gone);
    assert_eq!(gone.code, ExitCode::Failure);
    let expected = "cannot continue the run: its directory /jobs/x was moved, removed or replaced";
    assert_eq!(gone.message, expected);
}

#[cfg(feature = "docker")]
#[test]
fn gc_without_target_or_with_wrong_limits_is_refused() {
    let gc = |words: &str| {
        let words = ["rollout", "gc"].into_iter().chain(words.split_whitespace());
        Cli::try_parse_from(words).map(|cli| match cli.command {
            Command::Gc(args) => args,
            _ => panic!("not gc"),
        })
    };
    for words in [
        "",
        "--images",
        "--older-than 1h",
        "--containers --max-size 1G",
        "--images --max-size x",
        "--datasets",
        "--datasets --max-size 1G --store s",
        #[cfg(feature = "nats")]
        "--queue --store s --nats nats://localhost",
        #[cfg(feature = "nats")]
        "--containers --lock-age 1d",
    ] {
        assert!(gc(words).is_err(), "{words}");
    }
    assert!(gc("--containers --dry-run").is_ok());
    assert!(gc("--datasets --older-than 30d").expect("valid").datasets);
    let both = gc("--containers --images --older-than 30d --max-size 50G --json").expect("valid");
    assert!(both.containers && both.images && both.json && !both.dry_run);
    let day = std::time::Duration::from_secs(24 * 3600);
    assert_eq!((both.older_than, both.max_size), (Some(30 * day), Some(50 * 1024)));
}
