//! The end of an execution: its spool entry and its last report.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rollout_base::shortage::Shortage;
use rollout_base::warning_limiter::WarningLimiter;
use rollout_protocol::Timestamp;
use rollout_protocol::error::TrialError;
use rollout_protocol::limits;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Durations, LostReason, Timestamps, Verdict};
use rollout_protocol::spec::budget::ModelUse;
use rollout_protocol::wire::report::{Report, ReportBody, ResultBody};
use tokio::time::Instant;

use super::WorkerShared;
use super::disks::unless_hung;
use super::execute::NoRecordReason;
use super::execution::Execution;
use super::execution_trace::{REPORT, UPLOAD};
use super::failure_streak::retryable_error;
use super::report::OutgoingReport;
use crate::executor::Finished;
use crate::spool::{SpoolEntry, publish, publish_unspooled, unreadable_report};

/// How long the spool may fail before an execution is stored without it.
const SPOOL_LIMIT: Duration = Duration::from_secs(30);

/// The same while the disk is known to take no writes at all.
const FAILED_SPOOL_LIMIT: Duration = Duration::from_secs(2);

/// Executions that were given back without an end. The fault of one disk concerns many.
static ABANDONED: WarningLimiter = WarningLimiter::new();

/// Executions that could not be spooled. The fault of one disk concerns many.
static UNSPOOLED: WarningLimiter = WarningLimiter::new();

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

/// Notes how an execution ended, in its metrics and its trace and for what the worker takes next.
fn note_end(shared: &WorkerShared, execution: &Execution, body: &ReportBody) {
    shared.config.metrics.ended(execution.offer.work, body);
    execution.trace.note_end(body);
    shared.failures.record(&execution.offer, body, execution.was_stopped_parked());
    if retryable_error(body).is_some() {
        shared.disks.suspect();
    }
}

/// Sends the last report of an execution and waits until it is acknowledged.
async fn send_last_report(shared: &WorkerShared, execution: Arc<Execution>, report: Report) {
    execution.trace.enter(REPORT);
    shared.outbox.send_and_wait(report, Arc::clone(&execution)).await;
    execution.trace.end(&execution.offer, &shared.config.worker);
}

/// Gives back an execution that cannot end, because a disk gives no answer. It goes on until it ends or
/// this process is to end. The next worker of this host removes what is left then.
pub(super) async fn abandon(
    shared: &WorkerShared,
    execution: Arc<Execution>,
    running: impl Future<Output = Result<Finished, NoRecordReason>>,
) {
    let exec = execution.exec;
    ABANDONED.warn(&format_args!(
        "execution {exec} does not end, as a disk gives no answer: it is given back"
    ));
    let body = stopped_body(execution.phase());
    execution.mark_ended();
    execution.slot.clear();
    note_end(shared, &execution, &body);
    let report = execution.new_report(&shared.config.worker, body);
    send_last_report(shared, execution, report).await;
    tokio::select! {
        _late = running => {
            let _left = unless_hung(shared, shared.spool.clear_scratch(exec)).await;
        }
        () = shared.wait_for_shutdown() => {}
    }
}

async fn send_report(shared: &WorkerShared, execution: Arc<Execution>, body: ReportBody) {
    let exec = execution.exec;
    note_end(shared, &execution, &body);
    let report = execution.new_report(&shared.config.worker, body);
    send_last_report(shared, execution, report).await;
    // Until the acknowledgement, the mark makes a recovery report the execution as lost.
    let _left = unless_hung(shared, shared.spool.clear_scratch(exec)).await;
}

async fn spool_and_report(shared: &WorkerShared, execution: Arc<Execution>, finished: Finished) {
    execution.trace.enter(UPLOAD);
    let marker = has_marker(&execution, &finished);
    let entry = unless_hung(shared, spool(shared, &finished, marker)).await.flatten();
    let Some(entry) = entry else {
        return report_unspooled(shared, execution, finished, marker).await;
    };
    let published = publish(&*shared.store, &shared.store_outage, &entry);
    let report = match unless_hung(shared, published).await {
        Some(report) => {
            shared.config.metrics.stored(entry.bytes());
            report
        }
        None => unreadable_report(&finished),
    };
    note_end(shared, &execution, &report.body);
    send_last_report(shared, execution, report).await;
    let _left = unless_hung(shared, shared.spool.remove(entry)).await;
}

/// Spools an execution; `None` if that is not possible for too long. A host that lacks open files or
/// memory will have some soon, but a disk that is full or takes no writes may stay so for ever.
async fn spool(shared: &WorkerShared, finished: &Finished, marker: bool) -> Option<SpoolEntry> {
    let (mut backoff, began) = (shared.spool_outage.backoff(), Instant::now());
    loop {
        match shared.spool.persist(finished, marker).await {
            Ok(entry) => {
                backoff.succeeded();
                return Some(entry);
            }
            Err(error) => {
                if !passes(&error) && began.elapsed() >= spool_limit(shared) {
                    return None;
                }
                shared.disks.suspect();
                backoff.wait_after_failure(&error).await;
            }
        }
    }
}

/// Whether the cause of an error goes without anybody's doing, and keeps files from being read, too.
fn passes(error: &io::Error) -> bool {
    Shortage::from_io_error(error) == Some(Shortage::Host)
}

fn spool_limit(shared: &WorkerShared) -> Duration {
    match shared.disks.last_failed() {
        Some(fault) if !fault.is_shortage => FAILED_SPOOL_LIMIT,
        _ => SPOOL_LIMIT,
    }
}

/// Stores and reports an execution whose files stay where they are. If this process dies meanwhile, the
/// execution is lost, as one that runs.
async fn report_unspooled(
    shared: &WorkerShared,
    execution: Arc<Execution>,
    finished: Finished,
    marker: bool,
) {
    let exec = execution.exec;
    UNSPOOLED
        .warn(&format_args!("execution {exec} cannot be spooled: its result is stored at once"));
    let located = unless_hung(shared, shared.spool.locate_files(&finished)).await;
    let finished = located.unwrap_or(finished);
    let stored = publish_unspooled(&*shared.store, &shared.store_outage, &finished, marker);
    let report = match finished.files.is_empty() {
        true => stored.await,
        false => {
            let stored = unless_hung(shared, stored).await;
            stored.unwrap_or_else(|| unreadable_report(&finished))
        }
    };
    note_end(shared, &execution, &report.body);
    send_last_report(shared, execution, report).await;
    let _left = unless_hung(shared, shared.spool.clear_unspooled(exec)).await;
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

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn host_without_open_files_is_waited_for_and_full_disk_is_not() {
        let passes = |errno: Errno| passes(&io::Error::from_raw_os_error(errno.raw_os_error()));
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert!(passes(errno), "{errno}");
        }
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO] {
            assert!(!passes(errno), "{errno}");
        }
    }
}
