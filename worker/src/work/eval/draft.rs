//! From an execution that is over to its record.

use rollout_protocol::Timestamp;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::error::TrialError;
use rollout_protocol::record::{Durations, EvalEnd, EvalRecord, LogsRecord, Output, Timestamps};
use rollout_protocol::spec::eval::Bundle;
use rollout_protocol::version::RUN_FORMAT;
use serde::{Deserialize, Serialize};

use super::EvalContext;
use super::run::Run;
use crate::executor::{BUILD_LOG, CleanArchive, Draft, DraftFile, errors};
use crate::store::{BlobStore, Content, StoreError};

/// The record of an eval, whose files are not stored yet.
pub type EvalDraft = Draft<EvalRecord, EvalRole>;

/// What a file becomes in the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum EvalRole {
    /// Something that a command printed.
    Output {
        /// Path below the eval's directory.
        path: String,
        /// Bytes that were written, kept or not.
        total_bytes: u64,
        /// Whether the middle was left out.
        truncated: bool,
    },
    /// The archive of `/logs`.
    Logs(Counts),
    /// The archive of `/logs` of the sweep's own environment.
    SweepLogs(Counts),
    /// The archive of the sweep's output.
    SweepOutput(Counts),
    /// The results.
    Results,
    /// The commit that the idea became.
    Candidate {
        /// The commit.
        commit: String,
        /// Its parent.
        parent: String,
    },
}

/// What a clean archive holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Regular files and directories in it.
    pub entries: u64,
    /// Entries that were left out.
    pub skipped: u64,
    /// Whether a limit ended the collection early.
    pub truncated: bool,
}

impl EvalDraft {
    /// Stores the files and gives the whole record. May be tried again.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn store(&self, store: &dyn BlobStore) -> Result<EvalRecord, StoreError> {
        let contents =
            self.files.iter().map(|file| Content::File(file.file.clone(), file.media_type));
        let blobs = store.put_many(contents.collect()).await?;
        let mut record = self.record.clone();
        for (file, blob) in self.files.iter().zip(blobs) {
            file.role.clone().put(&mut record, blob);
        }
        Ok(record)
    }

    /// An execution of which there is nothing to say but that it failed, on `host`.
    pub fn failed(ctx: &EvalContext, host: &str, error: TrialError) -> Self {
        let now = Timestamp::now();
        let labels = &ctx.labels;
        let record = EvalRecord {
            format: RUN_FORMAT,
            run: labels.run,
            item: labels.item,
            try_id: labels.try_id,
            exec: labels.exec,
            worker: labels.worker.clone(),
            host: host.to_owned(),
            name: ctx.eval.name.clone(),
            spec: ctx.spec,
            parent: ctx.eval.repository.commit().to_owned(),
            end: EvalEnd::Failed,
            error: Some(error),
            secondary_errors: Vec::new(),
            commands: Vec::new(),
            candidate: None,
            changes: None,
            results: None,
            cost: 0.0,
            reported_cost: None,
            durations: Durations::default(),
            timestamps: Timestamps::instant(now),
            environment: None,
            sweep_environment: None,
            outputs: Vec::new(),
            logs: None,
            sweep_logs: None,
            sweep_output: None,
        };
        Self { record, files: Vec::new() }
    }
}

impl EvalRole {
    /// Puts the stored file where it belongs in the record.
    pub(crate) fn put(self, record: &mut EvalRecord, blob: BlobRef) {
        let logs = |counts: Counts, archive| LogsRecord {
            archive,
            entries: counts.entries,
            skipped: counts.skipped,
            truncated: counts.truncated,
        };
        match self {
            Self::Output { path, total_bytes, truncated } => {
                record.outputs.push(Output { path, blob, total_bytes, truncated });
            }
            Self::Logs(counts) => record.logs = Some(logs(counts, blob)),
            Self::SweepLogs(counts) => record.sweep_logs = Some(Box::new(logs(counts, blob))),
            Self::SweepOutput(counts) => record.sweep_output = Some(logs(counts, blob)),
            Self::Results => record.results = Some(blob),
            Self::Candidate { commit, parent } => {
                record.candidate = Some(Bundle { commit, parent: Some(parent), blob });
            }
        }
    }
}

/// The record of an execution and its files.
pub(super) fn draft(mut run: Run<'_>) -> EvalDraft {
    let files = files(&mut run);
    let (durations, timestamps) = run.timing.finish();
    let (ctx, eval, labels) = (run.ctx, &run.ctx.eval, &run.ctx.labels);
    let cost = run.spent + run.cost_of_place();
    if run.end == EvalEnd::Failed && run.first.is_none() {
        let (phase, redactor) = (run.timing.phase(), &run.variables.redactor);
        let why = "it ended without results and without an error";
        run.first = Some(errors::panicked(why, phase, redactor));
    }
    let record = EvalRecord {
        format: RUN_FORMAT,
        run: labels.run,
        item: labels.item,
        try_id: labels.try_id,
        exec: labels.exec,
        worker: labels.worker.clone(),
        host: run.services.host.clone(),
        name: eval.name.clone(),
        spec: ctx.spec,
        parent: eval.repository.commit().to_owned(),
        end: run.end,
        error: run.first,
        secondary_errors: run.later,
        commands: run.commands,
        candidate: None,
        changes: run.changes,
        results: None,
        cost,
        reported_cost: run.reported,
        durations,
        timestamps,
        environment: run.environment,
        sweep_environment: run.sweep_environment.map(Box::new),
        outputs: Vec::new(),
        logs: None,
        sweep_logs: None,
        sweep_output: None,
    };
    Draft { record, files }
}

fn files(run: &mut Run<'_>) -> Vec<DraftFile<EvalRole>> {
    let mut files = Vec::new();
    for (stage, capture) in std::mem::take(&mut run.captures) {
        match capture.finish() {
            Ok(captured) => {
                for (captured, name) in captured.into_iter().zip(["stdout.txt", "stderr.txt"]) {
                    let path = format!("{stage}/{name}");
                    let (total_bytes, truncated) = (captured.total_bytes, captured.truncated);
                    let role = EvalRole::Output { path, total_bytes, truncated };
                    files.push(DraftFile {
                        file: captured.file,
                        media_type: MediaType::Text,
                        role,
                    });
                }
            }
            Err(error) => {
                let why = format!("output of {stage} is lost: {error}");
                run.later.push(errors::not_collected(&why, &run.variables.redactor));
            }
        }
    }
    files.extend(run.build.kept().map(|(file, total_bytes)| {
        let role = EvalRole::Output { path: BUILD_LOG.to_owned(), total_bytes, truncated: false };
        DraftFile { file, media_type: MediaType::Text, role }
    }));
    let archive = |taken: CleanArchive, role: fn(Counts) -> EvalRole| {
        let CleanArchive { file, entries, skipped, truncated } = taken;
        let role = role(Counts { entries, skipped, truncated });
        DraftFile { file, media_type: MediaType::Tar, role }
    };
    files.extend(run.collected.logs.take().map(|taken| archive(taken, EvalRole::Logs)));
    let sweep_logs = run.collected.sweep_logs.take();
    files.extend(sweep_logs.map(|taken| archive(taken, EvalRole::SweepLogs)));
    files.extend(run.collected.output.take().map(|taken| archive(taken, EvalRole::SweepOutput)));
    let results = run.collected.results.take();
    files.extend(results.map(|file| DraftFile {
        file,
        media_type: MediaType::Text,
        role: EvalRole::Results,
    }));
    files.extend(run.candidate.take().map(|candidate| {
        let role = EvalRole::Candidate { commit: candidate.commit, parent: candidate.parent };
        DraftFile { file: candidate.file, media_type: MediaType::Bytes, role }
    }));
    files
}
