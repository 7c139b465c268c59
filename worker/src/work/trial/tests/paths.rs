//! The ordinary outcomes of a trial.

use std::time::Duration;

use rollout_base::secrets::TrialVariables;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_environment::{FailureKind, ImageSource};
use rollout_gateway::agents;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::ItemOutcome;
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::environment::{
    EnvironmentRates, PreservePolicy, ProcessSettings, ProviderSpec,
};
use rollout_protocol::template::Template;

use super::super::testing::TrialFixture;
use super::{
    error, error_summary, is_bare, log_names, logs, output, outputs, run, secondary_codes, verdict,
};
use crate::executor::RequestedImage;

#[tokio::test]
async fn trial_success_makes_expected_calls_and_outputs() {
    let mut rig = TrialFixture::new().await;
    rig.set_scripts(
        Some("pwd; cat $ROLLOUT_TASK_INSTRUCTION"),
        Some("echo trace > /logs/agent/trace.txt; echo oops >&2"),
    );
    rig.set_tests("echo checking; echo 0.5 > /logs/verifier/reward.txt").await;
    let finished = run(&rig).await;
    let calls = [
        FakeCall::Prepare,
        FakeCall::Create,
        FakeCall::Exec,
        FakeCall::CopyTo,
        FakeCall::Exec,
        FakeCall::CopyTo,
        FakeCall::Exec,
        FakeCall::CopyFrom,
        FakeCall::Destroy,
    ];
    assert_eq!(rig.provider.calls(), calls);
    let record = &finished.record;
    assert_eq!(
        (record.verdict.outcome, record.verdict.reward),
        (ItemOutcome::Completed, Some(0.5))
    );
    assert_eq!((&record.verdict.error, &record.secondary_errors), (&None, &Vec::new()));
    assert_eq!(output(&finished, "setup/stdout.txt"), "/app\ndo it");
    assert_eq!(output(&finished, "command/stderr.txt"), "oops\n");
    assert_eq!(output(&finished, "logs/verifier/stdout.txt"), "checking\n");
    assert_eq!(record.verifier_stdout.as_deref(), Some("checking\n"));
    assert_eq!(record.verifier_stderr.as_deref(), Some(""));
    let logs = logs(&finished).expect("logs");
    assert!(logs.contains(&("agent/trace.txt".into(), b"trace\n".to_vec())), "{logs:?}");
    assert!(logs.contains(&("verifier/reward.txt".into(), b"0.5\n".to_vec())), "{logs:?}");
    let environment = record.environment.as_ref().expect("an environment");
    assert_eq!((environment.image.as_str(), environment.image_made), ("image", true));
    assert!(!is_bare(&finished));
}

#[tokio::test]
async fn timestamps_and_phases_of_trial_are_ordered() {
    let rig = TrialFixture::new().await;
    let record = run(&rig).await.record;
    let times = &record.timestamps;
    let all = [
        Some(times.started_at),
        times.environment_setup_started_at,
        times.environment_setup_ended_at,
        times.agent_setup_started_at,
        times.agent_setup_ended_at,
        times.agent_execution_started_at,
        times.agent_execution_ended_at,
        times.verifier_started_at,
        times.verifier_ended_at,
        Some(times.ended_at),
    ];
    assert!(all.iter().all(Option::is_some) && all.is_sorted(), "{all:?}");
    let durations = &record.durations;
    let parts = [
        durations.environment_setup_sec,
        durations.agent_setup_sec,
        durations.agent_execution_sec,
        durations.verifier_sec,
    ];
    let sum: f64 = parts.iter().map(|part| part.expect("reached")).sum();
    assert!(sum > 0.0 && sum <= durations.total_sec, "{durations:?}");
    use Phase::{AgentExecution, AgentSetup, Collection, EnvironmentSetup, Teardown, Verification};
    let phases = [EnvironmentSetup, AgentSetup, AgentExecution, Verification, Collection, Teardown];
    assert_eq!(rig.phases.entered(), phases);
}

#[tokio::test]
async fn oracle_runs_solution_script() {
    let mut rig = TrialFixture::new().await;
    rig.use_oracle("echo answer > /app/answer.txt; echo solved").await;
    rig.set_tests("cat /app/answer.txt; echo 1 > /logs/verifier/reward.txt").await;
    let finished = run(&rig).await;
    assert!(finished.record.verdict.passed());
    assert_eq!(output(&finished, "command/stdout.txt"), "solved\n");
    assert!(!outputs(&finished).iter().any(|path| path.starts_with("setup/")));
}

#[tokio::test]
async fn tests_are_absent_during_agent_execution() {
    let mut rig = TrialFixture::new().await;
    rig.set_scripts(None, Some("test -e /tests; echo seen"));
    let finished = run(&rig).await;
    assert_eq!(
        error_summary(error(&finished)),
        "agent_execution_failed non_zero_exit agent permanent"
    );
    let placed = rig.provider.calls().into_iter().filter(|call| *call == FakeCall::CopyTo);
    assert_eq!(placed.count(), 1, "only the limits of the agent");
}

#[tokio::test]
async fn verifier_logs_written_by_agent_are_removed() {
    let mut rig = TrialFixture::new().await;
    rig.set_scripts(
        None,
        Some("echo 1 > /logs/verifier/reward.txt; echo x > /logs/verifier/x.txt"),
    );
    rig.set_tests("echo nothing").await;
    let finished = run(&rig).await;
    assert_eq!(error(&finished).kind, ErrorType::VerifierRewardMissing);
    assert!(!log_names(&finished).iter().any(|name| name.ends_with("x.txt")));
}

#[tokio::test(start_paused = true)]
async fn failed_installation_is_no_verdict_on_agent() {
    let missing = "agent_install_failed package_missing infrastructure permanent";
    let unsupported = "task_invalid unsupported_by_environment task permanent";
    let failed = "agent_install_failed non_zero_exit infrastructure transient";
    let (image, package) = (agents::INSTALL_UNSUPPORTED, agents::INSTALL_PACKAGE_MISSING);
    let codes = agents::INSTALL_CODES;
    for (script, expected) in [
        ("exit 60".to_owned(), failed),
        ("sleep 1000".to_owned(), "agent_install_timeout timed_out infrastructure transient"),
        (format!("exit {package}\n{codes}"), missing),
        (format!("exit {image}\n{codes}"), unsupported),
        // A script that does not speak of these codes has them by chance.
        (format!("exit {package}"), failed),
        (format!("exit {image}"), failed),
    ] {
        let mut rig = TrialFixture::new().await;
        rig.set_scripts(Some(&script), Some("echo never"));
        let finished = run(&rig).await;
        assert_eq!(error_summary(error(&finished)), expected, "{script}");
        assert_eq!(
            (error(&finished).phase, error(&finished).before_agent),
            (Phase::AgentSetup, false)
        );
        // The attempt of a task may end with any code.
        rig.set_scripts(None, Some(&script));
        assert_eq!(error(&run(&rig).await).class, ErrorClass::Agent, "{script}");
    }
    let rig = TrialFixture::new().await;
    let not_started = FaultEffect::Fail(FailureKind::NotStarted);
    rig.provider.fault(FaultTrigger::Any(2), not_started);
    assert_eq!(error_summary(error(&run(&rig).await)), unsupported, "no shell");
}

#[tokio::test]
async fn script_exit_code_or_signal_maps_to_error() {
    for (script, error_text, message) in [
        ("echo why >&2; echo because >&2; exit 3", "non_zero_exit agent", "3: why / because"),
        ("exit 143", "killed_by_signal agent", "(signal 15)"),
        ("exit 137", "killed_by_signal agent", "(signal 9)"),
        ("oom", "oom_killed agent", "out of memory"),
        ("vanish", "environment_lost infrastructure", "no longer exists"),
    ] {
        let retry = if script == "vanish" { "transient" } else { "permanent" };
        for (stage, kind) in [
            ("install", ErrorType::AgentInstallFailed),
            ("execute", ErrorType::AgentExecutionFailed),
            ("verify", ErrorType::VerifierFailed),
        ] {
            let mut rig = TrialFixture::new().await;
            match stage {
                "install" => rig.set_scripts(Some(script), Some("echo never")),
                "execute" => rig.set_scripts(Some("echo ready"), Some(script)),
                _ => {
                    let script = format!("echo 1 > /logs/verifier/reward.txt; {script}");
                    rig.set_tests(&script).await;
                }
            }
            let finished = run(&rig).await;
            let mut expected = format!("{kind} {error_text} {retry}");
            match stage {
                "verify" => expected = expected.replace(" agent ", " verifier "),
                "install" => {
                    expected = expected.replace(" agent permanent", " infrastructure transient");
                }
                _ => {}
            }
            assert_eq!(error_summary(error(&finished)), expected, "{stage}: {script}");
            assert!(error(&finished).message.contains(message), "{}", error(&finished).message);
            let verdict = &finished.record.verdict;
            assert_eq!((verdict.outcome, verdict.reward), (ItemOutcome::Failed, None));
            assert_eq!(logs(&finished).is_some(), script != "vanish", "{stage}: {script}");
            let ran = |dir: &str| outputs(&finished).iter().any(|path| path.starts_with(dir));
            assert_eq!(ran("command/"), stage != "install");
            assert_eq!(ran("logs/verifier/"), stage == "verify");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn script_timeout_kills_before_collection() {
    for (stage, kind) in [
        ("install", ErrorType::AgentInstallTimeout),
        ("execute", ErrorType::AgentExecutionTimeout),
        ("verify", ErrorType::VerifierTimeout),
    ] {
        let mut rig = TrialFixture::new().await;
        let script = "echo begun; background writer; sleep 1000";
        match stage {
            "install" => rig.set_scripts(Some(script), None),
            "execute" => rig.set_scripts(None, Some(script)),
            _ => rig.set_tests(script).await,
        }
        let finished = run(&rig).await;
        assert_eq!(error(&finished).kind, kind);
        assert_eq!(error(&finished).code.as_str(), "timed_out");
        let calls = rig.provider.calls();
        let at = |call| calls.iter().position(|c| *c == call).expect("called");
        assert!(at(FakeCall::Kill) < at(FakeCall::CopyFrom), "{calls:?}");
        assert!(logs(&finished).is_some());
        let seconds = finished.record.durations.total_sec;
        assert!((60.0..70.0).contains(&seconds), "{seconds}");
    }
}

#[tokio::test]
async fn agent_process_survives_to_verifier_unless_killed_by_job() {
    for (kill, outcome) in [(false, ItemOutcome::Completed), (true, ItemOutcome::Failed)] {
        let mut rig = TrialFixture::new().await;
        rig.settings.verifier.kill_agent_processes = kill;
        rig.set_scripts(None, Some("background service"));
        rig.set_tests("alive service; echo 1 > /logs/verifier/reward.txt").await;
        assert_eq!(run(&rig).await.record.verdict.outcome, outcome);
        assert_eq!(rig.provider.calls().contains(&FakeCall::Kill), kill);
    }
}

#[tokio::test]
async fn verifier_disabled_ends_trial_unverified() {
    let mut rig = TrialFixture::new().await;
    rig.settings.verifier.disable = true;
    rig.task.steps[0].files.tests = None;
    let finished = run(&rig).await;
    let verdict = &finished.record.verdict;
    assert_eq!(
        (verdict.outcome, verdict.reward, &verdict.error),
        (ItemOutcome::Unverified, None, &None)
    );
    assert_eq!(finished.record.durations.verifier_sec, None);
    assert!(logs(&finished).is_some());
}

#[tokio::test]
async fn task_not_runnable_gets_no_environment() {
    let gone = TrialError::transient(ErrorType::TaskNotFound, ErrorCode::SOURCE_CHANGED, "gone");
    for (case, kind) in [
        ("fault", ErrorType::TaskNotFound),
        ("oracle", ErrorType::TaskInvalid),
        ("tests", ErrorType::TaskInvalid),
    ] {
        let mut rig = TrialFixture::new().await;
        match case {
            "fault" => rig.task.fault = Some(gone.clone()),
            "oracle" => rig.agent.kind = AgentKind::Oracle,
            _ => rig.task.steps[0].files.tests = None,
        }
        let finished = run(&rig).await;
        assert_eq!(error(&finished).kind, kind);
        assert!(is_bare(&finished));
        assert_eq!((rig.provider.calls(), rig.phases.entered()), (Vec::new(), Vec::new()));
    }
}

#[tokio::test]
async fn image_is_built_if_forced_or_not_named() {
    for (named, force, environment, expected) in [
        (true, false, true, "image"),
        (true, true, true, "fake:"),
        (false, false, true, "fake:"),
        (false, false, false, "fake:"),
    ] {
        let mut rig = TrialFixture::new().await;
        rig.task.environment.docker_image = named.then(|| "image".to_owned());
        rig.settings.environment.force_build = force;
        if environment {
            let context = rig.store_archive("Dockerfile", "FROM scratch").await;
            rig.task.environment.context = Some(context);
        }
        let services = rig.services();
        let settings = &rig.settings.environment;
        let wanted = RequestedImage { environment: &rig.task.environment, settings };
        let source = wanted.source(&services.files).await;
        let (source, part) = source.expect("a source");
        if let ImageSource::Context { dir, .. } = &source {
            assert_eq!(dir.join("Dockerfile").exists(), environment);
        }
        assert_eq!(part.is_some(), expected == "fake:");
        let image = run(&rig).await.record.environment.expect("an environment").image;
        assert!(image.starts_with(expected), "{image}");
    }
}

#[tokio::test]
async fn sandbox_with_dockerfile_ignores_named_image() {
    for dockerfile in [true, false] {
        let mut rig = TrialFixture::new().await;
        rig.task.environment.docker_image = Some("image".to_owned());
        rig.settings.environment.provider = ProviderSpec::Process(ProcessSettings::default());
        if dockerfile {
            rig.task.environment.context =
                Some(rig.store_archive("Dockerfile", "FROM scratch").await);
        }
        let services = rig.services();
        let settings = &rig.settings.environment;
        let wanted = RequestedImage { environment: &rig.task.environment, settings };
        let source = wanted.source(&services.files).await;
        let (source, _part) = source.expect("a source");
        assert_eq!(matches!(source, ImageSource::Context { .. }), dockerfile);
    }
}

#[tokio::test]
async fn variables_reach_only_scripts_of_their_phase() {
    let mut rig = TrialFixture::new().await;
    rig.variables = TrialVariables::new([("KEY".to_owned(), "k-123".to_owned())]);
    rig.task.environment.env.insert("FROM_TASK".into(), Template::new("t"));
    rig.task.environment.env.insert("SHARED".into(), Template::new("task"));
    rig.agent.env.insert("SHARED".into(), Template::new("agent"));
    rig.agent.env.insert("AGENT_KEY".into(), Template::new("${KEY}"));
    run(&rig).await;
    let install = [
        "AGENT_KEY=k-123",
        "FROM_TASK=t",
        "ROLLOUT_TASK_INSTRUCTION=/tmp/instruction.md",
        "ROLLOUT_TIMEOUT_SEC=60",
        "SHARED=agent",
    ];
    let [key, task, rest @ ..] = install;
    let [instruction, timeout, shared] = rest;
    let limits = "ROLLOUT_LIMITS=/rollout/limits.json";
    let agent = [key, task, limits, instruction, timeout, shared];
    let verifier = ["FROM_TASK=t", "ROLLOUT_TASK_INSTRUCTION=/tmp/instruction.md", "SHARED=task"];
    let commands = rig.provider.commands();
    let expected = [&install[..], &agent[..], &verifier[..]];
    assert_eq!(commands.len(), expected.len());
    for (command, expected) in commands.iter().zip(expected) {
        let mut env = command.env.clone();
        let has_deadline = env.remove("ROLLOUT_DEADLINE").is_some();
        assert_eq!(has_deadline, expected != verifier, "only agents are told");
        let env: Vec<_> = env.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(env, expected);
        assert_eq!(command.workdir, None);
    }
}

#[tokio::test]
async fn variable_not_exported_fails_before_environment() {
    let mut rig = TrialFixture::new().await;
    rig.agent.env.insert("A".into(), Template::new("${NOT_EXPORTED}"));
    let finished = run(&rig).await;
    assert_eq!(
        error_summary(error(&finished)),
        "environment_start_failed variable_unset infrastructure transient"
    );
    assert!(error(&finished).message.contains("NOT_EXPORTED"));
    assert_eq!(rig.provider.calls(), []);
}

#[tokio::test(start_paused = true)]
async fn cost_covers_environment_lifetime_on_success_and_failure() {
    for script in ["sleep 36", "sleep 36; exit 1"] {
        let mut rig = TrialFixture::new().await;
        rig.settings.environment.rates =
            EnvironmentRates { cpu_hour: 100.0, gib_hour: 0.0, start: 0.5 };
        rig.set_scripts(None, Some(script));
        let cost = run(&rig).await.record.verdict.cost;
        assert!((1.5..1.51).contains(&cost), "{script}: {cost}");
    }
    let mut rig = TrialFixture::new().await;
    rig.settings.environment.rates =
        EnvironmentRates { cpu_hour: 100.0, gib_hour: 0.0, start: 0.5 };
    rig.provider
        .fault(FaultTrigger::Nth(FakeCall::Create, 0), FaultEffect::Fail(FailureKind::Refused));
    assert!(run(&rig).await.record.verdict.cost.abs() < 1e-9);
}

#[tokio::test]
async fn environment_is_preserved_by_policy() {
    use PreservePolicy::{Always, Never, OnFailure};
    for (policy, reward, kept) in [
        (Never, "0", false),
        (Always, "1", true),
        (OnFailure, "1", false),
        (OnFailure, "1.0", false),
        (OnFailure, "0", true),
        (OnFailure, "nan", true),
    ] {
        let mut rig = TrialFixture::new().await;
        rig.settings.environment.preserve_env = policy;
        rig.set_tests(&format!("echo {reward} > /logs/verifier/reward.txt")).await;
        let finished = verdict(rig.run().await);
        assert_eq!(rig.provider.preserved().len(), usize::from(kept), "{policy:?} {reward}");
        assert_eq!(rig.provider.leaked(), Vec::<String>::new());
        let way_in = finished.record.environment.expect("an environment").preserved;
        assert_eq!(way_in.is_some(), kept);
        assert_eq!(rig.provider.calls().contains(&FakeCall::Stop), kept);
    }
}

#[tokio::test]
async fn environment_preserve_failure_removes_it() {
    let mut rig = TrialFixture::new().await;
    rig.settings.environment.preserve_env = PreservePolicy::Always;
    rig.provider
        .fault(FaultTrigger::Every(FakeCall::Preserve), FaultEffect::Fail(FailureKind::Service));
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.outcome, ItemOutcome::Completed);
    assert_eq!(error(&finished).kind, ErrorType::EnvironmentTeardownFailed);
    assert_eq!(rig.provider.existing(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn environment_teardown_failure_keeps_reward() {
    for (script, first) in [
        ("echo fine", ErrorType::EnvironmentTeardownFailed),
        ("exit 1", ErrorType::AgentExecutionFailed),
    ] {
        let mut rig = TrialFixture::new().await;
        rig.set_scripts(None, Some(script));
        rig.provider
            .fault(FaultTrigger::Every(FakeCall::Destroy), FaultEffect::Fail(FailureKind::Service));
        let finished = verdict(rig.run().await);
        assert_eq!(error(&finished).kind, first);
        let verdict = &finished.record.verdict;
        let teardown = first == ErrorType::EnvironmentTeardownFailed;
        assert_eq!(verdict.outcome == ItemOutcome::Completed, teardown);
        assert_eq!(verdict.reward, teardown.then_some(1.0));
        assert!(!error(&finished).is_retryable());
        let later = if teardown { vec![] } else { vec!["provider_error"] };
        assert_eq!(secondary_codes(&finished.record), later);
        let tries = rig.provider.calls().iter().filter(|call| **call == FakeCall::Destroy).count();
        assert_eq!((tries, rig.provider.leaked().len()), (3, 1));
    }
}

#[tokio::test]
async fn trial_with_nop_agent_has_no_files_or_scratch() {
    let mut rig = TrialFixture::new().await;
    rig.provider = rig.provider.in_memory();
    rig.provider.set_hostile_reader(std::sync::Arc::new(|_| Some(None)));
    rig.agent.kind = AgentKind::Nop;
    rig.settings.verifier.disable = true;
    rig.task.steps[0].files = Default::default();
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.outcome, ItemOutcome::Unverified);
    assert!(is_bare(&finished), "{finished:?}");
    assert!(!rig.dir.path().join("scratch").exists());
}

#[tokio::test]
async fn task_files_that_vanish_are_fetched_again() {
    let rig = TrialFixture::new().await;
    let blob = rig.store_archive("a.txt", "a").await;
    let services = rig.services();
    let files = &services.files;
    let first = files.directory("x", &blob).await.expect("there").path().to_owned();
    let cache = first.parent().expect("it is in the cache").to_owned();
    std::fs::remove_dir_all(&first).expect("removed");
    let second = files.directory("x", &blob).await.expect("fetched again");
    assert!(second.path().join("a.txt").exists());
    assert_ne!(second.path(), first);
    std::fs::remove_dir_all(&cache).expect("removed");
    let third = files.directory("x", &blob).await.expect("fetched again, into a new cache");
    assert!(third.path().join("a.txt").exists());
    let empty = files.empty_directory().await.expect("made");
    std::fs::remove_dir_all(&cache).expect("removed");
    drop(empty);
    assert!(files.empty_directory().await.expect("made again").path().exists());
    let archive = files.archive("x", &blob).await.expect("there");
    assert!(archive.path().is_file());
}

#[tokio::test]
async fn cache_that_takes_no_writes_is_no_outage_of_the_store() {
    let mut rig = TrialFixture::new().await;
    rig.max_park = Duration::from_secs(900);
    let blob = rig.store_archive("a.txt", "a").await;
    let services = rig.services();
    let files = &services.files;
    let first = files.directory("x", &blob).await.expect("there").path().to_owned();
    let cache = first.parent().expect("it is in the cache").to_owned();
    std::fs::remove_dir_all(&cache).expect("removed");
    std::fs::write(&cache, "no directory").expect("written");
    let failed = files.directory("x", &blob).await.expect_err("there is no cache");
    assert!(!failed.is_store_unanswered(), "{failed:?}");
    assert!(failed.chain().contains("Not a directory"), "{}", failed.chain());
    let finished = verdict(super::super::run(rig.context(), &services).await);
    let found = error_summary(error(&finished));
    assert!(found.ends_with("disk_failed infrastructure transient"), "{found}");
    assert_eq!(rig.phases.parked(), [], "nothing waits for the store");
}

#[tokio::test]
async fn task_files_are_fetched_once_and_evicted_when_unused() {
    let rig = TrialFixture::new().await;
    let blob = rig.store_archive("a.txt", "a").await;
    let services = rig.services();
    let files = &services.files;
    let get = || async { files.directory("x", &blob).await.expect("there").path().to_owned() };
    let (a, b, c) = tokio::join!(get(), get(), get());
    assert!(a == b && b == c && a.join("a.txt").exists());
    let held = files.archive("x", &blob).await.expect("there");
    let missing = rollout_protocol::blob::BlobRef {
        digest: rollout_protocol::digest::Digest::sha256(b"never stored"),
        ..blob.clone()
    };
    assert!(files.archive("x", &missing).await.is_err());
    for n in 0..300 {
        let other = rig.store_archive("b.txt", &n.to_string()).await;
        files.archive("x", &other).await.expect("there");
    }
    assert!(!a.exists(), "not used for long");
    assert!(held.path().exists(), "still used");
    let left = std::fs::read_dir(rig.dir.path().join("files")).expect("listed").count();
    assert!((200..=257).contains(&left), "{left}");
    tokio::time::timeout(Duration::from_secs(60), get()).await.expect("fetched again");
}
