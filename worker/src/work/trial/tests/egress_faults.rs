//! Commands that failed while the proxy of the allowed hosts did.

use rollout_base::secrets::Redactor;
use rollout_protocol::error::{ErrorClass, TrialError};

use super::super::failure;
use super::super::run::TrialRun;
use super::super::score::VerifierScore;
use super::super::testing::TrialFixture;
use super::error_summary;
use crate::agents::AgentPlan;
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
async fn reward_beside_a_failed_proxy_counts_if_it_is_full_and_no_hook_failed() {
    let rig = TrialFixture::new().await;
    let (ctx, services) = (rig.context(), rig.services());
    let hook =
        || failure::not_ready("curl a.example", "it ended with code 6", &Redactor::default());
    for (reward, secondary, is_kept) in
        [(1.0, None, true), (0.0, None, false), (1.0, Some(hook()), false)]
    {
        let mut run = TrialRun::new(&ctx, &services, AgentPlan::default());
        run.attempt.environment.fail_access("a bug");
        run.attempt.secondary_errors.extend(secondary);
        run.score = Some(VerifierScore::plain(reward));
        run.blame_host().await;
        assert_eq!(run.score.is_some(), is_kept, "{reward}");
        let class = run.attempt.first_error.map(|error| error.class);
        assert_eq!(class, (!is_kept).then_some(ErrorClass::Infrastructure), "{reward}");
    }
}
