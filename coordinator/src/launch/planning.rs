//! Planning of a job: bundling of its tasks into the blob store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_worker::host::WorkerDir;
use rollout_worker::store::BlobStore;
use rollout_worker::supervise;

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

/// Bundles the tasks. Temporary archives are in a directory of this process below `state`.
pub(super) async fn plan(
    job: &Job,
    datasets: Vec<Dataset>,
    store: Arc<dyn BlobStore>,
    state: &Path,
) -> Result<JobPlan, LaunchError> {
    let base: PathBuf = state.join("planning");
    let at = base.clone();
    let own = supervise::blocking(move || {
        for left_by_a_dead_process in WorkerDir::adoptable(&at)? {
            left_by_a_dead_process.remove()?;
        }
        WorkerDir::create(&at)
    })
    .await?;
    let scratch = own.scratch();
    let pack_cache = Some(pack_cache(state));
    let built =
        plan::build(job, datasets, &BundleSink { store: Some(store), scratch, pack_cache }).await;
    supervise::blocking(move || own.remove()).await?;
    // Another process may be planning there.
    let _in_use = std::fs::remove_dir(base);
    let (plan, _) = built?;
    Ok(plan)
}
