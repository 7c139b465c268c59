//! Measurements of the space of disks. One that gives no answer is named, and gets no second one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rollout_base::supervise::TaskPanic;
use tokio::sync::Mutex;

use super::disk_work::DiskWork;
use super::space::DiskSpace;

/// Why disks were not measured.
#[derive(Debug)]
pub(super) enum MeasurementFault {
    /// The disk of this directory gives no answer in time.
    Silent(PathBuf),
    /// A bug.
    Panic(TaskPanic),
}

/// Reads the space of a directory. May wait for ever.
type SpaceReader = dyn Fn(&Path) -> Option<DiskSpace> + Send + Sync;

/// Measures directories.
pub(super) struct SpaceMeter {
    read: Arc<SpaceReader>,
    running: Mutex<Option<RunningMeasurement>>,
}

/// A measurement that runs.
struct RunningMeasurement {
    work: DiskWork<Vec<Option<DiskSpace>>>,
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
    /// [`MeasurementFault`].
    pub(super) async fn measure(
        &self,
        paths: Vec<PathBuf>,
    ) -> Result<Vec<Option<DiskSpace>>, MeasurementFault> {
        let mut running = self.running.lock().await;
        let measurement = running.get_or_insert_with(|| self.begin(paths));
        let Some(ended) = measurement.work.answer().await else {
            let at = measurement.at.load(Ordering::Relaxed);
            let path = measurement.paths.get(at).cloned().unwrap_or_default();
            return Err(MeasurementFault::Silent(path));
        };
        *running = None;
        ended.map_err(MeasurementFault::Panic)
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
        RunningMeasurement { work: DiskWork::start("disk space", measure), paths, at }
    }

    /// A meter whose reader is given.
    #[cfg(test)]
    pub(super) fn with_reader(
        read: impl Fn(&Path) -> Option<DiskSpace> + Send + Sync + 'static,
    ) -> Self {
        Self { read: Arc::new(read), running: Mutex::default() }
    }
}
