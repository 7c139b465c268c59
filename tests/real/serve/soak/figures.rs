//! Counts of what is there at one moment: on the NATS server, in directories, of processes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use async_nats::jetstream;
use async_nats::jetstream::kv::Operation;
use futures_util::TryStreamExt as _;
use rollout_protocol::id::RunId;
use rollout_tests::leak_check::directory_entries;
use rollout_tests::processes::memory_kib;

use crate::serve::farm_fleet::FarmFleet;

/// The bucket with a key for each run.
const RUNS: &str = "ROLLOUT_RUNS";

/// The stream whose consumers are those of pools.
const OFFERS: &str = "ROLLOUT_WORK";

/// Beginning of the names of streams that are buckets.
const BUCKET: &str = "KV_";

/// Files about directories of tasks that were packed: one for each directory, up to a limit.
const CACHE: &str = "state/jobs/.rollout/bundles";

/// Directories of workers that are caches.
const WORKER_CACHES: [&str; 2] = ["cache", "repositories"];

/// Size of a block, as files count them.
const BLOCK: u64 = 512;

/// Counts at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    pub(super) queue: QueueFigures,
    /// Files of the server's state directory, without the [cache](CACHE) that has a limit of its own.
    pub(super) state_files: usize,
    /// Files of the blob store.
    pub(super) store_files: usize,
    /// Files of the workers' host, without caches, which have limits of their own.
    pub(super) host_files: usize,
    /// The server, the workers and the NATS server.
    pub(super) processes: Vec<ProcessFigures>,
}

/// Content of a NATS server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct QueueFigures {
    /// Messages of the streams that are not buckets.
    pub(super) messages: u64,
    /// Their subjects, which name runs.
    pub(super) subjects: Vec<String>,
    /// Keys of runs.
    pub(super) keys: u64,
    /// Markers of removed keys of runs.
    pub(super) markers: u64,
    /// Consumers but those of pools.
    pub(super) consumers: u64,
}

/// A process.
#[derive(Debug, Clone)]
pub(super) struct ProcessFigures {
    pub(super) name: &'static str,
    pub(super) pid: u32,
    pub(super) descriptors: usize,
    pub(super) memory_kib: u64,
}

/// Files below a directory, and the space that they take.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FileFigures {
    pub(super) files: usize,
    pub(super) kib: u64,
}

impl Figures {
    pub(super) fn of(fleet: &mut FarmFleet) -> Self {
        let mut pids = vec![("serve", fleet.daemon.process.pid())];
        let workers = ["a", "b"].into_iter().zip(&mut fleet.workers);
        pids.extend(workers.map(|(name, worker)| (name, worker.process().pid())));
        pids.extend(fleet.cluster.server.pid().map(|pid| ("nats", pid)));
        let project = fleet.cluster.project.path();
        let files = |name: &str| FileFigures::below(&project.join(name)).files;
        Self {
            queue: QueueFigures::of(&fleet.cluster.server.url()),
            state_files: files("state") - files(CACHE),
            store_files: files("store"),
            host_files: FileFigures::without(&project.join("host"), &WORKER_CACHES).files,
            processes: pids.into_iter().map(|(name, pid)| ProcessFigures::of(name, pid)).collect(),
        }
    }
}

impl QueueFigures {
    fn of(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let read = runtime.expect("a runtime").block_on(Self::read(url));
        read.expect("the server answers")
    }

    /// Asks the server. That adds no consumer.
    async fn read(url: &str) -> Result<Self, async_nats::Error> {
        let context = jetstream::new(async_nats::connect(url).await?);
        let mut found = Self::default();
        let mut streams = context.streams();
        while let Some(stream) = streams.try_next().await? {
            if stream.config.name != OFFERS {
                found.consumers += stream.state.consumer_count as u64;
            }
            if !stream.config.name.starts_with(BUCKET) {
                found.messages += stream.state.messages;
                let stream = context.get_stream(&stream.config.name).await?;
                let mut subjects = stream.info_with_subjects(">").await?;
                while let Some((subject, count)) = subjects.try_next().await? {
                    found.subjects.push(format!("{count} x {subject}"));
                }
            }
        }
        let runs = context.get_key_value(RUNS).await?;
        let mut subjects = runs.stream.info_with_subjects(format!("$KV.{RUNS}.>")).await?;
        while let Some((subject, _)) = subjects.try_next().await? {
            // Other keys are those of pools.
            let key = subject.rsplit('.').next().unwrap_or_default();
            if key.parse::<RunId>().is_err() {
                continue;
            }
            match runs.entry(key).await?.map(|entry| entry.operation) {
                Some(Operation::Put) => found.keys += 1,
                Some(Operation::Delete | Operation::Purge) => found.markers += 1,
                None => {}
            }
        }
        Ok(found)
    }
}

impl ProcessFigures {
    fn of(name: &'static str, pid: u32) -> Self {
        let descriptors = directory_entries(Path::new(&format!("/proc/{pid}/fd"))).len();
        Self { name, pid, descriptors, memory_kib: memory_kib(pid, "RssAnon") }
    }
}

impl FileFigures {
    /// Files below a directory. Those that are removed meanwhile count or not.
    pub(super) fn below(directory: &Path) -> Self {
        Self::without(directory, &[])
    }

    /// The same without what is in directories with these names.
    fn without(directory: &Path, names: &[&str]) -> Self {
        let (mut found, mut next) = (Self::default(), vec![directory.to_owned()]);
        while let Some(directory) = next.pop() {
            for path in directory_entries(&directory) {
                let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
                if metadata.is_dir() {
                    if !names.iter().any(|name| path.ends_with(name)) {
                        next.push(path);
                    }
                } else {
                    found.files += 1;
                }
                found.kib += metadata.blocks() * BLOCK / 1024;
            }
        }
        found
    }
}
