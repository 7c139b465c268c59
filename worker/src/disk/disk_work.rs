//! Blocking work on a disk that may give no answer. It gets no second one meanwhile.

use std::time::Duration;

use rollout_base::supervise::{self, Task, TaskPanic};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// A disk that takes longer gives no answer.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Longest wait for a thread. All file work shares the threads: if none gets free for so long, a disk that
/// gives no answer holds them, as likely as not.
const THREAD_LIMIT: Duration = Duration::from_secs(60);

/// Work that runs.
#[derive(Debug)]
pub(super) struct DiskWork<T> {
    task: Task<T>,
    started: Instant,
    /// When a thread began it. The time before that is not the disk's.
    begun: watch::Receiver<Option<Instant>>,
}

impl<T: Send + 'static> DiskWork<T> {
    /// Starts work.
    pub(super) fn start(name: &'static str, work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (begins, begun) = watch::channel(None);
        let timed = move || {
            begins.send_replace(Some(Instant::now()));
            work()
        };
        let task = supervise::spawn(name, supervise::blocking(timed));
        Self { task, started: Instant::now(), begun }
    }

    /// Waits for the result; `None` if there is none in time. Work that is late already is not waited for.
    pub(super) async fn answer(&mut self) -> Option<Result<T, TaskPanic>> {
        let begun = self.begun.wait_for(Option::is_some);
        let begun = match timeout_at(self.started + THREAD_LIMIT, begun).await {
            Ok(begun) => begun.ok().and_then(|at| *at),
            Err(_elapsed) => return None,
        };
        // A task that has ended without its work has a result at once.
        let limit = begun.unwrap_or(self.started) + ANSWER_LIMIT;
        timeout_at(limit, &mut self.task).await.ok()
    }

    /// Waits for its end, without a limit.
    pub(super) async fn ended(self) {
        let _ended = self.task.await;
    }

    /// Waits until a thread has begun it.
    #[cfg(test)]
    pub(super) async fn has_begun(&mut self) {
        self.begun.wait_for(Option::is_some).await.expect("it begins");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn wait_for_a_thread_is_no_silence_of_the_disk() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).max_blocking_threads(1).build();
        runtime.expect("a runtime").block_on(async {
            let (free, is_free) = mpsc::channel::<()>();
            supervise::start_blocking(move || {
                is_free.recv_timeout(Duration::from_secs(10)).ok();
            });
            let mut work = DiskWork::start("work", || 1);
            let busy = async {
                tokio::time::advance(2 * ANSWER_LIMIT).await;
                drop(free);
            };
            let (answer, ()) = tokio::join!(work.answer(), busy);
            assert_eq!(answer.expect("an answer").expect("no panic"), 1);
        });
    }

    #[test]
    fn threads_that_do_not_get_free_are_a_silence() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).max_blocking_threads(1).build();
        runtime.expect("a runtime").block_on(async {
            let (free, is_free) = mpsc::channel::<()>();
            supervise::start_blocking(move || {
                is_free.recv_timeout(Duration::from_secs(10)).ok();
            });
            let mut work = DiskWork::start("work", || 1);
            let passes = tokio::time::advance(THREAD_LIMIT + Duration::from_millis(1));
            let (answer, ()) = tokio::join!(work.answer(), passes);
            assert!(answer.is_none());
            drop(free);
            work.ended().await;
        });
    }
}
