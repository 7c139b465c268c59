//! The record of an execution that is over, and its files.

use rollout_protocol::Timestamp;
use rollout_protocol::error::TrialError;
use rollout_protocol::record::{Durations, IdeasEnd, IdeasRecord, Timestamps};
use rollout_protocol::version::RUN_FORMAT;

use super::IdeasContext;
use super::run::Run;
use crate::executor::{FileRole, Finished, RecordFile, errors};

/// Path of the log of a failed image build below the directory of the node's logs.
const BUILD_LOG: &str = "build.log";

impl Finished<IdeasRecord> {
    /// The answer of an execution that failed before anything else is known of it.
    pub fn failed(ctx: &IdeasContext, error: TrialError) -> Self {
        let labels = &ctx.labels;
        let record = IdeasRecord {
            format: RUN_FORMAT,
            run: labels.run,
            item: labels.item,
            try_id: labels.try_id,
            exec: labels.exec,
            worker: labels.worker.clone(),
            host: String::new(),
            name: ctx.ideas.name.clone(),
            spec: ctx.spec,
            end: IdeasEnd::Failed,
            error: Some(error),
            secondary_errors: Vec::new(),
            command: None,
            ideas: None,
            left_out: Vec::new(),
            cost: 0.0,
            reported_cost: None,
            durations: Durations::default(),
            timestamps: Timestamps::instant(Timestamp::now()),
            environment: None,
            outputs: Vec::new(),
            logs: None,
        };
        Self { record, files: Vec::new(), stopped: None }
    }
}

/// The record of an execution and its files.
pub(super) fn finished(mut run: Run<'_>) -> Finished<IdeasRecord> {
    let stopped = (run.end == IdeasEnd::Stopped).then(|| run.timing.phase());
    let files = files(&mut run);
    let (durations, timestamps) = run.timing.finish();
    let (ctx, ideas, labels) = (run.ctx, &run.ctx.ideas, &run.ctx.labels);
    let cost = run.place.cost(&ideas.settings.rates);
    if run.end == IdeasEnd::Failed && run.first.is_none() {
        let (phase, redactor) = (run.timing.phase(), &run.variables.redactor);
        let why = "it ended without ideas and without an error";
        run.first = Some(errors::panicked(why, phase, redactor));
    }
    let record = IdeasRecord {
        format: RUN_FORMAT,
        run: labels.run,
        item: labels.item,
        try_id: labels.try_id,
        exec: labels.exec,
        worker: labels.worker.clone(),
        host: run.services.host.clone(),
        name: ideas.name.clone(),
        spec: ctx.spec,
        end: run.end,
        error: run.first,
        secondary_errors: run.later,
        command: run.command,
        ideas: None,
        left_out: run.left_out,
        cost,
        reported_cost: run.reported,
        durations,
        timestamps,
        environment: run.place.record,
        outputs: Vec::new(),
        logs: None,
    };
    Finished { record, files, stopped }
}

fn files(run: &mut Run<'_>) -> Vec<RecordFile> {
    let mut files = Vec::new();
    match run.capture.take().map(|capture| capture.finish()) {
        Some(Ok(captured)) => files.extend(RecordFile::captured(captured, "")),
        Some(Err(error)) => {
            let why = format!("output of the command is lost: {error}");
            run.later.push(errors::not_collected(&why, &run.variables.redactor));
        }
        None => {}
    }
    let log = |(file, bytes)| RecordFile::text(file, BUILD_LOG.to_owned(), bytes, false);
    files.extend(run.build.kept().map(log));
    files.extend(run.logs.take().map(|taken| RecordFile::archive(taken, FileRole::Logs)));
    files.extend(run.ideas.take().map(|taken| RecordFile::archive(taken, FileRole::Ideas)));
    files
}
