//! Checks by writes that the directories of this process take them.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_base::backoff::without_place;
use rollout_base::shortage::Shortage;
use rollout_base::shown_path::shown;
use rollout_base::write_check::check_writes;
use rollout_store::host::DirectoryMarks;
use tokio::time::{Instant, timeout};

use super::disk_work::{ANSWER_LIMIT, DiskWork};

/// Longest wait at the end for a check that runs.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// A directory that takes no writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteFault {
    /// The directory and the cause.
    pub message: String,
    /// When a check failed first, or first gave no answer if the disk gives none.
    pub since: Instant,
    /// Whether the disk is full, or a quota is used up.
    pub is_shortage: bool,
    /// Whether the disk gives no answer: it may only be busy.
    pub is_silent: bool,
}

/// The directory that failed in a check, with the cause.
type FailedCheck = Option<(PathBuf, io::Error)>;

/// Watches directories of this process.
#[derive(Debug, Default)]
pub(super) struct WriteWatch {
    /// With the marks that each had at the start: one that was removed and appears again in part is no
    /// longer that of this process.
    directories: Vec<(PathBuf, DirectoryMarks)>,
    state: Mutex<WriteWatchState>,
    /// The check that runs: a disk that does not answer gets no second one.
    running: tokio::sync::Mutex<Option<DiskWork<FailedCheck>>>,
}

#[derive(Debug, Default)]
struct WriteWatchState {
    fault: Option<WriteFault>,
    /// The last failed check that was no shortage. One without an answer explains no failure: the disk
    /// may only be busy.
    last_failure: Option<(Instant, String)>,
    /// When the last check ended; `None` if the next one is due at once.
    checked: Option<Instant>,
}

impl WriteWatch {
    pub(super) fn new(directories: Vec<PathBuf>) -> Self {
        let with_marks = |path: PathBuf| {
            let marks = DirectoryMarks::of(&path);
            (path, marks)
        };
        let directories = directories.into_iter().map(with_marks).collect();
        Self { directories, ..Self::default() }
    }

    /// The fault that the last check found.
    pub(super) fn fault(&self) -> Option<WriteFault> {
        self.state().fault.clone()
    }

    /// Why writes failed at `since` or later, as far as is known.
    pub(super) fn failed_since(&self, since: Instant) -> Option<String> {
        let state = self.state();
        let (_, message) = state.last_failure.as_ref().filter(|(at, _)| *at >= since)?;
        Some(message.clone())
    }

    /// Whether the last check is newer than this. There is nothing to check without a directory.
    pub(super) fn is_recent(&self, age: Duration) -> bool {
        self.directories.is_empty() || self.state().checked.is_some_and(|at| at.elapsed() < age)
    }

    /// Makes the next check due at once.
    pub(super) fn expire(&self) {
        self.state().checked = None;
    }

    /// Checks the directories, unless that was done within `max_age`. Returns the fault.
    pub(super) async fn check(&self, max_age: Duration) -> Option<WriteFault> {
        if self.directories.is_empty() {
            return None;
        }
        let mut running = self.running.lock().await;
        if self.state().checked.is_some_and(|at| at.elapsed() < max_age) {
            return self.fault();
        }
        let check = running.get_or_insert_with(|| self.begin());
        // A disk that is known to give no answer is not waited for again.
        match check.answer().await {
            Some(ended) => {
                *running = None;
                let failed = ended.unwrap_or_else(|panic| {
                    Some((self.directories[0].0.clone(), io::Error::other(panic.to_string())))
                });
                self.record(failed.map(|(path, error)| {
                    let message =
                        format!("cannot write to {}: {}", shown(&path), without_place(&error));
                    let is_shortage = Shortage::from_io_error(&error) == Some(Shortage::Disk);
                    WriteFault { message, since: Instant::now(), is_shortage, is_silent: false }
                }));
            }
            None => self.record_silence(),
        }
        self.fault()
    }

    /// Waits for a check that runs: afterwards, its file is gone.
    pub(super) async fn close(&self) {
        if let Some(check) = self.running.lock().await.take() {
            let _ended = timeout(CLOSE_LIMIT, check.ended()).await;
        }
    }

    fn begin(&self) -> DiskWork<FailedCheck> {
        let directories = self.directories.clone();
        DiskWork::start("disk check", move || {
            directories.into_iter().find_map(|(path, marks)| {
                let checked = check_writes(&path).and_then(|()| marks.check());
                Some((path, checked.err()?))
            })
        })
    }

    /// Records that a check had no answer in time.
    pub(super) fn record_silence(&self) {
        let first = self.directories.first();
        let path = first.map(|(path, _)| shown(path).to_string()).unwrap_or_default();
        let message = format!("cannot write to {path}: no answer for {ANSWER_LIMIT:?}");
        let since = Instant::now();
        self.record(Some(WriteFault { message, since, is_shortage: false, is_silent: true }));
    }

    /// Records that the disk is full.
    #[cfg(test)]
    pub(super) fn record_shortage(&self) {
        let (message, since) = ("cannot write: it is full".to_owned(), Instant::now());
        self.record(Some(WriteFault { message, since, is_shortage: true, is_silent: false }));
    }

    /// Records the result of a check. A fault and its end are logged once.
    fn record(&self, found: Option<WriteFault>) {
        let mut state = self.state();
        state.checked = Some(Instant::now());
        let Some(mut fault) = found else {
            if state.fault.take().is_some() {
                tracing::info!(
                    "the directories of this worker take writes again: work is started again"
                );
            }
            return;
        };
        if !fault.is_shortage && !fault.is_silent {
            state.last_failure = Some((fault.since, fault.message.clone()));
        }
        match &state.fault {
            Some(former) if is_continued(former, &fault) => fault.since = former.since,
            Some(_) => {}
            None => {
                tracing::error!("{}: no work is started until that is possible", fault.message);
            }
        }
        state.fault = Some(fault);
    }

    fn state(&self) -> MutexGuard<'_, WriteWatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a fault counts from the beginning of an earlier one. A disk that was full, or failed, was not silent
/// yet: it answered.
const fn is_continued(former: &WriteFault, found: &WriteFault) -> bool {
    former.is_shortage == found.is_shortage && (former.is_silent || !found.is_silent)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rollout_base::supervise;
    use rollout_store::host::WorkerDir;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[tokio::test]
    async fn removed_directory_is_a_fault_until_it_is_back() {
        let root = tempfile::tempdir().expect("a directory");
        let own = root.path().join("own");
        let watch = WriteWatch::new(vec![root.path().to_owned(), own.clone()]);
        let began = Instant::now();
        let fault = watch.check(Duration::ZERO).await.expect("it is missing");
        assert!(fault.message.contains("own: No such file or directory"), "{fault:?}");
        assert!(!fault.is_shortage && !fault.is_silent);
        std::fs::create_dir(&own).expect("made");
        let cached = watch.check(Duration::from_secs(3600)).await;
        assert_eq!(cached.as_ref(), Some(&fault), "the last check is recent");
        watch.expire();
        assert_eq!(watch.check(Duration::from_secs(3600)).await, None);
        assert_eq!(watch.failed_since(began), Some(fault.message));
        assert_eq!(watch.failed_since(Instant::now() + Duration::from_secs(1)), None);
    }

    #[tokio::test]
    async fn directory_of_a_worker_that_is_back_without_its_lock_is_a_fault() {
        let base = tempfile::tempdir().expect("a directory");
        let own = WorkerDir::create(base.path()).expect("created");
        let watch = WriteWatch::new(vec![own.path().to_owned()]);
        assert_eq!(watch.check(Duration::ZERO).await, None);
        let aside = base.path().join("aside");
        std::fs::rename(own.path(), &aside).expect("moved");
        assert!(watch.check(Duration::ZERO).await.is_some());
        std::fs::create_dir(own.path()).expect("made");
        let fault = watch.check(Duration::ZERO).await.expect("it has no lock");
        assert!(fault.message.ends_with("its file lock was removed or replaced"), "{fault:?}");
        std::fs::remove_dir(own.path()).expect("removed");
        std::fs::rename(&aside, own.path()).expect("moved back");
        assert_eq!(watch.check(Duration::ZERO).await, None);
    }

    #[tokio::test]
    async fn disk_without_an_answer_is_a_fault_that_explains_no_failure() {
        let root = tempfile::tempdir().expect("a directory");
        let watch = WriteWatch::new(vec![root.path().to_owned()]);
        let began = Instant::now();
        watch.record_silence();
        assert!(watch.fault().is_some_and(|fault| fault.is_silent && !fault.is_shortage));
        assert_eq!(watch.failed_since(began), None);
        assert_eq!(watch.check(Duration::ZERO).await, None, "it answers again");
    }

    #[tokio::test(start_paused = true)]
    async fn disk_that_turns_silent_is_silent_since_then() {
        let minute = Duration::from_secs(60);
        let watch = WriteWatch::default();
        let since = || watch.fault().expect("a fault").since;
        let fail = |is_shortage| {
            let (message, since) = ("why".to_owned(), Instant::now());
            watch.record(Some(WriteFault { message, since, is_shortage, is_silent: false }));
        };
        for is_shortage in [true, false] {
            fail(is_shortage);
            tokio::time::advance(10 * minute).await;
            watch.record_silence();
            assert_eq!(since(), Instant::now(), "a shortage before it: {is_shortage}");
            tokio::time::advance(minute).await;
            watch.record_silence();
            assert_eq!(since().elapsed(), minute, "a shortage before it: {is_shortage}");
        }
        fail(false);
        assert_eq!(since().elapsed(), minute, "it took no writes all the time");
        fail(true);
        assert_eq!(since(), Instant::now(), "it answers, but is full");
    }

    #[tokio::test(start_paused = true)]
    async fn disk_that_gives_no_answer_is_not_waited_for_again() {
        let root = tempfile::tempdir().expect("a directory");
        let pipe = root.path().join(".write-check");
        // Opening it waits for a reader.
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        let (answer, may_answer) = mpsc::channel::<()>();
        let reading = supervise::thread("reader", move || {
            may_answer.recv_timeout(Duration::from_secs(10)).ok();
            std::fs::read(pipe).is_ok()
        });
        let watch = WriteWatch::new(vec![root.path().to_owned()]);
        let mut check = watch.begin();
        check.has_begun().await;
        *watch.running.lock().await = Some(check);
        let passes = tokio::time::advance(ANSWER_LIMIT + Duration::from_millis(1));
        let (fault, ()) = tokio::join!(watch.check(Duration::ZERO), passes);
        assert!(fault.is_some_and(|fault| fault.is_silent));
        let asked = Instant::now();
        assert!(watch.check(Duration::ZERO).await.is_some_and(|fault| fault.is_silent));
        assert_eq!(asked.elapsed(), Duration::ZERO);
        drop(answer);
        assert!(reading.expect("started").join().expect("no panic"));
    }

    #[tokio::test]
    async fn watch_without_directories_finds_no_fault() {
        assert_eq!(WriteWatch::default().check(Duration::ZERO).await, None);
    }
}
