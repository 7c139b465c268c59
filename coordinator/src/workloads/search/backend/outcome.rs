//! Outcome of an eval from its settled try.

use rollout_engine::core::ItemSettlement;
use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{EvalEnd, EvalRecord, ExecutionEnd, ItemOutcome};
use rollout_protocol::spec::eval::EvalStage;

use crate::workloads::search::driver::{EvalOrder, EvalResult};
use crate::workloads::search::manifest::{EvalStatus, SearchEvalError, StepCalls, add_calls};

/// Whether a try says nothing about its idea: the infrastructure failed after all retries, or no
/// command was run. An idea that kills worker after worker counts as failed.
pub(super) fn is_unable(settled: &ItemSettlement) -> bool {
    let before = |phase| matches!(phase, Phase::Queued | Phase::EnvironmentSetup);
    settled.verdict.error.as_ref().is_some_and(|error| {
        let is_infrastructure = error.class == ErrorClass::Infrastructure || before(error.phase);
        settled.verdict.outcome == ItemOutcome::Failed
            && is_infrastructure
            && error.code != ErrorCode::POISONED
    })
}

/// Whether one of the `eval_retries` may help: commands failed or timed out. Infrastructure
/// failures were retried by the run, and an agent would exceed its budget again.
pub(super) fn is_worth_retry(settled: &ItemSettlement, record: Option<&EvalRecord>) -> bool {
    let failed = record.is_some_and(|record| record.end == EvalEnd::Failed);
    let is_infrastructure = |error: &TrialError| error.class == ErrorClass::Infrastructure;
    let is_over_budget = |error: &TrialError| error.code == ErrorCode::BUDGET_EXCEEDED;
    let error = settled.verdict.error.as_ref();
    failed && error.is_some_and(|error| !is_infrastructure(error) && !is_over_budget(error))
}

/// Total time and cost of an eval's attempts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct AttemptTotals {
    /// Duration, seconds.
    pub(super) seconds: f64,
    /// Cost that their commands reported, and of the model calls of their agents.
    pub(super) cost: Option<f64>,
    /// Model calls of their agents.
    pub(super) calls: Vec<StepCalls>,
}

impl AttemptTotals {
    /// Adds an attempt.
    pub(super) fn plus(mut self, settled: &ItemSettlement, record: Option<&EvalRecord>) -> Self {
        self.add_cost(superseded_cost(settled));
        let Some(record) = record else { return self };
        // Not from its times: a worker's clock may have been set meanwhile, and budgets are decided by
        // this.
        self.seconds += record.durations.total_sec.max(0.0);
        self.add_cost(record.reported_cost);
        let calls: Vec<_> =
            record.gateway.iter().map(|(stage, calls)| StepCalls::of(*stage, calls)).collect();
        for calls in &calls {
            self.add_cost(Some(calls.cost));
        }
        add_calls(&mut self.calls, &calls);
        self
    }

    fn add_cost(&mut self, cost: Option<f64>) {
        if let Some(cost) = cost {
            self.cost = Some(self.cost.unwrap_or(0.0) + cost);
        }
    }
}

/// Cost of the executions that the infrastructure ended and the run repeated, if any: environments of
/// searches are free, so that it is that of model calls.
pub(super) fn superseded_cost(settled: &ItemSettlement) -> Option<f64> {
    let cost = settled.superseded.iter().map(|execution| match &execution.end {
        ExecutionEnd::Reported { verdict } => verdict.cost,
        ExecutionEnd::Lost { cost, .. } => *cost,
        ExecutionEnd::Open => 0.0,
    });
    Some(cost.sum::<f64>()).filter(|cost| *cost > 0.0)
}

/// The result of an eval, without the totals of its attempts. `results` is the path of its results
/// below its directory.
pub(super) fn result(
    order: &EvalOrder,
    attempt: u32,
    settled: &ItemSettlement,
    record: Option<&EvalRecord>,
    results: Option<String>,
) -> EvalResult {
    let status = match record.map(|record| record.end) {
        Some(EvalEnd::Completed) => EvalStatus::Completed,
        Some(EvalEnd::NoChanges) => EvalStatus::NoChanges,
        Some(EvalEnd::Failed | EvalEnd::Stopped) | None => EvalStatus::Failed,
    };
    let times = record.map(|record| &record.timestamps);
    let failed = status == EvalStatus::Failed;
    EvalResult {
        eval_id: order.eval.eval_id,
        parent_node_id: order.eval.parent_node_id,
        idea_normalized_sha256: order.eval.idea_normalized_sha256.clone(),
        round: order.round,
        status,
        attempt,
        worker: settled.by.as_ref().map(|by| by.worker.to_string()),
        started_at: times.map(|times| times.started_at),
        finished_at: times.map(|times| times.ended_at),
        seconds: None,
        candidate_commit: record
            .and_then(|record| record.candidate.as_ref())
            .map(|candidate| candidate.commit.clone()),
        results_csv: results,
        cost: None,
        calls: Vec::new(),
        possible_secrets: record.map(|r| r.possible_secrets.clone()).unwrap_or_default(),
        error: failed.then(|| error(settled.verdict.error.as_ref(), record)),
    }
}

/// Marks the eval of a refused candidate as failed.
pub(super) fn mark_refused(result: &mut EvalResult, reason: String) {
    result.status = EvalStatus::Failed;
    result.candidate_commit = None;
    result.results_csv = None;
    let (error_type, timed_out) = ("candidate_refused".to_owned(), false);
    let infrastructure = false;
    result.error = Some(SearchEvalError { error_type, message: reason, timed_out, infrastructure });
}

/// Whether an error is a verdict on a change.
fn is_verdict(error: Option<&TrialError>) -> bool {
    error.is_some_and(|error| error.class == ErrorClass::Verifier)
}

fn error(error: Option<&TrialError>, record: Option<&EvalRecord>) -> SearchEvalError {
    let message = error.map_or("it ended without results", |error| &error.message).to_owned();
    // The last command is the one that failed.
    let last = record.and_then(|record| record.commands.last());
    let (error_type, timed_out) = match last {
        Some(last) if last.timed_out => (format!("{}_timeout", last.stage.as_str()), true),
        Some(last) if last.exit_code.is_some_and(|code| code != 0) => {
            (format!("{}_failed", last.stage.as_str()), false)
        }
        // The agent of a review ended well and left no approval.
        Some(last) if last.stage == EvalStage::Review && is_verdict(error) => {
            ("review_failed".to_owned(), false)
        }
        _ => match error.map(|error| error.kind) {
            // The sweep succeeded.
            Some(ErrorType::VerifierRewardMissing) => ("results_missing".to_owned(), false),
            Some(kind) => (kind.to_string(), false),
            None => ("unknown".to_owned(), false),
        },
    };
    let is_infrastructure = |error: &TrialError| {
        error.class == ErrorClass::Infrastructure && error.code != ErrorCode::POISONED
    };
    let infrastructure = error.is_some_and(is_infrastructure);
    SearchEvalError { error_type, message, timed_out, infrastructure }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::Timestamp;
    use rollout_protocol::error::RetryClass;
    use rollout_protocol::id::ItemId;
    use rollout_protocol::record::Verdict;

    use super::*;

    fn settled(class: ErrorClass, code: ErrorCode, phase: Phase) -> ItemSettlement {
        let kind = ErrorType::AgentExecutionFailed;
        let error = TrialError::new(kind, code, class, RetryClass::Permanent, "it failed");
        let verdict = Verdict::failed(error.in_phase(phase));
        let (item, at) = (ItemId::from_bytes([0; 16]), Timestamp::UNIX_EPOCH);
        ItemSettlement { item, ordinal: None, by: None, verdict, superseded: Vec::new(), at }
    }

    #[test]
    fn idea_is_not_blamed_for_infrastructure_failure() {
        use ErrorClass::{Agent, Infrastructure, Task};
        let bug = || ErrorCode::BUG;
        for (class, code, phase, expected) in [
            (Infrastructure, bug(), Phase::AgentExecution, true),
            (Infrastructure, ErrorCode::POISONED, Phase::AgentExecution, false),
            (Task, bug(), Phase::EnvironmentSetup, true),
            (Agent, bug(), Phase::AgentExecution, false),
            (Agent, bug(), Phase::Verification, false),
        ] {
            let told = format!("{class:?} {code:?} {phase:?}");
            assert_eq!(is_unable(&settled(class, code, phase)), expected, "{told}");
        }
        let mut well = settled(Agent, bug(), Phase::Teardown);
        well.verdict = Verdict::completed(1.0);
        assert!(!is_unable(&well));
    }
}
