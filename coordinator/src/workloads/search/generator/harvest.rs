//! What is taken out of the environment: ideas and logs. All of it is hostile.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rollout_protocol::name;
use rollout_worker::archive::{self, Limits};
use rollout_worker::environment::Environment;
use rollout_worker::executor;
use rollout_worker::secrets::Redactor;
use rollout_worker::supervise;

use super::IdeasFault;
use super::variables::{IDEAS, LOGS};
use crate::workloads::search::idea::{IDEA_BYTES, IDEAS_OF_A_NODE, not_text};

/// Bounds of everything that is in the directory of ideas: beyond them nobody knows what is there.
const EVERYTHING: Limits = Limits { entries: IDEAS_OF_A_NODE as u64, bytes: 64 * 1024 * 1024 };

/// What became of what a command left.
pub(super) struct Taken {
    /// Files that are ideas.
    pub(super) ideas: usize,
    /// What is none, and why.
    pub(super) left_out: Vec<String>,
}

/// Takes ideas out of an environment in which nothing runs any more.
pub(super) async fn ideas(
    environment: &dyn Environment,
    work: &Path,
    into: &Path,
    redactor: &Redactor,
) -> Result<Taken, IdeasFault> {
    let (tar, dir) = (work.join("ideas.tar"), work.join("ideas"));
    let read =
        executor::read_directory(environment, IDEAS, tar.clone(), EVERYTHING, None, redactor).await;
    if let Some(why) = read.failure {
        return Err(IdeasFault::Unreadable(redactor.text(&why)));
    }
    let mut left_out = Vec::new();
    let Some(taken) = read.taken else { return Ok(Taken { ideas: 0, left_out }) };
    if taken.skipped > 0 {
        left_out.push(format!("{} links, special files or unusable names", taken.skipped));
    }
    unpack(&tar, &dir, EVERYTHING).await?;
    let into = into.to_owned();
    supervise::blocking(move || sort(&dir, &into, left_out)).await
}

/// Keeps what is in the directory of logs, below `to`; there may be nothing.
pub(super) async fn logs(
    environment: &dyn Environment,
    work: &Path,
    to: &Path,
    redactor: &Redactor,
) -> Result<(), String> {
    let tar = work.join("logs.tar");
    let read =
        executor::read_directory(environment, LOGS, tar.clone(), Limits::LOGS, None, redactor)
            .await;
    if read.taken.is_some_and(|taken| taken.entries > 0) {
        unpack(&tar, &to.join("logs"), Limits::LOGS).await.map_err(|error| error.to_string())?;
    }
    read.failure.map_or(Ok(()), Err)
}

/// Unpacks a clean archive.
async fn unpack(tar: &Path, dir: &Path, limits: Limits) -> Result<(), IdeasFault> {
    let file = tokio::fs::File::open(tar).await.map_err(IdeasFault::disk("open", tar))?;
    let unpacked = archive::extract_trusted(file, dir, limits).await;
    let failed =
        |source| IdeasFault::Archive { what: format!("unpacking {}", dir.display()), source };
    unpacked.map_err(failed)
}

/// Moves what is an idea to where it belongs.
fn sort(dir: &Path, into: &Path, mut left_out: Vec<String>) -> Result<Taken, IdeasFault> {
    let mut ideas = 0;
    for path in entries(dir)? {
        let name = path.file_name().unwrap_or_default();
        match fault(&path)? {
            Some(why) => left_out.push(format!("{name:?}: {why}")),
            None => {
                let synced = File::open(&path).and_then(|file| file.sync_all());
                synced.map_err(IdeasFault::disk("sync", &path))?;
                let to = into.join(name);
                fs::rename(&path, &to).map_err(IdeasFault::disk("write", &to))?;
                ideas += 1;
            }
        }
    }
    let synced = File::open(into).and_then(|into| into.sync_all());
    synced.map_err(IdeasFault::disk("sync", into))?;
    Ok(Taken { ideas, left_out })
}

/// What is in a directory, by name.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, IdeasFault> {
    let listed = fs::read_dir(dir).map_err(IdeasFault::disk("list", dir))?;
    let listed: Result<Vec<_>, _> = listed.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut listed = listed.map_err(IdeasFault::disk("list", dir))?;
    listed.sort();
    Ok(listed)
}

/// Why something is no idea.
fn fault(path: &Path) -> Result<Option<String>, IdeasFault> {
    let found = path.symlink_metadata().map_err(IdeasFault::disk("inspect", path))?;
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Ok(Some("its name is not UTF-8".to_owned()));
    };
    if !found.is_file() {
        return Ok(Some("it is not a regular file".to_owned()));
    }
    if let Err(why) = name::check_component(name) {
        return Ok(Some(format!("its name {why}")));
    }
    if found.len() > IDEA_BYTES {
        let bytes = found.len();
        return Ok(Some(format!("it has {bytes} bytes, at most {IDEA_BYTES} are accepted")));
    }
    let content = fs::read(path).map_err(IdeasFault::disk("read", path))?;
    if let Some(why) = not_text(&content) {
        return Ok(Some(why));
    }
    let is_blank = String::from_utf8_lossy(&content).trim().is_empty();
    Ok(is_blank.then(|| "it has no words".to_owned()))
}
