//! Faults of any call: a typed error, no environment left, logs where there were any.

use std::sync::Arc;

use rollout_environment::FailureKind;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_protocol::error::{ErrorClass, ErrorType};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{ItemOutcome, TrialRecord};

use super::super::TrialContext;
use super::super::testing::TrialFixture;
use super::{error, error_summary, logs, run, secondary_codes, verdict};
use crate::disk::{DiskUse, DiskWatch};
use crate::executor::{ExecutionServices, Finished};

const KINDS: [FailureKind; 15] = [
    FailureKind::Refused,
    FailureKind::Resources,
    FailureKind::Exhausted,
    FailureKind::NotStarted,
    FailureKind::Gone,
    FailureKind::NotPermitted,
    FailureKind::DiskFull,
    FailureKind::StorageExceeded,
    FailureKind::Unreachable,
    FailureKind::TimedOut,
    FailureKind::Service,
    FailureKind::LeftBehind,
    FailureKind::Bug,
    FailureKind::Unusable,
    FailureKind::Unsupported,
];

/// The calls of a successful trial, each with its phase.
const CALLS: [(FakeCall, Phase); 9] = [
    (FakeCall::Prepare, Phase::EnvironmentSetup),
    (FakeCall::Create, Phase::EnvironmentSetup),
    (FakeCall::Exec, Phase::AgentSetup),
    (FakeCall::CopyTo, Phase::AgentExecution),
    (FakeCall::Exec, Phase::AgentExecution),
    (FakeCall::CopyTo, Phase::Verification),
    (FakeCall::Exec, Phase::Verification),
    (FakeCall::CopyFrom, Phase::Collection),
    (FakeCall::Destroy, Phase::Teardown),
];

/// Kinds of failures that say that the environment has no room for a file.
const NO_ROOM: [FailureKind; 5] = [
    FailureKind::Refused,
    FailureKind::NotPermitted,
    FailureKind::StorageExceeded,
    FailureKind::Unusable,
    FailureKind::Unsupported,
];

async fn rig() -> TrialFixture {
    let mut rig = TrialFixture::new().await;
    rig.set_scripts(Some("echo a"), Some("echo b > /logs/agent/b.txt"));
    rig
}

/// Checks that hold after any fault of one call.
fn check(rig: &TrialFixture, at: usize, effect: FaultEffect, finished: &Finished<TrialRecord>) {
    let (call, phase) = CALLS[at];
    let what = format!("{call:?} in {phase}: {effect:?}");
    assert_eq!(rig.provider.calls()[at], call, "{what}");
    // A removal that is refused is not retried.
    let hopeless = [FailureKind::Refused, FailureKind::Unsupported, FailureKind::NotPermitted]
        .map(FaultEffect::Fail);
    let leaked = phase == Phase::Teardown && hopeless.contains(&effect);
    assert_eq!(rig.provider.leaked().len(), usize::from(leaked), "{what}");
    assert_eq!(rig.provider.busy(), Vec::<String>::new(), "{what}");
    let verdict = &finished.record.verdict;
    let all: Vec<_> = verdict.error.iter().chain(&finished.record.secondary_errors).collect();
    match phase {
        // The reward is read by a second call, or the removal is retried.
        Phase::Collection | Phase::Teardown if effect != FaultEffect::Panic => {
            assert_eq!(verdict.outcome, ItemOutcome::Completed, "{what}: {all:?}");
        }
        Phase::Teardown => assert_eq!(verdict.outcome, ItemOutcome::Completed, "{what}: {all:?}"),
        // The file with the agent's limits has another place.
        Phase::AgentExecution
            if call == FakeCall::CopyTo && NO_ROOM.map(FaultEffect::Fail).contains(&effect) =>
        {
            assert!(verdict.passed(), "{what}: {all:?}");
        }
        _ => {
            assert_eq!((verdict.outcome, verdict.reward), (ItemOutcome::Failed, None), "{what}");
            let first = error(finished);
            assert_eq!(first.phase, phase, "{what}: {first:?}");
        }
    }
    let collected = logs(finished).is_some();
    let possible = at >= 2 && call != FakeCall::CopyFrom;
    assert_eq!(collected, possible, "{what}: {all:?}");
}

#[tokio::test(start_paused = true)]
async fn trial_with_any_failed_call_ends_cleanly() {
    for at in 0..CALLS.len() {
        for effect in
            KINDS.map(FaultEffect::Fail).into_iter().chain([FaultEffect::Panic, FaultEffect::Hang])
        {
            let rig = rig().await;
            rig.provider.fault(FaultTrigger::Any(at), effect);
            let finished = verdict(rig.run().await);
            check(&rig, at, effect, &finished);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn trial_with_any_lost_answer_ends_cleanly() {
    for at in 0..CALLS.len() {
        for kind in [FailureKind::Unreachable, FailureKind::Service] {
            let rig = rig().await;
            let effect = FaultEffect::FailAfterwards(kind);
            rig.provider.fault(FaultTrigger::Any(at), effect);
            let finished = verdict(rig.run().await);
            check(&rig, at, effect, &finished);
        }
    }
}

/// Calls of a successful trial with the error of every kind of failure.
const ERRORS: [(usize, [&str; 15]); 5] = [
    (
        0,
        [
            "environment_image_pull_failed refused task permanent",
            "environment_resource_allocation_failed unplaceable infrastructure permanent",
            "environment_image_pull_failed host_exhausted infrastructure transient",
            "environment_image_pull_failed provider_error infrastructure transient",
            "environment_image_pull_failed provider_error infrastructure transient",
            "environment_start_failed not_permitted infrastructure permanent",
            "environment_image_pull_failed disk_full infrastructure transient",
            "environment_image_pull_failed provider_error infrastructure transient",
            "environment_image_pull_failed unreachable infrastructure transient",
            "environment_image_pull_failed timed_out infrastructure transient",
            "environment_image_pull_failed provider_error infrastructure transient",
            "environment_image_pull_failed provider_error infrastructure transient",
            "internal_error bug infrastructure permanent",
            "environment_image_pull_failed refused task permanent",
            "task_invalid unsupported_by_environment task permanent",
        ],
    ),
    (
        1,
        [
            "environment_start_failed refused task permanent",
            "environment_resource_allocation_failed unplaceable infrastructure permanent",
            "environment_start_failed host_exhausted infrastructure transient",
            "environment_start_failed exec_not_started infrastructure transient",
            "environment_start_failed environment_lost infrastructure transient",
            "environment_start_failed not_permitted infrastructure permanent",
            "environment_start_failed disk_full infrastructure transient",
            "environment_start_failed storage_exceeded task permanent",
            "environment_start_failed unreachable infrastructure transient",
            "environment_start_failed timed_out infrastructure transient",
            "environment_start_failed provider_error infrastructure transient",
            "environment_start_failed provider_error infrastructure transient",
            "internal_error bug infrastructure permanent",
            "environment_start_failed unhealthy task permanent",
            "task_invalid unsupported_by_environment task permanent",
        ],
    ),
    (
        4,
        [
            "agent_execution_failed refused agent permanent",
            "agent_execution_failed provider_error infrastructure transient",
            "agent_execution_failed host_exhausted infrastructure transient",
            "agent_execution_failed exec_not_started agent permanent",
            "agent_execution_failed environment_lost infrastructure transient",
            "agent_execution_failed not_permitted infrastructure permanent",
            "agent_execution_failed disk_full infrastructure transient",
            "agent_execution_failed storage_exceeded agent permanent",
            "agent_execution_failed unreachable infrastructure transient",
            "agent_execution_failed provider_error infrastructure transient",
            "agent_execution_failed provider_error infrastructure transient",
            "agent_execution_failed provider_error infrastructure transient",
            "internal_error bug infrastructure permanent",
            "agent_execution_failed exec_not_started agent permanent",
            "task_invalid unsupported_by_environment task permanent",
        ],
    ),
    (
        5,
        [
            "verifier_failed refused infrastructure permanent",
            "verifier_failed provider_error infrastructure transient",
            "verifier_failed host_exhausted infrastructure transient",
            "verifier_failed provider_error infrastructure transient",
            "verifier_failed environment_lost infrastructure transient",
            "verifier_failed refused infrastructure permanent",
            "verifier_failed disk_full infrastructure transient",
            "verifier_failed storage_exceeded agent permanent",
            "verifier_failed unreachable infrastructure transient",
            "verifier_failed provider_error infrastructure transient",
            "verifier_failed provider_error infrastructure transient",
            "verifier_failed provider_error infrastructure transient",
            "internal_error bug infrastructure permanent",
            "verifier_failed refused agent permanent",
            "task_invalid unsupported_by_environment task permanent",
        ],
    ),
    (
        6,
        [
            "verifier_failed refused verifier permanent",
            "verifier_failed provider_error infrastructure transient",
            "verifier_failed host_exhausted infrastructure transient",
            "verifier_failed exec_not_started verifier permanent",
            "verifier_failed environment_lost infrastructure transient",
            "verifier_failed not_permitted infrastructure permanent",
            "verifier_failed disk_full infrastructure transient",
            "verifier_failed storage_exceeded verifier permanent",
            "verifier_failed unreachable infrastructure transient",
            "verifier_failed provider_error infrastructure transient",
            "verifier_failed provider_error infrastructure transient",
            "verifier_failed provider_error infrastructure transient",
            "internal_error bug infrastructure permanent",
            "verifier_failed exec_not_started verifier permanent",
            "task_invalid unsupported_by_environment task permanent",
        ],
    ),
];

#[tokio::test(start_paused = true)]
async fn provider_failure_maps_to_error_type() {
    for (call, errors) in ERRORS {
        for (kind, expected) in KINDS.into_iter().zip(errors) {
            let rig = rig().await;
            rig.provider.fault(FaultTrigger::Any(call), FaultEffect::Fail(kind));
            let finished = run(&rig).await;
            assert_eq!(error_summary(error(&finished)), expected, "call {call}: {kind:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn limits_that_have_no_place_fail_no_agent() {
    for kind in KINDS {
        let rig = rig().await;
        for nth in 0..2 {
            let at = FaultTrigger::Nth(FakeCall::CopyTo, nth);
            rig.provider.fault(at, FaultEffect::Fail(kind));
        }
        let finished = run(&rig).await;
        if NO_ROOM.contains(&kind) {
            assert!(finished.record.verdict.passed(), "{kind:?}: {:?}", finished.record.verdict);
            let execute = &rig.provider.commands()[1];
            assert!(!execute.env.contains_key("ROLLOUT_LIMITS"), "{kind:?}");
            assert!(execute.env.contains_key("ROLLOUT_DEADLINE"), "{kind:?}");
        } else {
            assert_eq!(error(&finished).class, ErrorClass::Infrastructure, "{kind:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn image_build_failure_maps_to_build_error_type() {
    for (effect, expected) in [
        (
            FaultEffect::Fail(FailureKind::Refused),
            "environment_build_failed refused task permanent",
        ),
        (
            FaultEffect::Fail(FailureKind::TimedOut),
            "environment_build_timeout timed_out infrastructure transient",
        ),
        (FaultEffect::Hang, "environment_build_timeout timed_out infrastructure transient"),
    ] {
        let mut rig = rig().await;
        rig.task.environment.docker_image = None;
        rig.provider.fault(FaultTrigger::Any(0), effect);
        assert_eq!(error_summary(error(&run(&rig).await)), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn reward_copy_failure_is_infrastructure_error() {
    let rig = rig().await;
    rig.provider
        .fault(FaultTrigger::Every(FakeCall::CopyFrom), FaultEffect::Fail(FailureKind::Service));
    let finished = run(&rig).await;
    let expected = "verifier_failed collection_failed infrastructure transient";
    assert_eq!(error_summary(error(&finished)), expected);
    assert!(error(&finished).is_retryable());
    assert_eq!(secondary_codes(&finished.record), ["collection_failed"]);
}

#[tokio::test(start_paused = true)]
async fn first_error_stays_primary_and_later_are_secondary() {
    let mut rig = rig().await;
    rig.set_scripts(None, Some("exit 4"));
    for call in [FakeCall::CopyFrom, FakeCall::Destroy] {
        rig.provider.fault(FaultTrigger::Every(call), FaultEffect::Fail(FailureKind::Unreachable));
    }
    let finished = verdict(rig.run().await);
    assert_eq!(error(&finished).kind, ErrorType::AgentExecutionFailed);
    assert_eq!(error(&finished).class, ErrorClass::Agent);
    let beside: Vec<_> =
        finished.record.secondary_errors.iter().map(|e| (e.kind, e.phase)).collect();
    let expected = [
        (ErrorType::InternalError, Phase::Collection),
        (ErrorType::EnvironmentTeardownFailed, Phase::Teardown),
    ];
    assert_eq!(beside, expected);
}

#[tokio::test(start_paused = true)]
async fn unkillable_process_after_agent_stops_environment() {
    for (stoppable, codes) in
        [(true, vec!["processes_left"]), (false, vec!["processes_left", "collection_failed"])]
    {
        let mut rig = rig().await;
        rig.settings.environment.preserve_env =
            rollout_protocol::spec::environment::PreservePolicy::Always;
        rig.set_scripts(None, Some("background immortal; exit 1"));
        rig.provider
            .fault(FaultTrigger::Every(FakeCall::Kill), FaultEffect::Fail(FailureKind::LeftBehind));
        if !stoppable {
            rig.provider.fault(FaultTrigger::Every(FakeCall::Stop), FaultEffect::Hang);
        }
        let finished = run(&rig).await;
        assert_eq!(error(&finished).kind, ErrorType::AgentExecutionFailed);
        assert_eq!(secondary_codes(&finished.record), codes);
        assert_eq!(logs(&finished).is_some(), stoppable);
        assert_eq!(rig.provider.existing(), Vec::<String>::new(), "not kept");
    }
}

#[tokio::test(start_paused = true)]
async fn unkillable_process_before_verification_is_error() {
    for (effect, stoppable) in [
        (FaultEffect::Fail(FailureKind::LeftBehind), true),
        (FaultEffect::Hang, true),
        (FaultEffect::Fail(FailureKind::LeftBehind), false),
    ] {
        let mut rig = rig().await;
        rig.settings.verifier.kill_agent_processes = true;
        rig.settings.environment.preserve_env =
            rollout_protocol::spec::environment::PreservePolicy::Always;
        rig.set_scripts(None, Some("background immortal"));
        rig.provider.fault(FaultTrigger::Every(FakeCall::Kill), effect);
        if !stoppable {
            rig.provider.fault(FaultTrigger::Every(FakeCall::Stop), FaultEffect::Hang);
        }
        let finished = run(&rig).await;
        let expected = "verifier_failed processes_left infrastructure transient";
        assert_eq!(error_summary(error(&finished)), expected);
        let codes: &[&str] = if stoppable { &[] } else { &["collection_failed"] };
        assert_eq!(secondary_codes(&finished.record), codes);
        assert_eq!(logs(&finished).is_some(), stoppable);
        assert_eq!(rig.provider.existing(), Vec::<String>::new(), "not kept");
        let calls = rig.provider.calls();
        let place = |wanted| calls.iter().position(|call| *call == wanted);
        assert!(
            place(FakeCall::Stop).is_some_and(|stop| place(FakeCall::CopyFrom) > Some(stop))
                == stoppable,
            "{calls:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn environment_create_timeout_is_retryable_and_torn_down() {
    let rig = rig().await;
    rig.provider.fault(FaultTrigger::Every(FakeCall::Create), FaultEffect::Hang);
    let finished = run(&rig).await;
    let expected = "environment_start_failed timed_out infrastructure transient";
    assert_eq!(error_summary(error(&finished)), expected);
    assert!(finished.record.secondary_errors.iter().any(|e| e.phase == Phase::Teardown));
}

#[tokio::test]
async fn script_panic_is_internal_error_and_keeps_output() {
    let mut rig = rig().await;
    rig.set_scripts(None, Some("echo before; panic"));
    let finished = run(&rig).await;
    assert_eq!(error_summary(error(&finished)), "internal_error bug infrastructure permanent");
    assert_eq!(error(&finished).phase, Phase::AgentExecution);
    assert_eq!(super::output(&finished, "command/stdout.txt"), "before\n");
    assert!(logs(&finished).is_some());
}

#[tokio::test]
async fn store_failure_is_infrastructure_error() {
    let mut rig = rig().await;
    let never = rollout_protocol::blob::BlobRef::for_bytes(
        b"never stored",
        rollout_protocol::blob::MediaType::Tar,
    );
    rig.task.steps[0].files.tests = Some(never.clone());
    let finished = run(&rig).await;
    assert_eq!(
        error_summary(error(&finished)),
        "verifier_failed store_failed infrastructure permanent"
    );
    rig.task.steps[0].files.instruction = Some(never);
    let finished = run(&rig).await;
    let expected = "environment_start_failed store_failed infrastructure permanent";
    assert_eq!(error_summary(error(&finished)), expected);
}

#[tokio::test]
async fn disk_full_makes_failed_trial_retryable() {
    for (reward, expected) in [("0", None), ("1", Some(1.0))] {
        let mut rig = rig().await;
        rig.set_tests(&format!("echo {reward} > /logs/verifier/reward.txt")).await;
        let context = rig.context();
        let directory = context.execution.scratch.join("command");
        std::fs::create_dir_all(&directory).expect("a directory");
        std::os::unix::fs::symlink("/dev/full", directory.join("stdout.txt")).expect("a link");
        rig.set_scripts(None, Some("echo b"));
        let context = TrialContext { agent: Arc::new(rig.agent.clone()), ..context };
        let finished = verdict(super::super::run(context, &rig.services()).await);
        assert_eq!(finished.record.verdict.reward, expected);
        if expected.is_none() {
            let found = error_summary(error(&finished));
            assert_eq!(found, "verifier_failed disk_full infrastructure transient");
        }
        assert_eq!(secondary_codes(&finished.record), ["disk_full"]);
        assert_eq!(rig.provider.leaked(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn failed_script_in_removed_environment_is_infrastructure_failure() {
    for (agent, tests, kind) in [
        ("remove", "echo 1 > /logs/verifier/reward.txt", ErrorType::AgentExecutionFailed),
        ("echo b", "remove", ErrorType::VerifierFailed),
    ] {
        let mut rig = rig().await;
        rig.set_tests(tests).await;
        rig.set_scripts(None, Some(agent));
        let finished = run(&rig).await;
        assert_eq!(finished.record.verdict.outcome, ItemOutcome::Failed);
        let found = error(&finished);
        let expected = format!("{kind} environment_lost infrastructure transient");
        assert_eq!(error_summary(found), expected, "{found:?}");
        assert!(found.message.contains("ended with code 1"), "{found:?}");
        assert!(found.is_retryable());
    }
}

#[tokio::test]
async fn failed_script_while_the_disk_takes_no_writes_is_infrastructure_failure() {
    let mut rig = rig().await;
    rig.set_scripts(None, Some("exit 3"));
    let missing = rig.dir.path().join("missing");
    let disks = Arc::new(DiskWatch::new([(missing, DiskUse::Own)], []));
    let services = ExecutionServices { disks, ..rig.services() };
    let finished = verdict(super::super::run(rig.context(), &services).await);
    let found = error(&finished);
    let expected = "agent_execution_failed disk_failed infrastructure transient";
    assert_eq!(error_summary(found), expected, "{found:?}");
    assert!(found.message.starts_with("cannot write to "), "{found:?}");
    assert!(found.message.ends_with("ended with code 3"), "{found:?}");
}
