//! The only place that spawns tasks and threads. Every task has a name, an owner that holds its
//! [`Task`], and ends when the owner drops it.

use std::any::Any;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

/// A task that panicked, with the panic's message.
#[derive(Debug, thiserror::Error)]
#[error("task `{task}` panicked: {message}")]
pub struct TaskPanic {
    /// Name of the task.
    pub task: &'static str,
    /// The panic's message.
    pub message: String,
}

/// A running task. Dropping it aborts the task at its next await; awaiting it gives its value.
#[derive(Debug)]
#[must_use = "dropping a task aborts it"]
pub struct Task<T> {
    name: &'static str,
    handle: JoinHandle<T>,
}

/// Starts a task on the current runtime.
#[expect(clippy::disallowed_methods, reason = "the only place that spawns tasks")]
pub fn spawn<T: Send + 'static>(
    name: &'static str,
    future: impl Future<Output = T> + Send + 'static,
) -> Task<T> {
    // Boxed, so that the runtime's task code is compiled once for each `T` and not for each of
    // about 300 futures and closures.
    let future: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(future.in_current_span());
    Task { name, handle: tokio::spawn(future) }
}

/// Runs blocking work on the runtime's blocking threads and waits for it. A panic resumes in the
/// caller.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let span = tracing::Span::current();
    let value = blocking_erased(Box::new(move || Box::new(span.in_scope(work)))).await;
    *value.downcast().expect("`work` returns `T`")
}

/// A value of any type, from a blocking thread.
type ErasedValue = Box<dyn Any + Send>;

/// [`blocking`] without type parameters, so that it is compiled once.
#[expect(clippy::disallowed_methods, reason = "the only place that spawns blocking tasks")]
async fn blocking_erased(work: Box<dyn FnOnce() -> ErasedValue + Send>) -> ErasedValue {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => unreachable!("blocking work is never aborted: {error}"),
        },
    }
}

/// Starts blocking work on the runtime's blocking threads, for a caller that does not wait for it. A panic
/// is printed, and lost otherwise.
#[expect(clippy::disallowed_methods, reason = "the only place that spawns blocking tasks")]
pub fn start_blocking(work: impl FnOnce() + Send + 'static) {
    let span = tracing::Span::current();
    let work: Box<dyn FnOnce() + Send> = Box::new(move || span.in_scope(work));
    drop(tokio::task::spawn_blocking(work));
}

/// A value whose end may wait for a disk, such as a file that was written or a temporary directory. It is
/// dropped on a blocking thread.
#[derive(Debug)]
pub struct BlockingDrop<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> BlockingDrop<T> {
    /// Holds a value.
    pub const fn new(value: T) -> Self {
        Self(Some(value))
    }

    /// The value, for a caller that ends it.
    pub fn into_inner(mut self) -> T {
        self.0.take().expect("only its end takes the value")
    }
}

impl<T: Send + 'static> Deref for BlockingDrop<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only its end takes the value")
    }
}

impl<T: Send + 'static> DerefMut for BlockingDrop<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("only its end takes the value")
    }
}

impl<T: Send + 'static> Drop for BlockingDrop<T> {
    fn drop(&mut self) {
        let Some(value) = self.0.take() else { return };
        // A thread without a runtime may wait.
        match Handle::try_current() {
            Ok(_) => start_blocking(move || drop(value)),
            Err(_) => drop(value),
        }
    }
}

/// Starts a named thread for work that blocks for its whole life. The caller joins it.
///
/// # Errors
/// When the system has no thread left.
#[expect(clippy::disallowed_methods, reason = "the only place that spawns threads")]
pub fn thread<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work)
}

impl<T> Task<T> {
    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, TaskPanic>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let name = self.name;
        Pin::new(&mut self.handle).poll(cx).map(|joined| {
            joined.map_err(|error| TaskPanic {
                task: name,
                message: match error.try_into_panic() {
                    Ok(panic) => panic_message(panic.as_ref()),
                    Err(error) => error.to_string(),
                },
            })
        })
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

/// The text of a panic's payload.
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;

    /// Longest wait for what must happen.
    const DEADLINE: Duration = Duration::from_secs(10);

    /// A value whose end waits as for a disk, and tells that it began.
    struct SlowEnd {
        begun: Sender<()>,
        may_end: Receiver<()>,
    }

    impl Drop for SlowEnd {
        fn drop(&mut self) {
            self.begun.send(()).ok();
            self.may_end.recv_timeout(DEADLINE).ok();
        }
    }

    /// The value, whether its end has begun, and the permission to end.
    fn slow_end() -> (SlowEnd, Receiver<()>, Sender<()>) {
        let ((begun, has_begun), (permit, may_end)) = (channel(), channel());
        (SlowEnd { begun, may_end }, has_begun, permit)
    }

    #[tokio::test]
    async fn value_whose_end_waits_is_dropped_without_a_wait() {
        let (value, has_begun, permit) = slow_end();
        drop(BlockingDrop::new(value));
        // Both would be too late if its end had been waited for on this thread.
        permit.send(()).expect("its end waits");
        has_begun.recv_timeout(DEADLINE).expect("its end began");
    }

    #[test]
    fn value_is_dropped_at_once_without_a_runtime() {
        let (value, has_begun, permit) = slow_end();
        permit.send(()).expect("held");
        drop(BlockingDrop::new(value));
        has_begun.try_recv().expect("it has ended");
    }

    #[tokio::test]
    async fn blocking_work_begins_before_anybody_waits_for_it() {
        let (done, is_done) = channel();
        start_blocking(move || done.send(()).expect("waited for"));
        is_done.recv_timeout(DEADLINE).expect("done");
    }
}
