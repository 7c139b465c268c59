use std::ffi::OsString;

use clap::{CommandFactory as _, Parser as _};
use rollout_protocol::exit::ExitCode;
use rollout_protocol::record::Outcome;

use super::args::{self, Cli, Command, RunArgs};
use super::error::CliError;
use super::{exit, output};
use crate::metrics::{Scored, Tally};
use crate::report::terminal::Style;

fn parse(words: &[&str]) -> Result<RunArgs, clap::Error> {
    let words = words.iter().map(OsString::from).collect();
    Cli::try_parse_from(args::with_run(words)).map(|cli| match cli.command {
        Command::Run(args) => *args,
        _ => panic!("not a run"),
    })
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn a_job_file_alone_means_run() {
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
fn keys_of_the_job_are_options() {
    let words = "rollout run -p dir -a oracle -k 2 -n 8 -e docker -t a* -t b -x c -l 10 \
                 --set verifier.disable=true --ae KEY=secret --artifact /out -o runs --job-name j";
    let run = parse(&words.split_whitespace().collect::<Vec<_>>()).expect("valid");
    let settings = run.keys.settings().expect("valid");
    let mut problems = crate::config::Problems::default();
    let options = crate::config::Options { settings, ..crate::config::Options::new(&|_| true) };
    let job = crate::config::job_of_settings(&options, &mut problems).expect("a job");
    let (job, _) = problems.finish(job).expect("no faults");
    assert_eq!((job.n_attempts, job.n_concurrent_trials), (2, 8));
    assert_eq!(job.run_dir(), std::path::Path::new("runs/j"));
    assert_eq!(job.datasets[0].selection.names, ["a*", "b"]);
    assert_eq!(job.datasets[0].selection.most, Some(10));
    assert!(job.settings.verifier.disable);
    let shown = format!("{:?}", job.provenance);
    assert!(!shown.contains("secret") && shown.contains("--agent-env KEY"), "{shown}");
    for bad in [
        &["rollout", "run"][..],
        &["rollout", "run", "-d", "name"],
        &["rollout", "run", "job.yaml", "-c", "other.yaml"],
    ] {
        assert!(parse(bad).is_err(), "{bad:?}");
    }
    let run = parse(&["rollout", "run", "-p", "d", "--set", "x"]).expect("valid");
    assert!(run.keys.settings().is_err());
}

#[test]
fn options_are_checked() {
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
fn codes_of_runs() {
    let tally = |trials: &[(f64, bool)]| {
        let mut tally = Tally::default();
        for (reward, infrastructure) in trials {
            let outcome = if *infrastructure { Outcome::Failed } else { Outcome::Completed };
            tally.add(&Scored {
                outcome,
                reward: (!infrastructure).then_some(*reward),
                passed: !infrastructure && *reward == 1.0,
                with_error: false,
                infrastructure: *infrastructure,
                cost: 0.0,
                retries: 0,
                lost: 0,
            });
        }
        tally
    };
    let half = tally(&[(1.0, false), (0.0, false)]);
    assert_eq!(exit::of_run(false, &half, None), ExitCode::Success);
    assert_eq!(exit::of_run(false, &half, Some(0.5)), ExitCode::Success);
    assert_eq!(exit::of_run(false, &half, Some(0.51)), ExitCode::FailUnder);
    assert_eq!(exit::of_run(true, &half, Some(0.51)), ExitCode::Cancelled);
    assert_eq!(exit::of_run(false, &tally(&[]), Some(0.1)), ExitCode::FailUnder);
    let broken = tally(&[(1.0, false), (0.0, true)]);
    assert_eq!(exit::of_run(false, &broken, Some(0.9)), ExitCode::Infrastructure);
}

#[test]
fn errors_are_rendered_with_details_and_hints_and_escaped() {
    let error = CliError {
        code: ExitCode::Config,
        message: "2 faults".into(),
        details: vec!["job.yaml:1: name: found \x1b[2J, expected a name".into(), "  more".into()],
        hints: vec!["look there".into()],
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
fn causes_are_told_once_each() {
    let error = CliError::failure("cannot start", &std::io::Error::other("no thread left"));
    assert_eq!(error.message, "cannot start: no thread left");
}
