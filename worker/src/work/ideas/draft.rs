//! The record of an execution that is over, and its files.

use rollout_protocol::Timestamp;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::error::TrialError;
use rollout_protocol::record::{Durations, IdeasEnd, IdeasRecord, LogsRecord, Output, Timestamps};
use rollout_protocol::version::RUN_FORMAT;
use serde::{Deserialize, Serialize};

use super::IdeasContext;
use super::run::Run;
use crate::executor::{CleanArchive, Draft, DraftFile, errors};
use crate::store::{BlobStore, Content, StoreError};
use crate::work::eval::Counts;

/// Path of the log of a failed image build below the directory of the node's logs.
const BUILD_LOG: &str = "build.log";

/// The record of a command that writes ideas, whose files are not stored yet.
pub type IdeasDraft = Draft<IdeasRecord, IdeasRole>;

/// The place of a file in the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum IdeasRole {
    /// Output of the command, or of the image build.
    Output {
        /// Path below the directory of the node's logs.
        path: String,
        /// Bytes that were written, kept or not.
        total_bytes: u64,
        /// Whether the middle was left out.
        truncated: bool,
    },
    /// The archive of the ideas.
    Ideas(Counts),
    /// The archive of `/logs`.
    Logs(Counts),
}

impl IdeasDraft {
    /// Stores the files and gives the whole record. May be tried again.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn store(&self, store: &dyn BlobStore) -> Result<IdeasRecord, StoreError> {
        let contents =
            self.files.iter().map(|file| Content::File(file.file.clone(), file.media_type));
        let blobs = store.put_many(contents.collect()).await?;
        let mut record = self.record.clone();
        for (file, blob) in self.files.iter().zip(blobs) {
            file.role.clone().put(&mut record, blob);
        }
        Ok(record)
    }

    /// The draft of an execution that failed before anything else is known of it.
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
        Self { record, files: Vec::new() }
    }
}

impl IdeasRole {
    /// Puts the stored file at its place in the record.
    pub(crate) fn put(self, record: &mut IdeasRecord, blob: BlobRef) {
        let archived = |counts: Counts, archive| LogsRecord {
            archive,
            entries: counts.entries,
            skipped: counts.skipped,
            truncated: counts.truncated,
        };
        match self {
            Self::Output { path, total_bytes, truncated } => {
                record.outputs.push(Output { path, blob, total_bytes, truncated });
            }
            Self::Ideas(counts) => record.ideas = Some(archived(counts, blob)),
            Self::Logs(counts) => record.logs = Some(archived(counts, blob)),
        }
    }
}

/// The record of an execution and its files.
pub(super) fn draft(mut run: Run<'_>) -> IdeasDraft {
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
    Draft { record, files }
}

fn files(run: &mut Run<'_>) -> Vec<DraftFile<IdeasRole>> {
    let text = |file, path: &str, total_bytes, truncated| {
        let role = IdeasRole::Output { path: path.to_owned(), total_bytes, truncated };
        DraftFile { file, media_type: MediaType::Text, role }
    };
    let mut files = Vec::new();
    match run.capture.take().map(|capture| capture.finish()) {
        Some(Ok(captured)) => {
            for (captured, name) in captured.into_iter().zip(["stdout.txt", "stderr.txt"]) {
                files.push(text(captured.file, name, captured.total_bytes, captured.truncated));
            }
        }
        Some(Err(error)) => {
            let why = format!("output of the command is lost: {error}");
            run.later.push(errors::not_collected(&why, &run.variables.redactor));
        }
        None => {}
    }
    let log = run.build.kept();
    files.extend(log.map(|(file, total_bytes)| text(file, BUILD_LOG, total_bytes, false)));
    let archive = |taken: CleanArchive, role: fn(Counts) -> IdeasRole| {
        let CleanArchive { file, entries, skipped, truncated } = taken;
        let role = role(Counts { entries, skipped, truncated });
        DraftFile { file, media_type: MediaType::Tar, role }
    };
    files.extend(run.logs.take().map(|taken| archive(taken, IdeasRole::Logs)));
    files.extend(run.ideas.take().map(|taken| archive(taken, IdeasRole::Ideas)));
    files
}
