//! The end of an execution: its spool entry and its last report.

use std::sync::Arc;

use rollout_protocol::Timestamp;
use rollout_protocol::error::TrialError;
use rollout_protocol::limits;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Durations, LostReason, Timestamps, Verdict};
use rollout_protocol::spec::budget::ModelUse;
use rollout_protocol::wire::report::{Report, ReportBody, ResultBody};

use super::WorkerShared;
use super::execute::NoRecordReason;
use super::execution::Execution;
use super::execution_trace::{REPORT, UPLOAD};
use super::report::OutgoingReport;
use crate::executor::Finished;
use crate::spool::publish;

/// The next step after an execution that ended at once.
pub(super) enum FinishStep<F> {
    /// Only this report must be sent.
    Report(Box<OutgoingReport>),
    /// More work, such as spooling.
    Task(F),
}

/// Finishes an execution that ended at once, and therefore has no scratch directory.
pub(super) fn finish_immediate(
    shared: &Arc<WorkerShared>,
    execution: Arc<Execution>,
    ended: Result<Finished, NoRecordReason>,
) -> FinishStep<impl Future<Output = ()> + Send + use<>> {
    match bare_report_body(&execution, ended) {
        Ok(body) => {
            note_end(shared, &execution, &body);
            // Its report is part of a batch that nothing of it waits for.
            execution.trace.end(&execution.offer, &shared.config.worker);
            let report = execution.new_report(&shared.config.worker, body);
            FinishStep::Report(Box::new(OutgoingReport::final_report(report, execution, None)))
        }
        Err(finished) => {
            let shared = shared.clone();
            FinishStep::Task(async move { spool_and_report(&shared, execution, finished).await })
        }
    }
}

/// Finishes an execution: returns when its report is acknowledged and nothing of it is left on
/// disk.
pub(super) async fn finish(
    shared: &WorkerShared,
    execution: Arc<Execution>,
    ended: Result<Finished, NoRecordReason>,
) {
    match bare_report_body(&execution, ended) {
        Ok(body) => send_report(shared, execution, body).await,
        Err(finished) => spool_and_report(shared, execution, finished).await,
    }
}

/// Notes how an execution ended, in its metrics and its trace.
fn note_end(shared: &WorkerShared, execution: &Execution, body: &ReportBody) {
    shared.config.metrics.ended(execution.offer.work, body);
    execution.trace.note_end(body);
}

/// Sends the last report of an execution and waits until it is acknowledged.
async fn send_last_report(shared: &WorkerShared, execution: Arc<Execution>, report: Report) {
    execution.trace.enter(REPORT);
    shared.outbox.send_and_wait(report, Arc::clone(&execution)).await;
    execution.trace.end(&execution.offer, &shared.config.worker);
}

async fn send_report(shared: &WorkerShared, execution: Arc<Execution>, body: ReportBody) {
    let exec = execution.exec;
    note_end(shared, &execution, &body);
    let report = execution.new_report(&shared.config.worker, body);
    send_last_report(shared, execution, report).await;
    // Until the acknowledgement, the mark makes a recovery report the execution as lost.
    shared.spool.clear_scratch(exec).await;
}

async fn spool_and_report(shared: &WorkerShared, execution: Arc<Execution>, finished: Finished) {
    execution.trace.enter(UPLOAD);
    let marker = has_marker(&execution, &finished);
    let mut backoff = shared.spool_outage.backoff();
    let entry = loop {
        match shared.spool.persist(&finished, marker).await {
            Ok(entry) => break entry,
            Err(error) => backoff.wait_after_failure(&error).await,
        }
    };
    backoff.succeeded();
    let report = publish(&*shared.store, &shared.store_outage, &entry).await;
    shared.config.metrics.stored(entry.bytes());
    note_end(shared, &execution, &report.body);
    send_last_report(shared, execution, report).await;
    shared.spool.remove(entry).await;
}

/// Whether a result marker is written for an execution: it took long and has a verdict.
fn has_marker(execution: &Execution, finished: &Finished) -> bool {
    finished.stopped.is_none() && execution.began.elapsed() > limits::BRIEF_EXECUTION
}

/// The body of a report that holds everything about an execution; otherwise the execution, which
/// must be spooled.
fn bare_report_body(
    execution: &Execution,
    ended: Result<Finished, NoRecordReason>,
) -> Result<ReportBody, Finished> {
    let finished = match ended {
        Ok(finished) => finished,
        Err(NoRecordReason::Stopped) => return Ok(stopped_body(Phase::Queued)),
        Err(NoRecordReason::Failed(error)) => return Ok(failed_body(execution, error)),
    };
    if !finished.is_bare() || has_marker(execution, &finished) {
        return Err(finished);
    }
    Ok(match finished.stopped {
        Some(phase) => stopped_body(phase),
        None => ReportBody::Result(Box::new(ResultBody {
            verdict: finished.record.verdict(),
            durations: finished.record.durations().clone(),
            timestamps: finished.record.timestamps().clone(),
            record: None,
        })),
    })
}

fn stopped_body(phase: Phase) -> ReportBody {
    ReportBody::Lost {
        reason: LostReason::Stopped,
        phase: Some(phase),
        record: None,
        cost: 0.0,
        model_use: ModelUse::default(),
    }
}

fn failed_body(execution: &Execution, error: TrialError) -> ReportBody {
    let (lasted, ended_at) = (execution.began.elapsed(), Timestamp::now());
    let started_at = ended_at.checked_sub(lasted).unwrap_or(ended_at);
    ReportBody::Result(Box::new(ResultBody {
        verdict: Verdict::failed(error),
        durations: Durations { total_sec: lasted.as_secs_f64(), ..Durations::default() },
        timestamps: Timestamps { started_at, ..Timestamps::instant(ended_at) },
        record: None,
    }))
}
