//! From the end of an execution to its report.

use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::error::TrialError;
use rollout_protocol::limits;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Durations, EvalEnd, IdeasEnd, LostReason, Timestamps, Verdict};
use rollout_protocol::wire::report::{Body, ResultBody};

use super::Shared;
use super::execute::Ended;
use super::execution::Execution;
use super::report::Outgoing;
use crate::spool::{Ending, publish};
use crate::work::trial::{self, Finished};

/// What an execution left.
enum Left {
    /// Nothing that its report does not say.
    Words(Body),
    /// A record, and perhaps files.
    Record(Ending),
}

/// What follows an execution that ended at once.
pub(super) enum Next<F> {
    /// Saying this is all.
    Report(Outgoing),
    /// There is more to do.
    Task(F),
}

/// Finishes an execution that ended at once, and has no scratch directory therefore.
pub(super) fn at_once(
    shared: &Arc<Shared>,
    execution: Arc<Execution>,
    ended: Ended,
) -> Next<impl Future<Output = ()> + Send + use<>> {
    match left(&execution, ended) {
        Left::Words(body) => {
            let report = execution.report(&shared.config.worker, body);
            Next::Report(Outgoing::last(report, execution, None))
        }
        Left::Record(ending) => {
            let shared = shared.clone();
            Next::Task(async move { record(&shared, execution, ending).await })
        }
    }
}

/// Finishes an execution: returns when its report is acknowledged and nothing of it is left here.
pub(super) async fn finish(shared: &Shared, execution: Arc<Execution>, ended: Ended) {
    match left(&execution, ended) {
        Left::Words(body) => words(shared, execution, body).await,
        Left::Record(ending) => record(shared, execution, ending).await,
    }
}

async fn words(shared: &Shared, execution: Arc<Execution>, body: Body) {
    let exec = execution.exec;
    let report = execution.report(&shared.config.worker, body);
    shared.outbox.say(report, execution).await;
    // Until now its mark said that it is lost if this process dies.
    shared.spool.clear_scratch(exec).await;
}

async fn record(shared: &Shared, execution: Arc<Execution>, ending: Ending) {
    let mut patience = shared.spool_outage.patience();
    let kept = loop {
        match shared.spool.keep(&ending).await {
            Ok(kept) => break kept,
            Err(error) => patience.failed(&error).await,
        }
    };
    patience.works();
    let report = publish(&*shared.store, &shared.store_outage, &kept).await;
    shared.outbox.say(report, execution).await;
    shared.spool.forget(kept).await;
}

fn left(execution: &Execution, ended: Ended) -> Left {
    let marker = execution.began.elapsed() > limits::BRIEF;
    match ended {
        Ended::Finished(Finished::Verdict(draft)) if draft.is_bare() && !marker => {
            Left::Words(bare(draft))
        }
        Ended::Finished(Finished::Verdict(draft)) => {
            Left::Record(Ending { draft: draft.into(), stopped: None, marker })
        }
        Ended::Finished(Finished::Stopped { phase, draft }) => match draft {
            Some(draft) if !draft.is_bare() => {
                let draft = draft.into();
                Left::Record(Ending { draft, stopped: Some(phase), marker: false })
            }
            _ => Left::Words(stopped(phase)),
        },
        Ended::Eval(draft) => {
            let stopped = (draft.record.end == EvalEnd::Stopped).then(|| execution.phase());
            let marker = marker && stopped.is_none();
            Left::Record(Ending { draft: draft.into(), stopped, marker })
        }
        Ended::Ideas(draft) => {
            let stopped = (draft.record.end == IdeasEnd::Stopped).then(|| execution.phase());
            let marker = marker && stopped.is_none();
            Left::Record(Ending { draft: draft.into(), stopped, marker })
        }
        Ended::Failed(error) => Left::Words(failed(execution, error)),
    }
}

fn bare(draft: trial::Draft) -> Body {
    let record = draft.record;
    Body::Result(Box::new(ResultBody {
        verdict: record.verdict,
        durations: record.durations,
        timestamps: record.timestamps,
        record: None,
    }))
}

fn stopped(phase: Phase) -> Body {
    Body::Lost { reason: LostReason::Stopped, phase: Some(phase), record: None, cost: 0.0 }
}

fn failed(execution: &Execution, error: TrialError) -> Body {
    let (lasted, ended_at) = (execution.began.elapsed(), Timestamp::now());
    let started_at = ended_at.checked_sub(lasted).unwrap_or(ended_at);
    Body::Result(Box::new(ResultBody {
        verdict: Verdict::failed(error),
        durations: Durations { total_sec: lasted.as_secs_f64(), ..Durations::default() },
        timestamps: Timestamps { started_at, ..Timestamps::instant(ended_at) },
        record: None,
    }))
}
