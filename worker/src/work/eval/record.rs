//! The record of a finished execution.

use std::collections::BTreeMap;

use rollout_protocol::Timestamp;
use rollout_protocol::blob::MediaType;
use rollout_protocol::error::TrialError;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Durations, EvalEnd, EvalRecord, Timestamps};
use rollout_protocol::version::RUN_FORMAT;

use super::EvalContext;
use super::collect::EvalOutputs;
use super::environment::EvalEnvironmentState;
use super::run::EvalRun;
use crate::executor::{
    BUILD_LOG, FileRole, Finished, OutputFiles, RecordFile, errors, finish_outputs,
};

impl Finished<EvalRecord> {
    /// The result of an execution that failed before anything else is known about it.
    pub fn failed(ctx: &EvalContext, error: TrialError) -> Self {
        let host = ctx.execution.labels.owner.host_name();
        let record = EvalRecord { error: Some(error), ..empty_record(ctx, host) };
        Self { record, files: Vec::new(), stopped: None }
    }
}

/// The record of an execution that failed without a reason.
fn empty_record(ctx: &EvalContext, host: &str) -> EvalRecord {
    let labels = &ctx.execution.labels;
    EvalRecord {
        format: RUN_FORMAT,
        run: labels.run,
        item: labels.item,
        try_id: labels.try_id,
        exec: labels.exec,
        worker: labels.worker.clone(),
        host: host.to_owned(),
        name: ctx.eval.name.clone(),
        spec: ctx.execution.spec,
        parent: ctx.eval.repository.commit().to_owned(),
        end: EvalEnd::Failed,
        error: None,
        secondary_errors: Vec::new(),
        commands: Vec::new(),
        candidate: None,
        changes: None,
        results: None,
        cost: 0.0,
        reported_cost: None,
        gateway: BTreeMap::new(),
        durations: Durations::default(),
        timestamps: Timestamps::instant(Timestamp::now()),
        environment: None,
        sweep_environment: None,
        outputs: Vec::new(),
        logs: None,
        sweep_logs: None,
        sweep_output: None,
        possible_secrets: Vec::new(),
    }
}

/// The record of an execution and its files; `stopped` names the phase that a stop ended.
pub(super) async fn finished(mut run: EvalRun<'_>, stopped: Option<Phase>) -> Finished<EvalRecord> {
    if stopped.is_some() {
        run.end = EvalEnd::Stopped;
    }
    let files = record_files(&mut run).await;
    let (durations, timestamps) = run.attempt.timing.finish();
    let calls: f64 = run.gateway.values().map(|calls| calls.cost).sum();
    let cost = run.removed_cost + run.environment_cost() + calls;
    if run.end == EvalEnd::Failed && run.attempt.first_error.is_none() {
        let (phase, redactor) = (run.attempt.timing.phase(), &run.attempt.redactor);
        let why = "it ended without results and without an error";
        run.attempt.first_error = Some(errors::panicked(why, phase, redactor));
    }
    let last = run.attempt.environment.record;
    let (environment, sweep_environment) = match run.environment_state {
        EvalEnvironmentState::Shared | EvalEnvironmentState::Leaving => (last, None),
        EvalEnvironmentState::Sweep => (run.removed_environment, last.map(Box::new)),
    };
    let record = EvalRecord {
        end: run.end,
        error: run.attempt.first_error,
        secondary_errors: run.attempt.secondary_errors,
        commands: run.commands,
        changes: run.changes,
        cost,
        reported_cost: run.reported_cost,
        gateway: run.gateway,
        durations,
        timestamps,
        environment,
        sweep_environment,
        possible_secrets: run.possible_secrets.into_iter().collect(),
        ..empty_record(run.ctx, &run.services.host)
    };
    Finished { record, files, stopped }
}

async fn record_files(run: &mut EvalRun<'_>) -> Vec<RecordFile> {
    let mut files = Vec::new();
    let (stages, captures): (Vec<_>, Vec<_>) =
        std::mem::take(&mut run.captures).into_iter().unzip();
    let outputs = finish_outputs(captures, &run.build_log, &run.attempt.redactor).await;
    let OutputFiles { captured, build_log } = outputs;
    for (stage, captured) in stages.into_iter().zip(captured) {
        match captured {
            Ok(captured) => files.extend(RecordFile::captured(captured, &format!("{stage}/"))),
            Err(error) => {
                let why = format!("cannot keep the output of {stage}: {error}");
                run.attempt.record_not_collected(&why);
            }
        }
    }
    let log = |(file, bytes)| RecordFile::text(file, BUILD_LOG.to_owned(), bytes, false);
    files.extend(build_log.map(log));
    let EvalOutputs { logs, sweep_logs, output, results } = std::mem::take(&mut run.collected);
    files.extend(logs.map(|taken| RecordFile::archive(taken, FileRole::Logs)));
    files.extend(sweep_logs.map(|taken| RecordFile::archive(taken, FileRole::SweepLogs)));
    files.extend(output.map(|taken| RecordFile::archive(taken, FileRole::SweepOutput)));
    files.extend(results.map(|file| RecordFile {
        file,
        media_type: MediaType::Text,
        role: FileRole::Results,
        digest: None,
    }));
    files.append(&mut run.call_files);
    files.extend(run.candidate.take().map(|candidate| {
        let role = FileRole::Candidate { commit: candidate.commit, parent: candidate.parent };
        RecordFile { file: candidate.file, media_type: MediaType::Bytes, role, digest: None }
    }));
    files
}
