//! Measurements of the space of disks. One that gives no answer is named, and gets no second one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::space::DiskSpace;
use crate::supervise::{self, Task};

/// A disk that takes longer for a measurement gives no answer.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Reads the space of a directory. May wait for ever.
type SpaceReader = dyn Fn(&Path) -> Option<DiskSpace> + Send + Sync;

/// Measures directories.
pub(super) struct SpaceMeter {
    read: Arc<SpaceReader>,
    running: Mutex<Option<RunningMeasurement>>,
}

/// A measurement that runs.
struct RunningMeasurement {
    task: Task<Vec<Option<DiskSpace>>>,
    begun: Instant,
    paths: Arc<[PathBuf]>,
    /// Index of the path that is measured.
    at: Arc<AtomicUsize>,
}

impl Default for SpaceMeter {
    fn default() -> Self {
        Self { read: Arc::new(DiskSpace::for_path), running: Mutex::default() }
    }
}

impl SpaceMeter {
    /// Measures directories, in their order, unless a measurement runs: that one is waited for.
    ///
    /// # Errors
    /// The directory whose disk gives no answer in time.
    pub(super) async fn measure(
        &self,
        paths: Vec<PathBuf>,
    ) -> Result<Vec<Option<DiskSpace>>, PathBuf> {
        let mut running = self.running.lock().await;
        let measurement = running.get_or_insert_with(|| self.begin(paths));
        match timeout_at(measurement.begun + ANSWER_LIMIT, &mut measurement.task).await {
            Ok(ended) => {
                *running = None;
                // Nothing in it panics but a bug, and then nothing is known.
                Ok(ended.unwrap_or_default())
            }
            Err(_elapsed) => {
                let at = measurement.at.load(Ordering::Relaxed);
                Err(measurement.paths.get(at).cloned().unwrap_or_default())
            }
        }
    }

    fn begin(&self, paths: Vec<PathBuf>) -> RunningMeasurement {
        let (paths, at): (Arc<[PathBuf]>, _) = (paths.into(), Arc::new(AtomicUsize::new(0)));
        let (read, all, now_at) = (Arc::clone(&self.read), Arc::clone(&paths), Arc::clone(&at));
        let measure = move || {
            let numbered = all.iter().enumerate();
            let spaces = numbered.map(|(index, path)| {
                now_at.store(index, Ordering::Relaxed);
                read(path)
            });
            spaces.collect::<Vec<_>>()
        };
        let task = supervise::spawn("disk space", supervise::blocking(measure));
        RunningMeasurement { task, begun: Instant::now(), paths, at }
    }

    /// A meter whose reader is given.
    #[cfg(test)]
    pub(super) fn with_reader(
        read: impl Fn(&Path) -> Option<DiskSpace> + Send + Sync + 'static,
    ) -> Self {
        Self { read: Arc::new(read), running: Mutex::default() }
    }
}
