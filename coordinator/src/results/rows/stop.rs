//! An end to rows that a task writes without a pause, such as those of tables.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

tokio::task_local! {
    /// Whether the rows of this task are to end.
    static STOP: Arc<AtomicBool>;
}

/// Writes rows until `stop` is set: then writing fails.
pub async fn until_stopped<T>(stop: Arc<AtomicBool>, writing: impl Future<Output = T>) -> T {
    STOP.scope(stop, writing).await
}

/// Refuses to write rows of a task after its end.
pub(super) fn check() -> io::Result<()> {
    match STOP.try_with(|stop| stop.load(Ordering::Relaxed)) {
        Ok(true) => Err(io::Error::other("the export was stopped")),
        Ok(false) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::RowOutput;
    use super::*;

    #[tokio::test]
    async fn rows_are_written_until_their_stop_and_leave_no_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let stop = Arc::new(AtomicBool::new(false));
        let written = until_stopped(Arc::clone(&stop), async {
            let mut output = RowOutput::open(Some(directory.path().join("rows"))).expect("opened");
            let lines = [b'x'; 1024];
            for _ in 0..1024 {
                output.write_bytes(&lines).expect("written");
            }
            stop.store(true, Ordering::Relaxed);
            (0..1024).try_for_each(|_| output.write_bytes(&lines))
        });
        assert!(written.await.is_err());
        assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0);
        assert!(check().is_ok(), "other tasks go on");
    }
}
