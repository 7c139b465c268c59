//! Changes that the agent makes in directories of its environment, for artifacts that ask for them.

use std::future::Future;
use std::path::Path;

use rollout_base::secrets::Redactor;
use rollout_environment::Environment;
use rollout_protocol::limits;
use rollout_protocol::record::{ArtifactKind, ArtifactRecord, ArtifactStatus};
use rollout_protocol::spec::task::{Artifact, StepSpec};
use rollout_store::archive::ArchiveLimits;

use super::TrialContext;
use super::artifacts::open_artifact;
use super::outputs::step_prefix;
use super::run::TrialRun;
use crate::executor::{COPY_LIMIT, possible_secrets};
use crate::workspace_diff::{
    FinishedDiff, WorkspaceDiffError, WorkspaceOptions, WorkspaceSnapshot,
};

/// Directory of diffs below the artifacts, unless they have a destination.
const DIFFS_DIR: &str = "workspace-diff";

/// A directory whose changes are to be kept, before the agent runs.
pub(super) struct WatchedDirectory {
    artifact: Artifact,
    /// Its state, and whether it exists; or why it cannot be read.
    before: Result<(WorkspaceSnapshot, bool), String>,
}

impl TrialRun<'_> {
    /// Reads the directories whose changes a step is asked for, right before its agent.
    pub(super) async fn watch_directories(&self, step: &StepSpec) -> Vec<WatchedDirectory> {
        let mut watched = Vec::new();
        let mut text_bytes = limits::WORKSPACE_TEXT_BYTES;
        for artifact in requested(self.ctx, step) {
            let options = WorkspaceOptions {
                directory: artifact.source.clone(),
                service: artifact.service.clone(),
                exclude: artifact.exclude.clone(),
                scratch: self.outputs.scratch().join("artifacts"),
                limits: ArchiveLimits::WORKSPACE,
                text_bytes,
                redactor: self.attempt.redactor.declared(),
            };
            let before = take(self.attempt.environment.expect_running(), artifact, options).await;
            if let Ok((snapshot, _)) = &before {
                text_bytes = text_bytes.saturating_sub(snapshot.text_bytes());
            }
            watched.push(WatchedDirectory { artifact: artifact.clone(), before });
        }
        watched
    }

    /// Computes the changes of a step's directories after its agent. A failure is only recorded:
    /// no verifier needs them.
    pub(super) async fn collect_changes(
        &mut self,
        step: &StepSpec,
        watched: Vec<WatchedDirectory>,
    ) {
        let prefix = step_prefix(step.name.as_deref());
        for WatchedDirectory { artifact, before } in watched {
            let environment = self.attempt.environment.expect_running();
            let file = self.artifacts.next_file(self.outputs.scratch());
            let files_bytes =
                limits::WORKSPACE_FILES_BYTES.saturating_sub(self.artifacts.changed_bytes);
            let finished = match before {
                Ok((snapshot, existed)) => {
                    finish(environment, &artifact, snapshot, existed, (&file, files_bytes)).await
                }
                Err(why) => Err(format!("before the agent: {why}")),
            };
            let redactor = &self.attempt.redactor;
            let (mut record, finished) = record(&artifact, &prefix, finished, redactor);
            if let Some(diff) = &finished {
                match possible_secrets(vec![file.clone()], redactor).await {
                    Ok(found) => record.possible_secrets = found.into_iter().collect(),
                    Err(error) => tracing::warn!("cannot read {}: {error}", file.display()),
                }
                self.artifacts.changed_bytes += diff.files_bytes;
            }
            self.artifacts.keep(record, finished.map(|diff| (file, diff.archive.digest)));
        }
    }
}

/// The artifacts of a step that are changes, each once.
fn requested<'a>(ctx: &'a TrialContext, step: &'a StepSpec) -> Vec<&'a Artifact> {
    let mut requested: Vec<&Artifact> = Vec::new();
    for artifact in step.artifacts.iter().chain(&ctx.settings.artifacts) {
        if artifact.changes && !requested.contains(&artifact) {
            requested.push(artifact);
        }
    }
    requested
}

async fn take(
    environment: &dyn Environment,
    artifact: &Artifact,
    options: WorkspaceOptions,
) -> Result<(WorkspaceSnapshot, bool), String> {
    let source = open_artifact(environment, artifact).await?;
    let exists = source.is_some();
    let snapshot = in_time(WorkspaceSnapshot::take(source, options)).await?;
    Ok((snapshot, exists))
}

/// Computes the changes; `None` when the directory never existed.
async fn finish(
    environment: &dyn Environment,
    artifact: &Artifact,
    before: WorkspaceSnapshot,
    existed: bool,
    (to, files_bytes): (&Path, u64),
) -> Result<Option<FinishedDiff>, String> {
    let source = open_artifact(environment, artifact).await;
    let source = source.map_err(|why| format!("after the agent: {why}"))?;
    if source.is_none() && !existed {
        return Ok(None);
    }
    in_time(before.finish(source, to, files_bytes)).await.map(Some)
}

async fn in_time<T>(
    work: impl Future<Output = Result<T, WorkspaceDiffError>>,
) -> Result<T, String> {
    match tokio::time::timeout(COPY_LIMIT, work).await {
        Ok(done) => done.map_err(|error| rollout_base::backoff::error_chain(&error)),
        Err(_) => Err(format!("reading it took longer than {COPY_LIMIT:?}")),
    }
}

fn record(
    artifact: &Artifact,
    prefix: &str,
    finished: Result<Option<FinishedDiff>, String>,
    redactor: &Redactor,
) -> (ArtifactRecord, Option<FinishedDiff>) {
    let default = || format!("{DIFFS_DIR}/{}", artifact.source.trim_matches('/'));
    let below = artifact.destination.clone().unwrap_or_else(default);
    let (status, error, diff) = match finished {
        Ok(None) => (ArtifactStatus::Skipped, None, None),
        Ok(Some(diff)) => {
            let why = diff.truncated_because.join("; ");
            let error =
                (!why.is_empty()).then(|| redactor.text(&format!("it is incomplete: {why}")));
            (ArtifactStatus::Ok, error, Some(diff))
        }
        Err(why) => (ArtifactStatus::Failed, Some(redactor.text(&why)), None),
    };
    let record = ArtifactRecord {
        source: artifact.source.clone(),
        path: format!("{prefix}artifacts/{}", below.trim_matches('/')),
        service: artifact.service.clone(),
        status,
        kind: Some(ArtifactKind::Directory),
        archive: None,
        artifact_type: artifact.artifact_type,
        error,
        possible_secrets: Vec::new(),
    };
    (record, diff)
}
