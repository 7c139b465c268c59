//! Sweeps with an environment of their own.

use std::time::Duration;

use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_environment::{EnvironmentPurpose, FailureKind};
use rollout_protocol::error::{ErrorCode, ErrorType, RetryClass};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{EvalEnd, EvalRecord, LogsRecord};
use rollout_protocol::spec::environment::{ProcessSettings, ProviderSpec};
use rollout_protocol::spec::eval::SweepEnvironment;
use rollout_protocol::template::Template;
use rollout_protocol::wire::control::StopLevel;

use super::runs::{EvalFixture, command, failed};
use super::*;

/// An eval whose sweep has an environment of its own, and whose other commands leave files that are
/// not committed.
pub(super) async fn sweep_environment_fixture() -> EvalFixture {
    let mut eval = EvalFixture::new().await;
    let mut environment = eval.spec.environment.clone();
    environment.docker_image = Some("sweeper".into());
    environment.env.insert("OWN".into(), Template::new("1"));
    let mut settings = eval.spec.settings.clone();
    settings.rates.start = 10.0;
    eval.spec.settings.rates.start = 1.0;
    eval.spec.sweep_environment = Some(Box::new(SweepEnvironment { environment, settings }));
    eval.spec.commands.implement =
        command("echo 2 > value; echo x > a.log; echo x > /tmp/mark; echo done > /logs/note");
    let sweep = &mut eval.spec.commands.sweep.script;
    sweep.push_str("\necho $OWN > /logs/own");
    eval
}

/// The text of an archive of logs, roughly.
async fn archive_text(eval: &EvalFixture, logs: Option<&LogsRecord>) -> String {
    let bytes = eval.world.store.get_bytes(&logs.expect("logs").archive.digest, 1 << 20).await;
    String::from_utf8_lossy(&bytes.expect("stored")).into_owned()
}

pub(super) fn assert_completed(record: &EvalRecord) {
    assert_eq!((record.end, &record.error), (EvalEnd::Completed, &None));
    assert_eq!(record.secondary_errors, []);
}

#[tokio::test]
async fn sweep_in_separate_environment_measures_commit_only() {
    let mut eval = sweep_environment_fixture().await;
    let record = eval.run().await;
    assert_completed(&record);
    let images = [record.environment.as_ref(), record.sweep_environment.as_deref()];
    let images = images.map(|e| e.expect("an environment").image.as_str());
    assert_eq!(images, ["image", "sweeper"]);
    assert!((11.0..12.0).contains(&record.cost), "{}: of both", record.cost);
    let results = eval.text(record.results.as_ref().expect("results")).await;
    assert_eq!(results, "config_id,score\n2\n");
    let first = archive_text(&eval, record.logs.as_ref()).await;
    let second = archive_text(&eval, record.sweep_logs.as_deref()).await;
    assert!(first.contains("done\n") && first.contains("note") && !first.contains("own"));
    assert!(second.contains("1\n") && second.contains("own") && !second.contains("note"));
    let provider = &eval.rig.provider;
    let purposes: Vec<_> = provider.requests().iter().map(|(r, _)| r.purpose).collect();
    assert_eq!(purposes, [EnvironmentPurpose::Agent, EnvironmentPurpose::Verifier]);
    let calls = provider.calls();
    let all = |kind| calls.iter().enumerate().filter(move |(_, c)| **c == kind).map(|(at, _)| at);
    let (made, gone): (Vec<_>, Vec<_>) =
        (all(FakeCall::Create).collect(), all(FakeCall::Destroy).collect());
    assert!(made[0] < gone[0] && gone[0] < made[1] && made[1] < gone[1], "{calls:?}");
    let phases = [
        Phase::EnvironmentSetup,
        Phase::AgentExecution,
        Phase::Collection,
        Phase::Teardown,
        Phase::EnvironmentSetup,
        Phase::Verification,
        Phase::Collection,
        Phase::Teardown,
    ];
    assert_eq!(eval.rig.phases.entered(), phases);
    eval.spec.sweep_environment = None;
    let shared = eval.run().await;
    assert_eq!(shared.candidate, record.candidate);
    assert_eq!((shared.sweep_environment, shared.sweep_logs), (None, None));
}

#[tokio::test]
async fn uncommitted_file_does_not_reach_separate_sweep() {
    for path in ["a.log", "tests.log", "/tmp/mark", "/logs/note"] {
        let mut eval = sweep_environment_fixture().await;
        let sweep = &mut eval.spec.commands.sweep.script;
        *sweep = format!("test -f .gitignore; test -d .git; test -f $ROLLOUT_IDEA_FILE\n{sweep}");
        assert_completed(&eval.run().await);
        let sweep = &mut eval.spec.commands.sweep.script;
        *sweep = format!("test -f {path}\n{sweep}");
        let record = eval.run().await;
        assert_eq!(failed(&record).0, ErrorType::VerifierFailed, "{path}");
        assert!(record.candidate.is_some() && record.sweep_logs.is_some());
        eval.spec.sweep_environment = None;
        assert_completed(&eval.run().await);
    }
}

#[tokio::test]
async fn separate_sweep_is_not_set_up_after_failure_or_no_change() {
    let mut eval = sweep_environment_fixture().await;
    eval.spec.commands.review = Some(command("exit 1"));
    assert_eq!(failed(&eval.run().await).0, ErrorType::VerifierFailed);
    eval.spec.commands.implement = command("echo x > b.log");
    eval.spec.commands.review = None;
    let record = eval.run().await;
    assert_eq!((record.end, record.sweep_environment), (EvalEnd::NoChanges, None));
    assert_eq!(eval.rig.provider.requests().len(), 2);
    // A worker that cannot create it does not begin.
    let own = eval.spec.sweep_environment.as_mut().expect("one");
    own.settings.provider = ProviderSpec::Process(ProcessSettings::default());
    let record = eval.run().await;
    assert_eq!((failed(&record).1, record.commands.len()), (&ErrorCode::UNPLACEABLE, 0));
    assert_eq!(eval.rig.provider.requests().len(), 2);
}

#[tokio::test]
async fn separate_sweep_after_failed_teardown_is_not_created() {
    let mut eval = sweep_environment_fixture().await;
    eval.rig
        .provider
        .fault(FaultTrigger::Every(FakeCall::Destroy), FaultEffect::Fail(FailureKind::Refused));
    let record = eval.run().await;
    assert_eq!(failed(&record).0, ErrorType::EnvironmentTeardownFailed);
    let error = record.error.as_ref().expect("an error");
    assert_eq!((error.retry, error.phase), (RetryClass::Transient, Phase::Teardown));
    assert_eq!((eval.rig.provider.requests().len(), record.commands.len()), (1, 3));
    assert!(record.logs.is_some() && record.sweep_logs.is_none());
}

#[tokio::test]
async fn eval_timeout_excludes_environment_switch() {
    let mut eval = sweep_environment_fixture().await;
    eval.spec.timeout_sec = Some(4.0);
    // Removals are tried again after a second, and after five.
    for at in 0..2 {
        let effect = FaultEffect::Fail(FailureKind::Unreachable);
        eval.rig.provider.fault(FaultTrigger::Nth(FakeCall::Destroy, at), effect);
    }
    let record = eval.run().await;
    assert_completed(&record);
    assert!(record.durations.total_sec > 6.0, "{:?}", record.durations);
}

#[tokio::test]
async fn stop_between_environments_leaves_none() {
    for phase in [Phase::Collection, Phase::Teardown] {
        for level in [StopLevel::Drain, StopLevel::Kill] {
            let mut eval = sweep_environment_fixture().await;
            eval.rig.stop_in(phase, level);
            let record = eval.run().await;
            assert_eq!(record.end, EvalEnd::Stopped, "{phase} {level:?}: {:?}", record.error);
            assert_eq!((record.commands.len(), record.sweep_environment), (3, None));
            assert_eq!(eval.rig.provider.existing(), Vec::<String>::new());
        }
    }
    let mut eval = sweep_environment_fixture().await;
    eval.rig.provider.fault(FaultTrigger::Nth(FakeCall::Prepare, 1), FaultEffect::Hang);
    let (stop, phases) = (eval.rig.stop.clone(), eval.rig.phases.clone());
    let stopping = async {
        let setups = || phases.entered().iter().filter(|p| **p == Phase::EnvironmentSetup).count();
        while setups() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.send_replace(Some(StopLevel::Kill));
    };
    let (record, ()) = tokio::join!(eval.run(), stopping);
    assert_eq!((record.end, record.sweep_environment), (EvalEnd::Stopped, None));
    assert_eq!(eval.rig.provider.existing(), Vec::<String>::new());
}
