//! Reading of ideas and logs from an environment in which nothing runs any more. All content is
//! untrusted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rollout_base::backoff::error_chain;
use rollout_base::supervise;
use rollout_protocol::digest::Digest;
use rollout_protocol::error::TrialError;
use rollout_protocol::limits;
use rollout_protocol::record::IdeasEnd;
use rollout_protocol::spec::ideas::{MAX_IDEA_BYTES, MAX_IDEAS, invalid_idea_reason};
use rollout_store::archive::{self, ArchiveError, ArchiveLimits, FilterDecision};

use super::failure;
use super::run::IdeasRun;
use super::variables::{IDEAS, LOGS};
use crate::executor::{self, CleanArchive, errors, read_directory};

/// Limits of the directory of ideas. Content beyond them is unknown.
const IDEAS_LIMITS: ArchiveLimits =
    ArchiveLimits { entries: MAX_IDEAS as u64, bytes: limits::RESULTS_BYTES };

/// Ideas on this host's disk.
struct SortedIdeas {
    /// Files that are ideas.
    count: usize,
    /// Files that are not, each with the reason.
    left_out: Vec<String>,
    /// An archive of the ideas, and its digest.
    tar: PathBuf,
    digest: Digest,
}

/// Why ideas cannot be sorted.
#[derive(Debug, thiserror::Error)]
enum SortError {
    #[error("cannot read the ideas")]
    Disk(#[from] io::Error),
    #[error("cannot pack the ideas")]
    Archive(#[from] ArchiveError),
}

impl IdeasRun<'_> {
    /// Collects `/logs`, unless it is empty.
    pub(super) async fn collect_logs(&mut self) {
        if self.attempt.environment.tainted {
            return;
        }
        let to = self.ctx.execution.scratch.join("logs.tar");
        let redactor = &self.attempt.redactor;
        let read = read_directory(
            self.attempt.running_environment(),
            LOGS,
            to,
            ArchiveLimits::LOGS,
            None,
            redactor,
        )
        .await;
        let lost = |why: String| errors::output_lost(&why, read.shortage, redactor);
        self.attempt.secondary_errors.extend(read.failure.map(lost));
        self.logs = read.archive.filter(|taken| taken.entries > 0);
    }

    /// Collects the ideas of a successful command.
    pub(super) async fn collect_ideas(&mut self) -> Result<(), TrialError> {
        let raw = self.ctx.execution.scratch.join("everything.tar");
        let redactor = self.attempt.redactor.clone();
        let read = read_directory(
            self.attempt.running_environment(),
            IDEAS,
            raw,
            IDEAS_LIMITS,
            None,
            &redactor,
        )
        .await;
        if let Some(why) = read.failure {
            return Err(failure::unreadable(&why, read.exceeds_limit, &redactor));
        }
        let mut skipped = 0;
        let sorted = match read.archive {
            Some(taken) => {
                skipped = taken.skipped;
                let sorted = self.sort_ideas(&taken.file).await;
                Some(
                    sorted
                        .map_err(|error| failure::sort_failed(&error_chain(&error), &redactor))?,
                )
            }
            None => None,
        };
        if skipped > 0 {
            let what = "links, special files or unusable names";
            self.left_out.push(format!("{skipped} {what}"));
        }
        let count = sorted.as_ref().map_or(0, |sorted| sorted.count);
        if let Some(SortedIdeas { left_out, tar, digest, .. }) = sorted {
            self.left_out.extend(left_out);
            let entries = count as u64;
            let ideas = CleanArchive { file: tar, entries, skipped, truncated: false, digest };
            self.ideas = (count > 0).then_some(ideas);
        }
        if count == 0 {
            let last_words = match self.capture.as_deref() {
                Some(capture) => executor::stderr_summary(capture).await,
                None => String::new(),
            };
            return Err(failure::no_ideas(self.left_out.len(), &last_words, &redactor));
        }
        self.end = IdeasEnd::Written;
        Ok(())
    }

    async fn sort_ideas(&self, raw: &Path) -> Result<SortedIdeas, SortError> {
        let (dir, tar) = (
            self.ctx.execution.scratch.join("ideas"),
            self.ctx.execution.scratch.join("ideas.tar"),
        );
        let file = tokio::fs::File::open(raw).await?;
        archive::extract_trusted(file, &dir, IDEAS_LIMITS).await?;
        supervise::blocking(move || pack_ideas(&dir, tar)).await
    }
}

/// Packs the ideas among the files of a directory.
fn pack_ideas(dir: &Path, tar: PathBuf) -> Result<SortedIdeas, SortError> {
    let mut names = fs::read_dir(dir)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<Vec<_>, _>>()?;
    names.sort();
    let (mut good, mut left_out) = (Vec::new(), Vec::new());
    for name in names {
        let path = dir.join(&name);
        match rejection_reason(&path)? {
            Some(why) => left_out.push(format!("{name:?}: {why}")),
            None => good.push(path),
        }
    }
    let keep = |path: &Path, _: bool| match good.iter().any(|idea| idea == &dir.join(path)) {
        true => FilterDecision::Include,
        false => FilterDecision::Exclude,
    };
    let digest = archive::pack(dir, &tar, IDEAS_LIMITS, &keep)?.digest;
    Ok(SortedIdeas { count: good.len(), left_out, tar, digest })
}

/// Why a path is not an idea.
fn rejection_reason(path: &Path) -> io::Result<Option<String>> {
    let found = path.symlink_metadata()?;
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Ok(Some("its name is not UTF-8".to_owned()));
    };
    if !found.is_file() {
        return Ok(Some("it is not a regular file".to_owned()));
    }
    if found.len() > MAX_IDEA_BYTES {
        let bytes = found.len();
        return Ok(Some(format!("it has {bytes} bytes, at most {MAX_IDEA_BYTES} are accepted")));
    }
    Ok(invalid_idea_reason(name, &fs::read(path)?))
}
