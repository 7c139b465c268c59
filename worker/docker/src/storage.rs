//! The storage limit of an environment. If the engine cannot enforce it, the containers' writable
//! layers and volumes are measured together.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{InspectContainerOptions, KillContainerOptions};
use rollout_base::supervise;
use rollout_environment::{Failure, FailureKind};
use rollout_protocol::record::{EnforcedLimits, LimitEnforcement};

use super::container::Container;

/// A measurement may use at most this share of the time: it costs the engine 4 microseconds per
/// file.
const COST_FACTOR: u32 = 20;

/// Share of an enforced limit above which a full disk is the container's own fault. Directories and
/// names count against the limit, but not in the layer's size.
const OWN_SHARE: f64 = 0.9;

const MIB: u64 = 1024 * 1024;

/// A storage limit and what it applies to.
#[derive(Debug)]
pub(super) struct StorageLimit {
    pub(super) limit_mb: u64,
    /// Whether the engine enforces the limit of the container's own layer.
    pub(super) enforced: bool,
    /// Engine identifiers of the services' containers.
    pub(super) service_ids: Vec<String>,
    /// Bytes in each volume when the environment was created; they belong to the image.
    pub(super) volume_baseline: BTreeMap<PathBuf, u64>,
}

/// Sizes of several containers.
#[derive(Debug, Default)]
struct ContainerSizes {
    /// Length of each layer, with its directory on the engine's host.
    layers: Vec<(u64, Option<PathBuf>)>,
    /// Directories of volumes on the engine's host.
    volumes: BTreeSet<PathBuf>,
}

impl StorageLimit {
    /// The storage state of a container that has just started, with its services' containers. The
    /// limit is not set yet.
    pub(super) async fn for_container(
        main: &Container,
        service_ids: Vec<String>,
        limits: EnforcedLimits,
    ) -> Self {
        let mut storage = Self {
            limit_mb: u64::MAX,
            enforced: false,
            service_ids,
            volume_baseline: BTreeMap::new(),
        };
        if limits.storage == LimitEnforcement::No {
            return storage;
        }
        let ids = [&main.engine_id].into_iter().chain(&storage.service_ids);
        let mut volumes = BTreeSet::new();
        for id in ids {
            if let Ok(found) = main.inspect_container(id, false).await {
                volumes.extend(volumes_of(&found));
            }
        }
        if !volumes.is_empty() {
            let measure = |volume: PathBuf| blocks(&volume).ok().map(|bytes| (volume, bytes));
            let all = move || volumes.into_iter().filter_map(measure).collect();
            storage.volume_baseline = supervise::blocking(all).await;
        }
        storage
    }
}

impl Container {
    /// Fails if the storage limit has ended the container.
    pub(super) fn check_storage_exceeded(&self) -> Result<(), Failure> {
        match self.over_storage.get() {
            Some(why) => Err(Failure::new(FailureKind::StorageExceeded, why.clone())),
            None => Ok(()),
        }
    }

    /// Measures repeatedly, first after `pause`. Returns when the limit is exceeded or the
    /// container no longer exists.
    pub(super) async fn watch_storage(self: Arc<Self>, pause: Duration) {
        let mut next = pause;
        loop {
            tokio::time::sleep(next).await;
            let asked = Instant::now();
            match self.measure_storage().await {
                Err(failure)
                    if matches!(failure.kind, FailureKind::StorageExceeded | FailureKind::Gone) =>
                {
                    return;
                }
                Ok(()) | Err(_) => {}
            }
            next = pause.max(asked.elapsed() * COST_FACTOR);
        }
    }

    /// Fails if more is stored than the limit allows, and then ends all processes.
    pub(super) async fn check_storage(&self) -> Result<(), Failure> {
        match self.measure_storage().await {
            Err(failure) if failure.kind == FailureKind::StorageExceeded => Err(failure),
            Err(failure) => {
                let error = failure.chain();
                tracing::debug!(
                    error,
                    container = self.name,
                    "cannot measure the container's storage"
                );
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    async fn measure_storage(&self) -> Result<(), Failure> {
        self.check_storage_exceeded()?;
        let Some(storage) = self.storage.get().filter(|storage| !storage.enforced) else {
            return Ok(());
        };
        let limit = storage.limit_mb.saturating_mul(MIB);
        let bytes = self.sizes(storage).await?.bytes(storage, limit).await;
        if bytes > limit {
            self.end_over_storage(bytes / MIB, storage).await;
        }
        self.check_storage_exceeded()
    }

    /// The failure of a full disk, after a check whether the container itself filled it.
    pub(super) async fn attribute_full_disk(&self, failure: Failure) -> Failure {
        let (FailureKind::DiskFull, Some(storage)) = (failure.kind, self.storage.get()) else {
            return failure;
        };
        if !storage.enforced {
            return self.check_storage().await.err().unwrap_or(failure);
        }
        let limit = storage.limit_mb.saturating_mul(MIB);
        let Ok(sizes) = self.sizes(storage).await else { return failure };
        let own = sizes.layers.first().map_or(0, |(length, _)| *length);
        if own as f64 >= limit as f64 * OWN_SHARE {
            let (name, limit_mb) = (&self.name, storage.limit_mb);
            let text = format!("storage limit exceeded: {limit_mb} MiB of {name} are full");
            return Failure::new(FailureKind::StorageExceeded, text).with_source(failure);
        }
        failure
    }

    async fn inspect_container(
        &self,
        id: &str,
        size: bool,
    ) -> Result<ContainerInspectResponse, Failure> {
        let found = self.client.docker().await?;
        let found = found.inspect_container(id, Some(InspectContainerOptions { size })).await;
        found.map_err(|error| self.failure("cannot measure the storage", error))
    }

    async fn sizes(&self, storage: &StorageLimit) -> Result<ContainerSizes, Failure> {
        let mut sizes = ContainerSizes::default();
        for id in [&self.engine_id].into_iter().chain(&storage.service_ids) {
            let found = self.inspect_container(id, true).await?;
            sizes.volumes.extend(volumes_of(&found));
            let length = u64::try_from(found.size_rw.unwrap_or(0)).unwrap_or(0);
            let layer = found.graph_driver.and_then(|driver| driver.data.get("UpperDir").cloned());
            sizes.layers.push((length, layer.map(PathBuf::from)));
        }
        Ok(sizes)
    }

    async fn end_over_storage(&self, size_mb: u64, storage: &StorageLimit) {
        let StorageLimit { limit_mb, service_ids, .. } = storage;
        let with = if service_ids.is_empty() { "" } else { " with its services" };
        let why = format!(
            "storage limit exceeded: the container {}{with} wrote {size_mb} MiB, {limit_mb} MiB \
             are allowed; it was killed",
            self.name
        );
        self.over_storage.set(why).ok();
        let Ok(docker) = self.client.docker().await else { return };
        for id in [&self.engine_id].into_iter().chain(service_ids) {
            let options = KillContainerOptions { signal: "KILL".to_owned() };
            if let Err(error) = docker.kill_container(id, Some(options)).await {
                let container = &self.name;
                tracing::warn!(%error, container, "cannot kill the container over its storage limit");
            }
        }
    }
}

impl ContainerSizes {
    /// The bytes in use. The engine counts the length of files, so one sparse file looks like a
    /// full disk. If this host has the layers, their blocks are counted instead. Volumes count if
    /// this host has them.
    async fn bytes(self, storage: &StorageLimit, limit: u64) -> u64 {
        let before = storage.volume_baseline.clone();
        let measure = move || {
            let added = |volume: &PathBuf| {
                let bytes = blocks(volume).unwrap_or(0);
                bytes.saturating_sub(before.get(volume).copied().unwrap_or(0))
            };
            let volumes: u64 = self.volumes.iter().map(added).sum();
            let lengths: u64 = self.layers.iter().map(|(length, _)| length).sum();
            if volumes.saturating_add(lengths) <= limit {
                return volumes.saturating_add(lengths);
            }
            let taken = |(length, layer): &(u64, Option<PathBuf>)| {
                layer.as_deref().and_then(|layer| blocks(layer).ok()).unwrap_or(*length)
            };
            volumes.saturating_add(self.layers.iter().map(taken).sum())
        };
        supervise::blocking(measure).await
    }
}

fn volumes_of(found: &ContainerInspectResponse) -> impl Iterator<Item = PathBuf> + '_ {
    let mounts = found.mounts.iter().flatten();
    mounts
        .filter(|mount| mount.typ.as_deref() == Some("volume"))
        .filter_map(|mount| mount.source.as_ref().map(PathBuf::from))
}

/// Bytes of the blocks of everything below a directory; a file with several names counts once.
fn blocks(root: &Path) -> std::io::Result<u64> {
    let (mut total, mut linked) = (0, HashSet::new());
    let mut pending = vec![root.to_owned()];
    // The root must be readable; files that disappear meanwhile count as nothing.
    std::fs::read_dir(root)?;
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if !meta.is_dir() && meta.nlink() > 1 && !linked.insert((meta.dev(), meta.ino())) {
                continue;
            }
            total += meta.blocks() * 512;
            if meta.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_usage_ignores_sparse_holes_and_hard_links() {
        let dir = tempfile::tempdir().expect("directory");
        let file = std::fs::File::create(dir.path().join("sparse")).expect("created");
        file.set_len(1 << 40).expect("set");
        std::fs::write(dir.path().join("full"), vec![1; 1 << 20]).expect("written");
        std::fs::hard_link(dir.path().join("full"), dir.path().join("again")).expect("linked");
        let size = blocks(dir.path()).expect("readable");
        assert!((1 << 20..2 << 20).contains(&size), "{size}");
        assert!(blocks(&dir.path().join("absent")).is_err());
    }
}
