//! Verifiers with environments of their own.

use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_environment::{EnvironmentPurpose, FailureKind, Upload};
use rollout_protocol::error::ErrorType;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::ItemOutcome;
use rollout_protocol::spec::environment::{EnvironmentRates, PreservePolicy};
use rollout_protocol::spec::task::NetworkPolicy;
use rollout_protocol::template::Template;
use rollout_protocol::wire::control::StopLevel;

use super::super::testing::TrialFixture;
use super::artifacts::artifact;
use super::{error, error_summary, log_names, logs, output, run, verdict};

const ANSWER: &str =
    "cat /app/answer.txt; echo 1 > /logs/verifier/reward.txt; echo t > /logs/verifier/t";

/// A task whose answer is verified in another environment.
async fn rig() -> TrialFixture {
    let mut rig = TrialFixture::new().await;
    rig.use_harbor_format();
    rig.verify_separately();
    rig.set_scripts(None, Some("echo 42 > /app/answer.txt; echo a > /logs/agent/a"));
    rig.task.steps[0].artifacts = vec![artifact("/app/answer.txt")];
    rig.set_tests(ANSWER).await;
    rig
}

#[tokio::test]
async fn separate_verifier_gets_only_artifacts() {
    let mut rig = rig().await;
    rig.set_scripts(
        None,
        Some(
            "echo 42 > /app/answer.txt; echo 9 > /logs/verifier/reward.txt; echo a > /logs/agent/a
            mkdir -p /tests; echo 'echo 9 > /logs/verifier/reward.txt' > /tests/test.sh
            echo x > /logs/artifacts/x; background writer",
        ),
    );
    rig.set_tests(&format!("test -e /logs/artifacts/x; alive writer\n{ANSWER}")).await;
    let own = rig.task.steps[0].verifier.environment.as_mut().expect("one");
    own.network = NetworkPolicy::NoNetwork;
    own.env.insert("OWN".into(), Template::new("1"));
    rig.task.environment.env.insert("AGENTS".into(), Template::new("1"));
    let finished = run(&rig).await;
    assert_eq!(
        error_summary(error(&finished)),
        "verifier_reward_missing reward_missing verifier permanent"
    );
    rig.set_tests(&format!("test -e /logs/artifacts/x; echo $OWN $AGENTS\n{ANSWER}")).await;
    let finished = run(&rig).await;
    let record = &finished.record;
    assert_eq!(
        (record.verdict.outcome, record.verdict.reward),
        (ItemOutcome::Completed, Some(1.0))
    );
    assert_eq!(output(&finished, "logs/verifier/stdout.txt"), "1 \n42\n");
    assert!(record.verifier_stdout.is_some());
    let images = [&record.environment, &record.verifier_environment];
    let images = images.map(|e| e.as_ref().expect("an environment").image.as_str());
    assert_eq!(images, ["image", "verifier"]);
    let logs = logs(&finished).expect("logs");
    let content = |name: &str| logs.iter().find(|(n, _)| n == name).map(|(_, c)| &c[..]);
    assert_eq!(content("agent/a"), Some(&b"a\n"[..]));
    assert_eq!(content("verifier/reward.txt"), Some(&b"1\n"[..]), "not the agent's");
    let purposes: Vec<_> =
        rig.provider.requests().into_iter().map(|(r, _)| (r.purpose, r.network)).collect();
    let once = [
        (EnvironmentPurpose::Agent, NetworkPolicy::Public),
        (EnvironmentPurpose::Verifier, NetworkPolicy::NoNetwork),
    ];
    assert_eq!(purposes, [&once[..], &once[..]].concat());
}

#[tokio::test]
async fn separate_verifier_starts_after_agent_environment_stops() {
    let rig = rig().await;
    assert!(run(&rig).await.record.verdict.passed());
    let calls = [
        FakeCall::Prepare,
        FakeCall::Create,
        FakeCall::CopyTo,
        FakeCall::Exec,
        FakeCall::Kill,
        FakeCall::CopyFrom,
        FakeCall::CopyFrom,
        FakeCall::Stop,
        FakeCall::Prepare,
        FakeCall::Create,
        FakeCall::CopyTo,
        FakeCall::Exec,
        FakeCall::CopyFrom,
        FakeCall::CopyFrom,
        FakeCall::Destroy,
        FakeCall::Destroy,
    ];
    assert_eq!(rig.provider.calls(), calls);
}

#[tokio::test]
async fn separate_verifier_with_tests_in_image_uploads_none() {
    for (own, placed) in [(true, false), (false, true)] {
        let mut rig = rig().await;
        let context = rig.store_archive("Dockerfile", "FROM scratch").await;
        let tests = rig.store_archive("Dockerfile", "FROM scratch # with tests").await;
        rig.task.environment.context = Some(context.clone());
        let environment = rig.task.steps[0].verifier.environment.as_mut().expect("one");
        environment.docker_image = None;
        environment.context = Some(if own { tests } else { context });
        if own {
            rig.task.steps[0].files.tests = None;
        }
        rig.provider.image_file("/tests/test.sh", "echo 0.5 > /logs/verifier/reward.txt");
        let reward = run(&rig).await.record.verdict.reward;
        assert_eq!(reward, Some(if placed { 1.0 } else { 0.5 }));
    }
}

#[tokio::test(start_paused = true)]
async fn separate_verifier_with_any_failed_call_leaks_nothing() {
    let kinds =
        [FaultEffect::Fail(FailureKind::Unreachable), FaultEffect::Panic, FaultEffect::Hang];
    let calls = {
        let rig = rig().await;
        run(&rig).await;
        rig.provider.calls()
    };
    for (at, call) in calls.iter().enumerate() {
        for effect in kinds {
            let rig = rig().await;
            rig.provider.fault(FaultTrigger::Any(at), effect);
            let finished = verdict(rig.run().await);
            let what = format!("{call:?} at {at}: {effect:?}: {:?}", finished.record.verdict);
            assert_eq!(rig.provider.leaked(), Vec::<String>::new(), "{what}");
            assert_eq!(rig.provider.busy(), Vec::<String>::new(), "{what}");
            let verdict = &finished.record.verdict;
            let scored = verdict.outcome == ItemOutcome::Completed;
            // The collection of logs and the removal come after the verdict; an artifact that was
            // not requested may be missing.
            assert_eq!(scored, at >= 12 && !(at == 12 && effect == FaultEffect::Panic), "{what}");
            assert!(scored || verdict.error.is_some(), "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn separate_verifier_killed_removes_both_environments() {
    let mut rig = rig().await;
    rig.set_tests("sleep 50").await;
    rig.settings.environment.preserve_env = PreservePolicy::Always;
    let services = rig.services();
    let killing = async {
        for _ in 0..10_000 {
            if rig.provider.requests().len() == 2 && !rig.provider.busy().is_empty() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        rig.stop.send_replace(Some(StopLevel::Kill));
    };
    let (finished, ()) = tokio::join!(super::super::run(rig.context(), &services), killing);
    assert_eq!(finished.stopped, Some(Phase::Verification));
    assert!(finished.record.verifier_environment.is_some());
    assert_eq!(rig.provider.existing(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn separate_verifier_cost_excludes_stopped_agent_time() {
    let mut rig = rig().await;
    rig.settings.environment.rates =
        EnvironmentRates { cpu_hour: 100.0, gib_hour: 0.0, start: 0.5 };
    rig.set_scripts(None, Some("echo 42 > /app/answer.txt; sleep 36"));
    rig.set_tests(&format!("sleep 18\n{ANSWER}")).await;
    let cost = run(&rig).await.record.verdict.cost;
    assert!((2.5..2.51).contains(&cost), "{cost}");
}

#[tokio::test]
async fn separate_verifier_with_unread_artifact_is_not_run() {
    let rig = rig().await;
    rig.provider
        .fault(FaultTrigger::Nth(FakeCall::CopyFrom, 1), FaultEffect::Fail(FailureKind::Service));
    let finished = run(&rig).await;
    assert_eq!(
        error_summary(error(&finished)),
        "verifier_failed collection_failed infrastructure transient"
    );
    assert_eq!(rig.provider.requests().len(), 1);
    let mut rig = rig_without_answer().await;
    rig.set_tests("echo 0 > /logs/verifier/reward.txt").await;
    assert_eq!(run(&rig).await.record.verdict.reward, Some(0.0), "what is not there is judged");
}

async fn rig_without_answer() -> TrialFixture {
    let mut rig = rig().await;
    rig.set_scripts(None, Some("echo nothing"));
    rig
}

#[tokio::test]
async fn separate_verifier_create_failure_is_verification_error() {
    let rig = rig().await;
    rig.provider
        .fault(FaultTrigger::Nth(FakeCall::Create, 1), FaultEffect::Fail(FailureKind::Refused));
    let finished = run(&rig).await;
    assert_eq!(error(&finished).kind, ErrorType::EnvironmentStartFailed);
    assert_eq!(error(&finished).phase, Phase::Verification);
    assert!(log_names(&finished).contains(&"agent/a".to_owned()));
    assert_eq!(rig.provider.leaked(), Vec::<String>::new());
}

#[tokio::test]
async fn artifact_in_tests_or_logs_is_not_uploaded_to_verifier() {
    let mut rig = rig().await;
    rig.set_scripts(
        None,
        Some(
            "mkdir -p /tests; echo 'echo 9 > /logs/verifier/reward.txt' > /tests/test.sh
            echo 9 > /logs/verifier/reward.txt",
        ),
    );
    rig.task.steps[0].artifacts = ["/tests", "/logs/verifier", "/logs"].map(artifact).into();
    rig.set_tests("test -e /logs/agent; echo 0 > /logs/verifier/other").await;
    let finished = run(&rig).await;
    assert_eq!(error(&finished).kind, ErrorType::VerifierRewardMissing);
    let placed = rig.provider.requests().into_iter().flat_map(|(request, _)| request.uploads);
    assert!(!placed.into_iter().any(|upload| matches!(upload, Upload::Merge { .. })));
}

#[tokio::test]
async fn separate_verifier_uses_its_own_compose_file() {
    let mut rig = rig().await;
    let mut contexts = Vec::new();
    for name in ["agent.yaml", "verifier.yaml"] {
        contexts.push((name, rig.store_archive(name, "services: {}").await));
    }
    let own = rig.task.steps[0].verifier.environment.as_deref_mut().expect("it has one");
    for (environment, (name, context)) in [&mut rig.task.environment, own].into_iter().zip(contexts)
    {
        environment.compose = Some(name.to_owned());
        environment.context = Some(context);
    }
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.error, None);
    let requests = rig.provider.requests().into_iter();
    let files = requests.filter_map(|(request, _)| request.compose?.file);
    assert_eq!(
        files.collect::<Vec<_>>(),
        ["agent.yaml", "verifier.yaml"].map(std::path::PathBuf::from)
    );
}

#[tokio::test]
async fn compose_files_of_job_are_for_environment_of_agent_alone() {
    let mut rig = rig().await;
    rig.settings.compose_overlays = vec!["services: {db: {image: x}}".to_owned()];
    assert_eq!(run(&rig).await.record.verdict.error, None);
    let requests = rig.provider.requests();
    let files: Vec<_> = requests.into_iter().map(|(request, _)| request.compose).collect();
    let [Some(of_agent), None] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!((&of_agent.file, &of_agent.overlays), (&None, &rig.settings.compose_overlays));
}
