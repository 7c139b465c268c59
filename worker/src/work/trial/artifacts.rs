//! Files to keep from an environment: collected before verification, as untrusted as logs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rollout_base::fs_make::make_scratch_directory;
use rollout_base::fs_remove;
use rollout_base::secrets::Redactor;
use rollout_base::shown_path::shown;
use rollout_environment::{ByteStream, Environment, Upload};
use rollout_protocol::artifact::ArtifactType;
use rollout_protocol::blob::MediaType;
use rollout_protocol::digest::Digest;
use rollout_protocol::record::{ArtifactKind, ArtifactRecord, ArtifactStatus};
use rollout_protocol::spec::task::{Artifact, TaskFormat};
use rollout_store::archive::{
    self, ArchiveLimits, ArchiveReport, ExcludePatterns, LeftOutSecrets, MemberKind, PackedArchive,
    RootHandling, SanitizeOptions, SecretMembers,
};

use super::TrialContext;
use crate::executor::errors::IncompleteWork;
use crate::executor::{COPY_LIMIT, FileRole, RecordFile, possible_secrets, with_timeout};
use crate::verifier::{TESTS_DIR, VERIFIER_LOGS};

/// In Harbor's format, files here are kept without being requested.
pub(super) const ARTIFACTS_DIR: &str = "/logs/artifacts";

/// All artifacts of one execution.
#[derive(Debug, Default)]
pub(super) struct Artifacts {
    /// Number of files that were begun.
    file_count: usize,
    entries: u64,
    bytes: u64,
    /// Bytes of changed files in diffs of directories. They have a limit of their own: a diff must
    /// not take the room of files that a verifier needs.
    pub(super) changed_bytes: u64,
    /// Unmasked archives of the agent's files, for a verifier.
    unmasked: Vec<PathBuf>,
    /// Digests of the kept archives, computed while they were written.
    digests: HashMap<PathBuf, Digest>,
    pub(super) records: Vec<ArtifactRecord>,
    pub(super) files: Vec<RecordFile>,
}

/// The artifacts of one step, to be placed in a verifier's environment.
#[derive(Debug, Default)]
pub(super) struct CollectedArtifacts {
    /// Uploads that place them, in the order of collection.
    pub(super) uploads: Vec<Upload>,
    /// Why some are missing or incomplete.
    pub(super) incomplete: Option<IncompleteWork>,
}

/// Whether a step has artifacts to copy.
pub(super) fn has_artifacts(ctx: &TrialContext, wanted: &[Artifact]) -> bool {
    let is_copy = |artifact: &Artifact| !artifact.changes;
    let requested = wanted.iter().chain(&ctx.settings.artifacts).any(is_copy);
    requested || ctx.task.format == TaskFormat::Harbor
}

impl Artifacts {
    /// Copies the artifacts of a step and of the job into files; `prefix` leads to the step's
    /// directory.
    pub(super) async fn collect(
        &mut self,
        ctx: &TrialContext,
        environment: &dyn Environment,
        wanted: &[Artifact],
        (scratch, prefix): (&Path, &str),
        redactor: &Redactor,
    ) -> CollectedArtifacts {
        let mut collected = CollectedArtifacts::default();
        let named = || {
            let all = wanted.iter().chain(&ctx.settings.artifacts);
            all.filter(|artifact| !artifact.changes)
        };
        let implicit = Artifact {
            source: ARTIFACTS_DIR.to_owned(),
            destination: None,
            exclude: Vec::new(),
            service: None,
            changes: false,
            artifact_type: ArtifactType::default(),
        };
        let is_it = |artifact: &Artifact| artifact.source.trim_end_matches('/') == ARTIFACTS_DIR;
        let implicit =
            (ctx.task.format == TaskFormat::Harbor && !named().any(is_it)).then_some(implicit);
        let implicit = implicit.iter().map(|artifact| (artifact, true));
        for (artifact, implicit) in implicit.chain(named().map(|artifact| (artifact, false))) {
            let file = self.next_file(scratch);
            let (record, lack) =
                self.collect_one(environment, artifact, prefix, &file, redactor).await;
            let nothing = matches!(record.status, ArtifactStatus::Empty | ArtifactStatus::Skipped);
            // It was not requested: without content it is not recorded.
            if !(implicit && nothing) {
                self.add_record(record, file, &lack, &mut collected).await;
            }
            collected.incomplete = collected.incomplete.take().or(lack);
        }
        collected
    }

    /// The path of the next file of an artifact.
    pub(super) fn next_file(&mut self, scratch: &Path) -> PathBuf {
        let file = scratch.join(format!("artifacts/{}.tar", self.file_count));
        self.file_count += 1;
        file
    }

    /// Records an artifact that no verifier gets, with its archive and the digest of that.
    pub(super) fn keep(&mut self, record: ArtifactRecord, archive: Option<(PathBuf, Digest)>) {
        if let Some((file, digest)) = archive {
            let role = FileRole::Artifact { index: self.records.len() };
            let (media_type, digest) = (MediaType::Tar, Some(digest));
            self.files.push(RecordFile { file, media_type, role, digest });
        }
        self.records.push(record);
    }

    /// Records an artifact, and its file and upload.
    async fn add_record(
        &mut self,
        record: ArtifactRecord,
        file: PathBuf,
        incomplete: &Option<IncompleteWork>,
        collected: &mut CollectedArtifacts,
    ) {
        let part = incomplete.is_some() && record.kind == Some(ArtifactKind::Directory);
        let is_kept = record.status == ArtifactStatus::Ok
            || (part && tokio::fs::try_exists(&file).await.unwrap_or(false));
        // A verifier also gets files that are not kept because they hold a secret.
        let is_withheld = record.status == ArtifactStatus::Failed && incomplete.is_none();
        if is_kept || is_withheld {
            collected.uploads.extend(merge_upload(
                &record.source,
                record.kind,
                &unmasked_path(&file),
            ));
        }
        if is_kept {
            let role = FileRole::Artifact { index: self.records.len() };
            let digest = self.digests.remove(&file);
            self.files.push(RecordFile { file, media_type: MediaType::Tar, role, digest });
        } else if record.status == ArtifactStatus::Empty {
            collected.uploads.push(Upload::Dir { path: record.source.clone() });
        }
        self.records.push(record);
    }

    /// Collects one artifact into a file.
    async fn collect_one(
        &mut self,
        environment: &dyn Environment,
        artifact: &Artifact,
        prefix: &str,
        file: &Path,
        redactor: &Redactor,
    ) -> (ArtifactRecord, Option<IncompleteWork>) {
        let below = artifact.destination.as_deref().unwrap_or(&artifact.source);
        let mut record = ArtifactRecord {
            source: artifact.source.clone(),
            path: format!("{prefix}artifacts/{}", below.trim_matches('/')),
            service: artifact.service.clone(),
            status: ArtifactStatus::Skipped,
            kind: None,
            archive: None,
            artifact_type: artifact.artifact_type,
            error: None,
            possible_secrets: Vec::new(),
        };
        let incomplete = match open_artifact(environment, artifact).await {
            Ok(None) => None,
            Ok(Some(stream)) => {
                self.read_artifact(stream, artifact, file, &mut record, redactor).await
            }
            Err(why) => Some(IncompleteWork::Unreadable(why)),
        };
        if let Some(IncompleteWork::TooLarge(why) | IncompleteWork::Unreadable(why)) = &incomplete {
            record.status = ArtifactStatus::Failed;
            record.error = joined(record.error.take(), Some(redactor.text(why)));
        }
        (record, incomplete)
    }

    /// Reads an artifact into a clean archive.
    async fn read_artifact(
        &mut self,
        stream: ByteStream,
        artifact: &Artifact,
        file: &Path,
        record: &mut ArtifactRecord,
        redactor: &Redactor,
    ) -> Option<IncompleteWork> {
        let dir = file.parent().expect("it is below the scratch directory");
        if let Err(error) = make_scratch_directory(dir).await {
            return Some(IncompleteWork::Unreadable(format!("{}: {error}", shown(dir))));
        }
        let ArchiveLimits { entries, bytes } = ArchiveLimits::ARTIFACTS;
        let options = SanitizeOptions {
            limits: ArchiveLimits {
                entries: entries.saturating_sub(self.entries),
                bytes: bytes.saturating_sub(self.bytes),
            },
            root: RootHandling::DropUnlessFile,
            exclude: ExcludePatterns::new(artifact.exclude.iter().map(String::as_str)),
            faithful: true,
            captures: Vec::new(),
            redactor: Redactor::default(),
            secrets: SecretMembers::Mask,
        };
        // A verifier gets the files as the agent made them; the kept archive holds no declared
        // secret.
        let made = unmasked_path(file);
        self.unmasked.push(made.clone());
        let sanitizing = archive::sanitize(stream, &made, options);
        let Ok(clean) = tokio::time::timeout(COPY_LIMIT, sanitizing).await else {
            let limit = COPY_LIMIT;
            return Some(IncompleteWork::Unreadable(format!(
                "reading it took longer than {limit:?}"
            )));
        };
        self.count_usage(&clean.report);
        record.kind = match clean.first {
            Some(MemberKind::Directory) => Some(ArtifactKind::Directory),
            Some(MemberKind::File) => Some(ArtifactKind::File),
            _ => None,
        };
        let kept = match clean.archive {
            Ok(unmasked) => keep_archive(file, redactor, unmasked).await,
            Err(error) => Err(rollout_base::backoff::error_chain(&error)),
        };
        let kept = match kept {
            Ok(kept) => kept,
            Err(why) => return Some(IncompleteWork::Unreadable(why)),
        };
        record.error = kept.secrets.reason();
        record.possible_secrets = kept.possible_secrets;
        let is_kept =
            kept.digest.map(|digest| self.digests.insert(file.to_owned(), digest)).is_some();
        set_status(record, &clean.report, is_kept)
    }

    /// Removes the unmasked archives: no verifier needs them any more.
    pub(super) async fn remove_unmasked(&mut self) {
        for made in self.unmasked.drain(..) {
            if let Err(error) = fs_remove::remove(&made).await {
                tracing::warn!("cannot remove {}: {error}", made.display());
            }
        }
    }

    fn count_usage(&mut self, report: &ArchiveReport) {
        self.entries += report.files + report.directories + report.skipped.total();
        self.bytes += report.bytes;
    }
}

/// Sets the status of an artifact that was read; returns why a part is missing.
fn set_status(
    record: &mut ArtifactRecord,
    report: &ArchiveReport,
    is_kept: bool,
) -> Option<IncompleteWork> {
    if let Some(cut) = &report.cut {
        let why = format!("it is incomplete: {cut}");
        return Some(if cut.is_limit() {
            IncompleteWork::TooLarge(why)
        } else {
            IncompleteWork::Unreadable(why)
        });
    }
    if record.kind.is_none() {
        record.error = Some("it is neither a file nor a directory".to_owned());
        record.status = ArtifactStatus::Failed;
    } else if report.files == 0 {
        record.status = ArtifactStatus::Empty;
    } else if !is_kept {
        record.status = ArtifactStatus::Failed;
    } else {
        record.status = ArtifactStatus::Ok;
        let skipped = report.skipped.total();
        let skipped = (skipped > 0)
            .then(|| format!("{skipped} entries were left out: links that lead outside, devices"));
        record.error = joined(record.error.take(), skipped);
    }
    None
}

/// Path of the unmasked archive of an artifact, for a verifier.
fn unmasked_path(file: &Path) -> PathBuf {
    file.with_extension("made.tar")
}

/// The archive of an artifact that is kept.
struct KeptArchive {
    /// Its digest; `None` if nothing is left to keep.
    digest: Option<Digest>,
    /// Members that it lacks because they hold declared secrets.
    secrets: LeftOutSecrets,
    /// Variables of values in it that look like secrets.
    possible_secrets: Vec<String>,
}

/// Makes the archive to keep from the unmasked one: without members that hold a declared secret.
async fn keep_archive(
    file: &Path,
    redactor: &Redactor,
    unmasked: PackedArchive,
) -> Result<KeptArchive, String> {
    let made = unmasked_path(file);
    let disk_error = |error: std::io::Error| format!("{}: {error}", shown(&made));
    let declared = redactor.declared();
    let (digest, secrets) = if declared.is_empty() {
        tokio::fs::hard_link(&made, file).await.map_err(disk_error)?;
        (Some(unmasked.digest), LeftOutSecrets::default())
    } else {
        let options = SanitizeOptions {
            limits: ArchiveLimits::ARTIFACTS,
            root: RootHandling::Keep,
            exclude: ExcludePatterns::default(),
            faithful: true,
            captures: Vec::new(),
            redactor: declared,
            secrets: SecretMembers::LeaveOut,
        };
        let stream = tokio::fs::File::open(&made).await.map_err(disk_error)?;
        let clean = archive::sanitize(Box::new(stream), file, options).await;
        let packed = clean.archive.map_err(|error| rollout_base::backoff::error_chain(&error))?;
        let is_left = clean.report.files > 0 || clean.report.secrets.members == 0;
        if !is_left {
            fs_remove::remove(file).await.map_err(disk_error)?;
        }
        (is_left.then_some(packed.digest), clean.report.secrets)
    };
    let possible_secrets = match digest {
        Some(_) => {
            let found = possible_secrets(vec![file.to_owned()], redactor).await;
            found.map_err(disk_error)?.into_iter().collect()
        }
        None => Vec::new(),
    };
    Ok(KeptArchive { digest, secrets, possible_secrets })
}

/// Both reasons, if there are two.
fn joined(first: Option<String>, second: Option<String>) -> Option<String> {
    match (first, second) {
        (Some(first), Some(second)) => Some(format!("{first}; {second}")),
        (first, second) => first.or(second),
    }
}

/// Opens the source of an artifact; `None` when it does not exist.
pub(super) async fn open_artifact(
    environment: &dyn Environment,
    artifact: &Artifact,
) -> Result<Option<ByteStream>, String> {
    let from = match &artifact.service {
        None => environment,
        Some(name) => environment
            .service(name)
            .ok_or_else(|| format!("there is no service `{name}` in this environment"))?,
    };
    let reading = from.copy_from(&artifact.source);
    let opened = with_timeout(COPY_LIMIT, "reading it", reading).await;
    opened.map_err(|failure| failure.chain())
}

/// The upload that places an artifact at its original path. Nothing is placed where a verifier
/// keeps its tests and its verdict: the agent must not have written those.
fn merge_upload(source: &str, kind: Option<ArtifactKind>, file: &Path) -> Option<Upload> {
    let source = format!("/{}", source.trim_matches('/'));
    let within = |dir: &str| {
        source.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let odd = source.split('/').skip(1).any(|part| matches!(part, "" | "." | ".."));
    if odd || within(TESTS_DIR) || within(VERIFIER_LOGS) {
        return None;
    }
    let path = match kind? {
        ArtifactKind::Directory => source,
        ArtifactKind::File => match source.rsplit_once('/') {
            Some(("", _)) | None => "/".to_owned(),
            Some((parent, _)) => parent.to_owned(),
        },
    };
    Some(Upload::Merge { path, tar: file.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifact_upload_into_tests_or_verifier_logs_is_refused() {
        use ArtifactKind::{Directory, File};
        for (source, kind, expected) in [
            ("/app/out", Directory, Some("/app/out")),
            ("/app/out/", Directory, Some("/app/out")),
            ("/app/out.txt", File, Some("/app")),
            ("/out.txt", File, Some("/")),
            ("/logs/artifacts", Directory, Some("/logs/artifacts")),
            ("/testsuite", Directory, Some("/testsuite")),
            ("/tests", Directory, None),
            ("/tests/test.sh", File, None),
            ("/logs/verifier/reward.txt", File, None),
            ("/app/../tests", Directory, None),
            ("/app//x", Directory, None),
            ("/", Directory, None),
        ] {
            let placed = merge_upload(source, Some(kind), Path::new("x.tar"));
            let path = placed.map(|upload| match upload {
                Upload::Merge { path, .. } => path,
                other => panic!("{other:?}"),
            });
            assert_eq!(path.as_deref(), expected, "{source}");
        }
    }
}
