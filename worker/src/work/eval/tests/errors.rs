//! Errors of evals, which come from the executor's table.

use std::time::Duration;

use rollout_base::secrets::TrialVariables;
use rollout_environment::FailureKind;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_protocol::blob::BlobRef;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::EvalEnd;
use rollout_protocol::template::Template;
use rollout_protocol::wire::control::StopLevel;

use super::runs::{EvalFixture, command};

/// An eval whose image is built from an empty build context.
async fn built_image_fixture() -> EvalFixture {
    let mut eval = EvalFixture::new().await;
    let context: BlobRef = eval.rig.store_archive("Dockerfile", "FROM scratch").await;
    eval.spec.environment.docker_image = None;
    eval.spec.environment.context = Some(context);
    eval
}

#[tokio::test]
async fn eval_image_failure_has_trial_error_type() {
    use ErrorType::{EnvironmentBuildFailed, EnvironmentBuildTimeout, EnvironmentImagePullFailed};
    let (pull, build) = (EnvironmentImagePullFailed, EnvironmentBuildFailed);
    for (is_named, kind, expected, code) in [
        (true, FailureKind::Refused, pull, ErrorCode::REFUSED),
        (true, FailureKind::Unreachable, pull, ErrorCode::UNREACHABLE),
        (true, FailureKind::TimedOut, pull, ErrorCode::TIMED_OUT),
        (false, FailureKind::Refused, build, ErrorCode::REFUSED),
        (false, FailureKind::TimedOut, EnvironmentBuildTimeout, ErrorCode::TIMED_OUT),
        (false, FailureKind::NotStarted, build, ErrorCode::PROVIDER_ERROR),
    ] {
        let mut eval =
            if is_named { EvalFixture::new().await } else { built_image_fixture().await };
        eval.rig.provider.fault(FaultTrigger::Nth(FakeCall::Prepare, 0), FaultEffect::Fail(kind));
        let record = eval.run().await;
        let error = record.error.expect("an error");
        assert_eq!((record.end, error.kind, error.code), (EvalEnd::Failed, expected, code));
    }
}

#[tokio::test]
async fn build_log_after_a_failed_build_is_kept() {
    for fails in [true, false] {
        let mut eval = built_image_fixture().await;
        // The scripted provider writes no log: this file stands for it.
        let log = eval.world.dir.path().join("scratch-1/setup/build.log");
        std::fs::create_dir_all(log.parent().expect("a directory")).expect("created");
        std::fs::write(&log, "no space left").expect("written");
        if fails {
            let effect = FaultEffect::Fail(FailureKind::Refused);
            eval.rig.provider.fault(FaultTrigger::Nth(FakeCall::Prepare, 0), effect);
        }
        let record = eval.run().await;
        let kept = record.outputs.iter().find(|output| output.path == "setup/build.log");
        assert_eq!(kept.map(|output| output.total_bytes), fails.then_some(13), "{record:?}");
    }
}

#[tokio::test]
async fn build_log_of_a_killed_build_has_no_secrets() {
    let mut eval = built_image_fixture().await;
    eval.rig.variables = TrialVariables::new([("KEY".into(), "hunter2-hunter2".into())]);
    eval.spec.secrets.insert("KEY".to_owned());
    eval.spec.env.insert("KEY".to_owned(), Template::new("${KEY}"));
    let log = eval.world.dir.path().join("scratch-1/setup/build.log");
    std::fs::create_dir_all(log.parent().expect("a directory")).expect("created");
    std::fs::write(&log, "proxy: hunter2-hunter2").expect("written");
    eval.rig.provider.fault(FaultTrigger::Nth(FakeCall::Prepare, 0), FaultEffect::Hang);
    let (provider, stop) = (eval.rig.provider.clone(), eval.rig.stop.clone());
    let killing = async {
        while !provider.calls().contains(&FakeCall::Prepare) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.send_replace(Some(StopLevel::Kill));
    };
    let (record, ()) = tokio::join!(eval.run(), killing);
    assert_eq!(record.end, EvalEnd::Stopped);
    let mut logs = record.outputs.iter().filter(|output| output.path == "setup/build.log");
    let kept = eval.text(&logs.next().expect("a log").blob).await;
    assert_eq!(kept, "proxy: [redacted:KEY]");
}

#[tokio::test]
async fn eval_results_not_written_on_worker_fail_collection_and_are_retryable() {
    let mut eval = EvalFixture::new().await;
    // A directory is in the way of the file.
    let file = eval.world.dir.path().join("scratch-1/results.csv");
    std::fs::create_dir_all(&file).expect("created");
    let record = eval.run().await;
    let error = record.error.expect("an error");
    assert_eq!((record.end, error.kind), (EvalEnd::Failed, ErrorType::InternalError));
    assert_eq!((error.phase, error.is_retryable()), (Phase::Collection, true), "{error}");
}

#[tokio::test]
async fn eval_command_not_started_fails_with_type_of_stage() {
    use ErrorType::{AgentExecutionFailed, VerifierFailed};
    for (nth, expected, class) in [
        (0, AgentExecutionFailed, ErrorClass::Agent),
        (1, VerifierFailed, ErrorClass::Verifier),
        (3, VerifierFailed, ErrorClass::Verifier),
    ] {
        let mut eval = EvalFixture::new().await;
        let effect = FaultEffect::Fail(FailureKind::NotStarted);
        eval.rig.provider.fault(FaultTrigger::Nth(FakeCall::Exec, nth), effect);
        let error = eval.run().await.error.expect("an error");
        assert_eq!((error.kind, error.class), (expected, class));
        assert_eq!((error.code, error.retry), (ErrorCode::EXEC_NOT_STARTED, RetryClass::Permanent));
    }
}

#[tokio::test]
async fn eval_command_error_message_begins_with_stage() {
    let mut eval = EvalFixture::new().await;
    eval.spec.commands.review = Some(command("echo no >&2; exit 3"));
    let message = eval.run().await.error.expect("an error").message;
    let review = "review: the review did not approve the change: it ended with code 3: no";
    assert_eq!(message, review);
    let mut slow = command("sleep 1000");
    slow.timeout_sec = Some(0.3);
    eval.spec.commands.implement = slow;
    let message = eval.run().await.error.expect("an error").message;
    assert_eq!(message, "implement: the command exceeded its time limit of 300ms");
}
