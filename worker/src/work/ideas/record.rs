//! The record of a finished execution, and its files.

use rollout_protocol::Timestamp;
use rollout_protocol::error::TrialError;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Durations, IdeasEnd, IdeasRecord, Timestamps};
use rollout_protocol::version::RUN_FORMAT;

use super::IdeasContext;
use super::run::IdeasRun;
use crate::executor::{FileRole, Finished, OutputFiles, RecordFile, errors, finish_outputs};

/// Path of the log of a failed image build below the directory of the node's logs.
const BUILD_LOG: &str = "build.log";

impl Finished<IdeasRecord> {
    /// The result of an execution that failed before anything else is known about it.
    pub fn failed(ctx: &IdeasContext, error: TrialError) -> Self {
        let host = ctx.execution.labels.owner.host_name();
        let record = IdeasRecord { error: Some(error), ..empty_record(ctx, host) };
        Self { record, files: Vec::new(), stopped: None }
    }
}

/// The record of an execution that failed without a reason.
fn empty_record(ctx: &IdeasContext, host: &str) -> IdeasRecord {
    let labels = &ctx.execution.labels;
    IdeasRecord {
        format: RUN_FORMAT,
        run: labels.run,
        item: labels.item,
        try_id: labels.try_id,
        exec: labels.exec,
        worker: labels.worker.clone(),
        host: host.to_owned(),
        name: ctx.ideas.name.clone(),
        spec: ctx.execution.spec,
        end: IdeasEnd::Failed,
        error: None,
        secondary_errors: Vec::new(),
        command: None,
        ideas: None,
        left_out: Vec::new(),
        cost: 0.0,
        reported_cost: None,
        gateway: None,
        durations: Durations::default(),
        timestamps: Timestamps::instant(Timestamp::now()),
        environment: None,
        outputs: Vec::new(),
        logs: None,
    }
}

/// The record of an execution and its files; `stopped` names the phase that a stop ended.
pub(super) async fn finished(
    mut run: IdeasRun<'_>,
    stopped: Option<Phase>,
) -> Finished<IdeasRecord> {
    if stopped.is_some() {
        run.end = IdeasEnd::Stopped;
    }
    let mut files = record_files(&mut run).await;
    let mut calls = run.models.finish("").await;
    files.append(&mut calls.files);
    let (durations, timestamps) = run.attempt.timing.finish();
    let cost = run.attempt.environment.cost(&run.ctx.ideas.settings.rates) + calls.cost();
    if run.end == IdeasEnd::Failed && run.attempt.first_error.is_none() {
        let (phase, redactor) = (run.attempt.timing.phase(), &run.attempt.redactor);
        let why = "it ended without ideas and without an error";
        run.attempt.first_error = Some(errors::panicked(why, phase, redactor));
    }
    let record = IdeasRecord {
        end: run.end,
        error: run.attempt.first_error,
        secondary_errors: run.attempt.secondary_errors,
        command: run.command,
        left_out: run.left_out,
        cost,
        reported_cost: run.reported_cost,
        gateway: calls.summary,
        durations,
        timestamps,
        environment: run.attempt.environment.record,
        ..empty_record(run.ctx, &run.services.host)
    };
    Finished { record, files, stopped }
}

async fn record_files(run: &mut IdeasRun<'_>) -> Vec<RecordFile> {
    let mut files = Vec::new();
    // The directory of each, and its name in messages.
    let places = [("", "the command"), ("install/", "the installation")];
    let captures = [run.capture.take(), run.install_capture.take()];
    let begun =
        places.into_iter().zip(captures).filter_map(|(place, capture)| Some((place, capture?)));
    let (places, captures): (Vec<_>, Vec<_>) = begun.unzip();
    let outputs = finish_outputs(captures, &run.build_log, &run.attempt.redactor).await;
    let OutputFiles { captured, build_log } = outputs;
    for ((directory, of), captured) in places.into_iter().zip(captured) {
        match captured {
            Ok(captured) => files.extend(RecordFile::captured(captured, directory)),
            Err(error) => {
                let why = format!("cannot keep the output of {of}: {error}");
                run.attempt.record_not_collected(&why);
            }
        }
    }
    let log = |(file, bytes)| RecordFile::text(file, BUILD_LOG.to_owned(), bytes, false);
    files.extend(build_log.map(log));
    files.extend(run.logs.take().map(|taken| RecordFile::archive(taken, FileRole::Logs)));
    files.extend(run.ideas.take().map(|taken| RecordFile::archive(taken, FileRole::Ideas)));
    files
}
