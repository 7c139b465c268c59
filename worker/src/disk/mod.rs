//! Monitoring of the file systems that executions depend on: whether one was full or failed, and
//! whether there is space for more work.
//!
//! A program in an environment that hits a full disk or one that takes no writes fails as if the program
//! were at fault. So the disks are measured often while executions run, and a failure during which one
//! was full or failed is attributed to this host.

mod disk_work;
mod space;
mod space_meter;
mod write_watch;

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_base::common_times::next_time;
use rollout_base::shown_path::shown;
use rollout_environment::Provider;
use tokio::sync::watch;
use tokio::time::Instant;

pub use self::space::DiskSpace;
use self::space_meter::{MeasurementFault, SpaceMeter};
pub use self::write_watch::WriteFault;

use self::write_watch::WriteWatch;

/// Time between two measurements while executions run: a disk that is full for less time may go
/// unnoticed. A measurement that is not older needs no repetition before more work is taken.
const MEASURE_INTERVAL: Duration = Duration::from_millis(250);

/// Time between two checks by a write, each of which waits for the disk, while executions run or after a
/// fault.
const WRITE_INTERVAL: Duration = Duration::from_secs(2);

/// The same while nothing runs. Work that arrives then waits for a check of its own.
const IDLE_WRITE_INTERVAL: Duration = Duration::from_secs(10);

/// A check by a write that is not older needs no repetition before more work is taken.
const WRITE_CHECK_AGE: Duration = Duration::from_secs(1);

/// Time between two queries to a provider that has not yet reported where its environments are, and
/// between two measurements while nothing runs.
const QUERY_INTERVAL: Duration = Duration::from_secs(10);

/// Time limit of such a query.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Age up to which checks and measurements count while nothing runs: until after the next ones.
const IDLE_CHECK_AGE: Duration = Duration::from_secs(15);

/// Age from which checks and measurements say too little for work that has arrived. They are newer while
/// executions run.
const ARRIVAL_CHECK_AGE: Duration = Duration::from_secs(4);

/// Why a directory is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskUse {
    /// The same as `Work`; the files are those of this process, so writes can be tried there.
    Own,
    /// Executions write there, or their outputs are kept there: no new work starts if space is low.
    Work,
    /// Temporary files of this process may be there.
    Temporary,
}

/// How new checks and measurements must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckAge {
    /// As new as they are while executions run.
    Recent,
    /// As new as they are while nothing runs, unless the last ones found a fault.
    Idle,
}

/// Monitors the disks of a worker. The default monitors none.
#[derive(Default)]
pub struct DiskWatch {
    state: Mutex<DiskWatchState>,
    meter: SpaceMeter,
    writes: WriteWatch,
    /// Providers that have not yet reported where their environments are.
    pending_providers: Mutex<Vec<Arc<dyn Provider>>>,
}

#[derive(Debug, Default)]
struct DiskWatchState {
    directories: Vec<WatchedDirectory>,
    /// When they were last measured.
    measured: Option<Instant>,
    /// A disk that gives no answer to a measurement, or a bug in it.
    fault: Option<WriteFault>,
}

#[derive(Debug)]
struct WatchedDirectory {
    path: PathBuf,
    purpose: DiskUse,
    space: Option<DiskSpace>,
    /// When it was last seen full.
    full: Option<(Instant, DiskSpace)>,
}

impl fmt::Debug for DiskWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DiskWatch").field(&self.state()).field(&self.writes).finish()
    }
}

impl DiskWatch {
    /// Monitors directories, and those where providers keep their environments.
    pub fn new(
        paths: impl IntoIterator<Item = (PathBuf, DiskUse)>,
        providers: impl IntoIterator<Item = Arc<dyn Provider>>,
    ) -> Self {
        let to_watched =
            |(path, purpose)| WatchedDirectory { path, purpose, space: None, full: None };
        let directories: Vec<_> = paths.into_iter().map(to_watched).collect();
        let own = directories.iter().filter(|directory| directory.purpose == DiskUse::Own);
        let writes = WriteWatch::new(own.map(|directory| directory.path.clone()).collect());
        let pending_providers = Mutex::new(providers.into_iter().collect());
        Self {
            state: Mutex::new(DiskWatchState { directories, ..DiskWatchState::default() }),
            meter: SpaceMeter::default(),
            writes,
            pending_providers,
        }
    }

    /// Measures and checks the disks repeatedly, forever. `is_busy` says whether executions run;
    /// `changes` is notified when one begins.
    pub async fn watch(
        &self,
        is_busy: impl Fn() -> bool,
        changes: watch::Receiver<()>,
    ) -> Infallible {
        tokio::select! {
            never = self.measure_forever(&is_busy, changes.clone()) => never,
            never = self.check_forever(&is_busy, changes) => never,
        }
    }

    async fn check_forever(
        &self,
        is_busy: impl Fn() -> bool,
        mut changes: watch::Receiver<()>,
    ) -> Infallible {
        loop {
            let fault = self.writes.check(WRITE_CHECK_AGE).await;
            if is_busy() || fault.is_some() {
                tokio::time::sleep_until(next_time(WRITE_INTERVAL)).await;
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep_until(next_time(IDLE_WRITE_INTERVAL)) => {}
                Ok(()) = changes.changed() => {
                    tokio::time::sleep_until(next_time(WRITE_INTERVAL)).await;
                }
            }
        }
    }

    async fn measure_forever(
        &self,
        is_busy: impl Fn() -> bool,
        mut changes: watch::Receiver<()>,
    ) -> Infallible {
        let mut query_due = Instant::now();
        loop {
            if query_due <= Instant::now() {
                self.query_providers().await;
                query_due = next_time(QUERY_INTERVAL);
            }
            self.measure().await;
            if is_busy() && !self.state().directories.is_empty() {
                tokio::time::sleep(MEASURE_INTERVAL).await;
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep_until(next_time(QUERY_INTERVAL)) => {}
                Ok(()) = changes.changed() => tokio::time::sleep(MEASURE_INTERVAL).await,
            }
        }
    }

    /// The disk that was full at `since` or later, if any, with its free space.
    pub async fn full_since(&self, since: Instant) -> Option<String> {
        self.measure().await;
        let state = self.state();
        let full = |directory: &WatchedDirectory| {
            let (_, space) = directory.full.filter(|(at, _)| *at >= since)?;
            Some(format!("the disk of {} was full ({space})", shown(&directory.path)))
        };
        state.directories.iter().find_map(full)
    }

    /// A disk with too little space for more work, if any. Measures the disks, unless that was done lately.
    pub async fn low(&self, age: CheckAge) -> Option<String> {
        let (measured, is_well) = {
            let state = self.state();
            (state.measured, state.fault.is_none() && state.low().is_none())
        };
        let limit = match age {
            CheckAge::Idle if is_well => IDLE_CHECK_AGE,
            CheckAge::Idle | CheckAge::Recent => MEASURE_INTERVAL,
        };
        if measured.is_none_or(|at| at.elapsed() >= limit) {
            self.measure().await;
        }
        self.state().low()
    }

    /// Why a directory of this process takes no writes at present, or a disk gives no answer, if one does
    /// not. Checks the directory, unless that was done lately.
    pub async fn failed(&self, age: CheckAge) -> Option<WriteFault> {
        let limit = match age {
            CheckAge::Idle if self.last_failed().is_none() => IDLE_CHECK_AGE,
            CheckAge::Idle | CheckAge::Recent => WRITE_CHECK_AGE,
        };
        let fault = self.writes.check(limit).await;
        fault.or_else(|| self.state().fault.clone())
    }

    /// Whether the last check and the last measurement are new enough for work that has arrived, and found
    /// nothing. Waits for no disk.
    pub fn was_well_lately(&self) -> bool {
        let is_measured = {
            let state = self.state();
            let is_new = |at: Instant| at.elapsed() < ARRIVAL_CHECK_AGE;
            let is_well = state.fault.is_none() && state.low().is_none();
            is_well && (state.directories.is_empty() || state.measured.is_some_and(is_new))
        };
        is_measured && self.writes.is_recent(ARRIVAL_CHECK_AGE) && self.writes.fault().is_none()
    }

    /// The fault that the last check or measurement found, if it found one. Waits for no disk.
    pub fn last_failed(&self) -> Option<WriteFault> {
        self.last_faults().next()
    }

    /// The faults that the last check and the last measurement found: they may be of two disks. Waits for no
    /// disk.
    pub fn last_faults(&self) -> impl Iterator<Item = WriteFault> + use<> {
        let found = [self.writes.fault(), self.state().fault.clone()];
        found.into_iter().flatten()
    }

    /// Why a directory of this process took no writes at `since` or later, although its disk was not
    /// full. Checks it once more.
    pub async fn failed_since(&self, since: Instant) -> Option<String> {
        self.writes.check(WRITE_CHECK_AGE).await;
        self.writes.failed_since(since)
    }

    /// Waits for a check by a write that runs. Call it when nothing checks any more, before the directories
    /// are removed.
    pub async fn close(&self) {
        self.writes.close().await;
    }

    /// Records that the disk gave no answer to a check.
    #[cfg(test)]
    pub(crate) fn record_silence(&self) {
        self.writes.record_silence();
    }

    /// Records that another disk gave no answer to a measurement.
    #[cfg(test)]
    pub(crate) fn record_silence_of(&self, path: PathBuf) {
        self.state().record_fault(MeasurementFault::Silent(path));
    }

    /// Records that the disk is full.
    #[cfg(test)]
    pub(crate) fn record_shortage(&self) {
        self.writes.record_shortage();
    }

    /// Makes a check by a write due at once: something failed that a disk may explain.
    pub fn suspect(&self) {
        self.writes.expire();
    }

    async fn measure(&self) {
        let paths: Vec<PathBuf> = self.state().directories.iter().map(|p| p.path.clone()).collect();
        if paths.is_empty() {
            return;
        }
        let measured = self.meter.measure(paths).await;
        let now = Instant::now();
        let mut state = self.state();
        let spaces = match measured {
            Ok(spaces) => spaces,
            Err(fault) => return state.record_fault(fault),
        };
        if state.fault.take().is_some() {
            tracing::info!("every disk is measured again: work is started again");
        }
        state.measured = Some(now);
        for (place, space) in state.directories.iter_mut().zip(spaces) {
            place.space = space;
            if let Some(space) = space.filter(DiskSpace::is_full) {
                place.full = Some((now, space));
            }
        }
    }

    /// Queries providers for the locations of their environments.
    async fn query_providers(&self) {
        let pending_providers = std::mem::take(&mut *self.pending_providers());
        for provider in pending_providers {
            match tokio::time::timeout(ANSWER_WITHIN, provider.disk()).await {
                Ok(Ok(path)) => self.state().directories.extend(path.map(|path| {
                    WatchedDirectory { path, purpose: DiskUse::Work, space: None, full: None }
                })),
                Ok(Err(_)) | Err(_) => self.pending_providers().push(provider),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, DiskWatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending_providers(&self) -> MutexGuard<'_, Vec<Arc<dyn Provider>>> {
        self.pending_providers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskWatchState {
    /// A disk with too little space for more work at the last measurement, if any.
    fn low(&self) -> Option<String> {
        let low = |directory: &WatchedDirectory| {
            let space = directory.space.filter(|space| space.is_low())?;
            let floor = space.floor_text();
            let path = shown(&directory.path);
            Some(format!("the disk of {path} is nearly full ({space}, {floor} needed)"))
        };
        let holds_back = |place: &&WatchedDirectory| place.purpose != DiskUse::Temporary;
        self.directories.iter().filter(holds_back).find_map(low)
    }

    /// Records why a measurement failed. Logged once.
    fn record_fault(&mut self, found: MeasurementFault) {
        let (message, is_silent) = match found {
            MeasurementFault::Silent(path) => {
                let path = shown(&path);
                let message = format!(
                    "cannot measure the disk of {path}: no answer for {:?}",
                    disk_work::ANSWER_LIMIT
                );
                (message, true)
            }
            MeasurementFault::Panic(panic) => (format!("cannot measure disks: {panic}"), false),
        };
        if self.fault.as_ref().is_some_and(|former| former.is_silent == is_silent) {
            return;
        }
        tracing::error!("{message}: no work is started until that is possible");
        let since = Instant::now();
        self.fault = Some(WriteFault { message, since, is_shortage: false, is_silent });
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn disk_with_free_space_is_neither_full_nor_low() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths =
            [(dir.path().to_owned(), DiskUse::Work), ("/nowhere/at/all".into(), DiskUse::Work)];
        let watch = DiskWatch::new(paths, []);
        let began = Instant::now();
        assert_eq!(watch.full_since(began).await, None);
        assert_eq!(watch.low(CheckAge::Recent).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn disk_is_measured_often_only_while_executions_run() {
        let dir = tempfile::tempdir().expect("a directory");
        let watch = DiskWatch::new([(dir.path().to_owned(), DiskUse::Work)], []);
        let (is_busy, changes) = (AtomicBool::new(false), watch::Sender::new(()));
        let take_measurement = || watch.state().directories[0].space.take().is_some();
        let (long, short) = (QUERY_INTERVAL / 2, MEASURE_INTERVAL * 3 / 2);
        let test = async {
            tokio::time::sleep_until(next_time(QUERY_INTERVAL)).await;
            tokio::time::sleep(short).await;
            assert!(take_measurement(), "after the interval");
            tokio::time::sleep(long).await;
            assert!(!take_measurement(), "nothing runs");
            is_busy.store(true, Ordering::Relaxed);
            changes.send_replace(());
            for _ in 0..3 {
                tokio::time::sleep(short).await;
                assert!(take_measurement());
            }
            is_busy.store(false, Ordering::Relaxed);
            tokio::time::sleep(short).await;
            tokio::time::sleep_until(next_time(QUERY_INTERVAL)).await;
            tokio::time::sleep(short).await;
            assert!(take_measurement(), "after the interval");
            tokio::time::sleep(long).await;
            assert!(!take_measurement(), "nothing runs any more");
        };
        let is_busy = || is_busy.load(Ordering::Relaxed);
        tokio::select! {
            never = watch.watch(is_busy, changes.subscribe()) => match never {},
            () = test => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn disk_is_written_to_often_only_while_executions_run() {
        let dir = tempfile::tempdir().expect("a directory");
        let watch = DiskWatch::new([(dir.path().to_owned(), DiskUse::Own)], []);
        let (is_busy, changes) = (AtomicBool::new(false), watch::Sender::new(()));
        let second = Duration::from_secs(1);
        // How often, in 20 seconds, the last check is older than those of a worker with executions.
        let count_old = async || {
            let mut count = 0;
            for _ in 0..20 {
                tokio::time::sleep(second).await;
                assert!(watch.writes.is_recent(IDLE_CHECK_AGE));
                count += u32::from(!watch.writes.is_recent(WRITE_INTERVAL + second / 2));
            }
            count
        };
        let test = async {
            tokio::time::sleep(WRITE_INTERVAL).await;
            assert!(count_old().await >= 10, "nothing runs");
            is_busy.store(true, Ordering::Relaxed);
            changes.send_replace(());
            tokio::time::sleep(2 * WRITE_INTERVAL).await;
            assert_eq!(count_old().await, 0);
            is_busy.store(false, Ordering::Relaxed);
            tokio::time::sleep(2 * WRITE_INTERVAL).await;
            assert!(count_old().await >= 10, "nothing runs any more");
        };
        let is_busy = || is_busy.load(Ordering::Relaxed);
        tokio::select! {
            never = watch.watch(is_busy, changes.subscribe()) => match never {},
            () = test => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn check_of_an_idle_worker_counts_until_it_finds_a_fault() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = dir.path().join("own");
        std::fs::create_dir(&own).expect("made");
        let watch = DiskWatch::new([(own.clone(), DiskUse::Own)], []);
        assert_eq!(
            (watch.low(CheckAge::Idle).await, watch.failed(CheckAge::Idle).await),
            (None, None)
        );
        assert!(watch.was_well_lately());
        std::fs::remove_dir(&own).expect("removed");
        tokio::time::advance(ARRIVAL_CHECK_AGE).await;
        assert!(!watch.was_well_lately(), "work that arrives needs a check");
        assert_eq!(watch.failed(CheckAge::Idle).await, None, "a pull needs none");
        assert!(watch.failed(CheckAge::Recent).await.is_some());
        std::fs::create_dir(&own).expect("made");
        tokio::time::advance(WRITE_CHECK_AGE).await;
        assert_eq!(watch.failed(CheckAge::Idle).await, None, "its end is seen soon");
    }

    #[tokio::test(start_paused = true)]
    async fn disk_without_an_answer_to_a_measurement_is_a_fault_until_it_answers() {
        let (answer, may_answer) = mpsc::channel::<()>();
        let may_answer = Mutex::new(may_answer);
        let is_asked = Arc::new(AtomicBool::new(false));
        let asked_now = Arc::clone(&is_asked);
        let read = move |path: &Path| {
            if path.ends_with("hung") {
                asked_now.store(true, Ordering::Relaxed);
                may_answer.lock().expect("not poisoned").recv().ok();
            }
            None
        };
        let paths = ["/works", "/hung"].map(|path| (path.into(), DiskUse::Work));
        let watch = DiskWatch { meter: SpaceMeter::with_reader(read), ..DiskWatch::new(paths, []) };
        let pass_limit = async {
            while !is_asked.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
            tokio::time::advance(disk_work::ANSWER_LIMIT + Duration::from_millis(1)).await;
        };
        let (low, ()) = tokio::join!(watch.low(CheckAge::Recent), pass_limit);
        assert_eq!(low, None, "it is not known to be full");
        let fault = watch.last_failed().expect("it gives no answer");
        assert!(fault.message.contains("the disk of /hung: no answer"), "{fault:?}");
        assert!(fault.is_silent && !fault.is_shortage);
        let asked = Instant::now();
        assert_eq!(watch.full_since(asked).await, None);
        assert_eq!(watch.failed(CheckAge::Recent).await, Some(fault));
        assert_eq!(asked.elapsed(), Duration::ZERO, "nothing waits for it a second time");
        drop(answer);
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while watch.last_failed().is_some() {
            assert!(std::time::Instant::now() < deadline, "it answers");
            watch.measure().await;
            tokio::task::yield_now().await;
        }
        assert_eq!(watch.failed(CheckAge::Recent).await, None);
    }

    #[tokio::test]
    async fn measurement_that_panics_is_a_fault() {
        let broken = AtomicBool::new(true);
        let read = move |_: &Path| {
            assert!(!broken.swap(false, Ordering::Relaxed), "a bug");
            None
        };
        let paths = [("/works".into(), DiskUse::Work)];
        let watch = DiskWatch { meter: SpaceMeter::with_reader(read), ..DiskWatch::new(paths, []) };
        assert_eq!(watch.low(CheckAge::Recent).await, None);
        let fault = watch.failed(CheckAge::Recent).await.expect("a fault");
        assert!(fault.message.contains("a bug") && !fault.is_silent, "{fault:?}");
        assert_eq!(watch.low(CheckAge::Recent).await, None);
        assert_eq!(watch.failed(CheckAge::Recent).await, None, "it is measured");
    }

    #[tokio::test]
    async fn disk_full_counts_only_for_earlier_executions() {
        let watch = DiskWatch::new([("/nowhere".into(), DiskUse::Temporary)], []);
        let before = Instant::now();
        let space = DiskSpace { size: 4 << 20, free: 0, files: 10, free_files: 5 };
        watch.state().directories[0].full = Some((Instant::now(), space));
        let found = watch.full_since(before).await.expect("it was full");
        assert_eq!(found, "the disk of /nowhere was full (0 of 4 MiB free)");
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert_eq!(watch.full_since(Instant::now()).await, None);
        assert_eq!(
            watch.low(CheckAge::Recent).await,
            None,
            "a temporary directory holds nothing back"
        );
    }
}
