//! Planning of a job: bundling of its tasks into the blob store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_base::backoff::error_chain;
use rollout_base::supervise;
use rollout_store::BlobStore;
use rollout_store::host::{WorkerDir, WorkerDirError};

use super::LaunchError;
use crate::config::Job;
use crate::plan::{self, JobPlan};
use crate::sources::datasets::{BundleSink, Dataset, PackCache};

/// Directory of the pack cache, beside the blobs.
const PACK_CACHE_DIR: &str = "bundles";

/// The cache of packed parts of tasks; `state` is the directory of all jobs' state.
pub fn pack_cache(state: &Path) -> Arc<PackCache> {
    Arc::new(PackCache::new(state.join(PACK_CACHE_DIR)))
}

/// The directory of one planning. It is removed when the last one that works in it has ended: parts of
/// tasks that are being packed outlive a planning that is dropped.
#[derive(Debug)]
struct PlanningDir {
    /// `None` once it is removed.
    own: Option<WorkerDir>,
    scratch: PathBuf,
    base: PathBuf,
}

impl PlanningDir {
    /// Creates the directory below `base`, after those that dead processes left there. Blocks.
    fn create(base: PathBuf) -> Result<Self, WorkerDirError> {
        for left_by_a_dead_process in WorkerDir::adoptable(&base)? {
            left_by_a_dead_process.remove()?;
        }
        let own = WorkerDir::create(&base)?;
        let scratch = own.scratch();
        Ok(Self { own: Some(own), scratch, base })
    }

    /// Removes it. Blocks.
    fn remove(mut self) -> Result<(), WorkerDirError> {
        let own = self.own.take();
        remove(own, &self.base)
    }
}

impl Drop for PlanningDir {
    fn drop(&mut self) {
        let Some(own) = self.own.take() else { return };
        let base = std::mem::take(&mut self.base);
        // This may be async code.
        let removing = supervise::thread("planning", move || {
            if let Err(error) = remove(Some(own), &base) {
                tracing::warn!("{}", error_chain(&error));
            }
        });
        if let Err(error) = removing {
            tracing::warn!("cannot start a thread: {error}");
        }
    }
}

fn remove(own: Option<WorkerDir>, base: &Path) -> Result<(), WorkerDirError> {
    let removed = own.map_or(Ok(()), WorkerDir::remove);
    // Another process may be planning there.
    let _in_use = std::fs::remove_dir(base);
    removed
}

/// Bundles the tasks. Temporary archives are in a directory of this process below `state`.
pub(super) async fn plan(
    job: &Job,
    datasets: Vec<Dataset>,
    store: Arc<dyn BlobStore>,
    state: &Path,
) -> Result<JobPlan, LaunchError> {
    let base = state.join("planning");
    let own = Arc::new(supervise::blocking(move || PlanningDir::create(base)).await?);
    let sink = BundleSink {
        store: Some(store),
        scratch: own.scratch.clone(),
        holder: Some(Arc::clone(&own) as _),
        pack_cache: Some(pack_cache(state)),
    };
    let built = plan::build(job, datasets, &sink).await;
    drop(sink);
    if let Some(own) = Arc::into_inner(own) {
        supervise::blocking(move || own.remove()).await?;
    }
    let (plan, _) = built?;
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn directory_of_a_dropped_planning_is_removed_when_its_last_work_ends() {
        let state = tempfile::tempdir().expect("a directory");
        let base = state.path().join("planning");
        let own = Arc::new(PlanningDir::create(base.clone()).expect("created"));
        let (packing, scratch) = (Arc::clone(&own), own.scratch.clone());
        drop(own);
        std::fs::write(scratch.join("part.tar"), "part").expect("it is still there");
        drop(packing);
        let deadline = Instant::now() + Duration::from_secs(60);
        while base.exists() {
            assert!(Instant::now() < deadline, "it stays");
            std::thread::yield_now();
        }
    }
}
