//! Commands that failed while the proxy of the allowed hosts did.

use std::sync::Arc;

use rollout_base::secrets::Redactor;
use rollout_environment::{EnvironmentPurpose, Image, ImageSource};
use rollout_gateway::agents::AgentPlan;
use rollout_protocol::error::{ErrorClass, ErrorCode, TrialError};
use rollout_protocol::spec::task::{CollectHook, NetworkPolicy};

use super::super::run::TrialRun;
use super::super::score::VerifierScore;
use super::super::testing::TrialFixture;
use super::super::{failure, setup};
use super::error_summary;
use crate::executor::errors::{ScriptError, ScriptStage, SetupError};

/// Errors that commands lead to outside of scripts of the agent and the verifier, and those of both.
fn errors() -> Vec<TrialError> {
    let redactor = Redactor::default();
    let exit = || ScriptError::Exit { code: 9, oom_killed: false, last_words: String::new() };
    let (check, why) = ("healthcheck", "it ended with code 1".to_owned());
    vec![
        SetupError::Unhealthy { check, failures: 3, why, hint: "" }.into_error(&redactor),
        failure::not_ready("curl a.example", "it ended with code 6", &redactor),
        exit().into_error(ScriptStage::Prepare, &redactor),
        exit().into_error(ScriptStage::Execute, &redactor),
        exit().into_error(ScriptStage::Verify, &redactor),
    ]
}

#[tokio::test]
async fn failure_of_any_command_beside_a_failed_proxy_is_infrastructure_failure() {
    let rig = TrialFixture::new().await;
    let (ctx, services) = (rig.context(), rig.services());
    for error in errors() {
        for is_failed in [true, false] {
            let mut run = TrialRun::new(&ctx, &services, AgentPlan::default());
            if is_failed {
                run.attempt.environment.fail_access("a bug");
            }
            run.attempt.record_error(error.clone());
            run.blame_host().await;
            let first = run.attempt.first_error.expect("an error");
            if !is_failed {
                assert_eq!(first, error);
                continue;
            }
            let expected = format!("{} provider_error infrastructure transient", error.kind);
            assert_eq!(error_summary(&first), expected, "{first:?}");
            let text = "the proxy of the allowed hosts failed (a bug) while the trial ran: ";
            assert_eq!(first.message, format!("{text}{}", error.message));
            assert_eq!(run.attempt.secondary_errors, std::slice::from_ref(&error));
        }
    }
}

#[tokio::test]
async fn reward_beside_a_failed_proxy_counts_if_it_is_full() {
    let rig = TrialFixture::new().await;
    let (ctx, services) = (rig.context(), rig.services());
    for (reward, is_kept) in [(1.0, true), (0.0, false)] {
        let mut run = TrialRun::new(&ctx, &services, AgentPlan::default());
        run.attempt.environment.fail_access("a bug");
        run.score = Some(VerifierScore::plain(reward));
        run.blame_host().await;
        assert_eq!(run.score.is_some(), is_kept, "{reward}");
        let class = run.attempt.first_error.map(|error| error.class);
        assert_eq!(class, (!is_kept).then_some(ErrorClass::Infrastructure), "{reward}");
    }
}

/// Runs a failing collect hook in an environment with this network, after a failure of the proxy if there
/// is one; returns the error that a full reward leads to.
async fn error_beside_full_reward(
    hook: &str,
    network: NetworkPolicy,
    proxy_fails: bool,
) -> Option<ErrorCode> {
    let mut rig = TrialFixture::new().await;
    rig.task.environment.network = network;
    let command = hook.to_owned();
    let hook = CollectHook { command, service: None, timeout_sec: 1.0, user: None };
    rig.task.steps[0].verifier.collect = vec![hook];
    let (ctx, services) = (rig.context(), rig.services());
    let mut run = TrialRun::new(&ctx, &services, AgentPlan::default());
    let image = (ImageSource::Named("an image".to_owned()), Image::found("an image"));
    let (task, purpose) = (&ctx.task.environment, EnvironmentPurpose::Agent);
    let request = setup::create_request(&ctx, &services, task, purpose, image, Vec::new());
    let created = run.attempt.environment.create(Arc::new(rig.provider.clone()), request).await;
    created.expect("created");
    if proxy_fails {
        run.attempt.environment.fail_access("a bug");
    }
    assert!(run.collect_artifacts(ctx.step(), false).await.is_ok(), "the hook alone fails");
    assert!(run.attempt.secondary_errors.iter().any(failure::is_of_hook));
    run.score = Some(VerifierScore::plain(1.0));
    run.blame_host().await;
    assert_eq!(run.score.is_some(), run.attempt.first_error.is_none());
    run.attempt.first_error.map(|error| error.code)
}

#[tokio::test]
async fn full_reward_beside_a_failed_hook_counts_unless_its_environment_was_removed() {
    for (hook, proxy_fails, expected) in [
        ("exit 4", false, None),
        // The list that was not served is in force no more.
        ("exit 4", true, None),
        ("remove", false, Some(ErrorCode::ENVIRONMENT_LOST)),
    ] {
        let found = error_beside_full_reward(hook, NetworkPolicy::Public, proxy_fails).await;
        assert_eq!(found, expected, "{hook}");
    }
}

#[tokio::test]
async fn full_reward_beside_a_hook_that_fails_without_its_proxy_does_not_count() {
    for (proxy_fails, expected) in [(false, None), (true, Some(ErrorCode::PROVIDER_ERROR))] {
        let network = NetworkPolicy::Allowlist(vec!["a.example".to_owned()]);
        assert_eq!(error_beside_full_reward("exit 4", network, proxy_fails).await, expected);
    }
}
