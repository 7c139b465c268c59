//! Settlements of items as results of samples.

use rollout_engine::core::ItemSettlement;
use rollout_protocol::error::{ErrorClass, ErrorType, TrialError};
use rollout_protocol::farm::{CancelReason, LossCause, SampleEnd, SampleExecution, SampleResult};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Execution, ExecutionEnd, ItemOutcome, Verdict};

use crate::results::known_cost::known_cost;

/// The result of the sample whose item has this settlement.
pub(super) fn sample_result(settled: &ItemSettlement) -> SampleResult {
    let ItemSettlement { by, verdict, superseded, .. } = settled;
    let Verdict { reward, rewards, cost, error, .. } = verdict.clone();
    let without_ids = superseded.iter().map(|execution| match &execution.end {
        ExecutionEnd::Reported { verdict } => verdict.model_use.calls_without_ids,
        ExecutionEnd::Lost { model_use, .. } => model_use.calls_without_ids,
        ExecutionEnd::Open => 0,
    });
    let has_verdict = verdict.outcome == ItemOutcome::Completed;
    SampleResult {
        end: sample_end(verdict),
        reward: reward.filter(|_| has_verdict),
        rewards: if has_verdict { rewards } else { Default::default() },
        cost: known_cost(cost, verdict.model_use.unpriced_calls),
        error,
        execution: by.as_ref().map(execution),
        other_executions: u32::try_from(superseded.len()).unwrap_or(u32::MAX),
        calls_without_ids: without_ids
            .fold(verdict.model_use.calls_without_ids, u64::saturating_add),
    }
}

fn execution(by: &Execution) -> SampleExecution {
    SampleExecution {
        try_id: by.try_id,
        exec: by.exec,
        worker: by.worker.clone(),
        record: by.record.clone(),
        total_sec: by.durations.as_ref().map(|durations| durations.total_sec),
    }
}

fn sample_end(verdict: &Verdict) -> SampleEnd {
    let error = verdict.error.as_ref();
    // A time limit that was reached because a model server did not answer is none of the agent's.
    let is_truncated = error.is_some_and(|error| {
        error.kind == ErrorType::AgentExecutionTimeout && error.class == ErrorClass::Agent
    });
    match verdict.outcome {
        ItemOutcome::Cancelled => SampleEnd::Cancelled { reason: CancelReason::ByUser },
        _ if is_truncated => SampleEnd::Truncated,
        ItemOutcome::Completed | ItemOutcome::Unverified => SampleEnd::Completed,
        ItemOutcome::Failed => {
            let cause = error.map_or(LossCause::Infrastructure, |error| error.class.into());
            let phase = error.map_or(Phase::Queued, |error: &TrialError| error.phase);
            SampleEnd::NoResult { cause, phase }
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::Timestamp;
    use rollout_protocol::error::{ErrorCode, RetryClass};
    use rollout_protocol::id::ItemId;
    use rollout_protocol::spec::budget::ModelUse;

    use super::*;

    fn result(verdict: Verdict) -> SampleResult {
        let (item, at) = (ItemId::from_bytes([1; 16]), Timestamp::UNIX_EPOCH);
        let superseded = Vec::new();
        sample_result(&ItemSettlement { item, ordinal: None, by: None, verdict, superseded, at })
    }

    fn error(kind: ErrorType, class: ErrorClass) -> TrialError {
        TrialError::new(kind, ErrorCode::TIMED_OUT, class, RetryClass::Permanent, "an error")
    }

    #[test]
    fn sample_without_answer_of_model_server_is_lost_by_infrastructure() {
        for kind in [ErrorType::AgentExecutionTimeout, ErrorType::AgentExecutionFailed] {
            let unreachable = TrialError::transient(kind, ErrorCode::MODEL_UNREACHABLE, "an error");
            let found = result(Verdict::failed(unreachable.in_phase(Phase::AgentExecution)));
            let (cause, phase) = (LossCause::Infrastructure, Phase::AgentExecution);
            assert_eq!(found.end, SampleEnd::NoResult { cause, phase });
            assert!(!found.is_usable() && found.reward.is_none());
        }
    }

    #[test]
    fn calls_without_token_ids_of_sample_are_counted() {
        let model_use = ModelUse { calls: 3, calls_without_ids: 2, ..ModelUse::NONE };
        let found = result(Verdict { model_use, ..Verdict::completed(1.0) });
        assert_eq!(found.calls_without_ids, 2);
        let text = serde_json::to_string(&result(Verdict::completed(1.0))).expect("JSON");
        assert!(!text.contains("without_ids"), "{text}");
    }

    #[test]
    fn cost_of_sample_with_calls_without_price_is_unknown_or_a_lower_bound() {
        for (cost, expected) in [(0.0, None), (0.5, Some(0.5))] {
            let model_use = ModelUse { calls: 3, unpriced_calls: 2, cost, ..ModelUse::NONE };
            let found = result(Verdict { model_use, cost, ..Verdict::completed(1.0) });
            assert_eq!(found.cost, expected);
        }
    }

    #[test]
    fn time_limit_of_agent_truncates_with_and_without_verdict() {
        let timeout = error(ErrorType::AgentExecutionTimeout, ErrorClass::Agent);
        let verified = Verdict { error: Some(timeout.clone()), ..Verdict::completed(0.5) };
        let found = result(verified);
        assert_eq!((&found.end, found.reward), (&SampleEnd::Truncated, Some(0.5)));
        assert!(found.is_usable());
        let found = result(Verdict::failed(timeout));
        assert_eq!((&found.end, found.reward), (&SampleEnd::Truncated, None));
        assert!(!found.is_usable());
    }

    #[test]
    fn failure_keeps_party_and_phase_and_has_no_reward() {
        let failed = |kind, class| {
            let verdict = Verdict { reward: Some(1.0), ..Verdict::failed(error(kind, class)) };
            let found = result(verdict);
            assert_eq!(found.reward, None);
            found.end
        };
        let start = failed(ErrorType::EnvironmentStartFailed, ErrorClass::Infrastructure);
        let (cause, phase) = (LossCause::Infrastructure, Phase::EnvironmentSetup);
        assert_eq!(start, SampleEnd::NoResult { cause, phase });
        let agent = failed(ErrorType::AgentExecutionFailed, ErrorClass::Agent);
        let (cause, phase) = (LossCause::Agent, Phase::AgentExecution);
        assert_eq!(agent, SampleEnd::NoResult { cause, phase });
        let cancelled = result(Verdict::cancelled(2.0));
        assert_eq!(cancelled.end, SampleEnd::Cancelled { reason: CancelReason::ByUser });
    }

    #[test]
    fn verdict_of_zero_is_a_verdict_and_disabled_verifier_gives_none() {
        let zero = result(Verdict::completed(0.0));
        assert_eq!((&zero.end, zero.reward), (&SampleEnd::Completed, Some(0.0)));
        let unverified =
            Verdict { outcome: ItemOutcome::Unverified, reward: None, ..Verdict::completed(0.0) };
        let found = result(unverified);
        assert_eq!(
            (&found.end, found.reward, found.is_usable()),
            (&SampleEnd::Completed, None, false)
        );
    }
}
