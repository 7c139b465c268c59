//! A thread that writes log messages.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use rollout_base::supervise;

use crate::events::sinks::terminal::Screen;

/// Messages that wait for the thread. More are left out: standard error takes none.
const WAITING_MESSAGES: usize = 4096;

/// How long the end of a command waits until its messages are written.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// Messages for a thread.
#[derive(Debug, Clone)]
pub(super) struct LogQueue {
    entries: SyncSender<LogEntry>,
    /// Messages that found no room.
    left_out: Arc<AtomicU64>,
}

/// An entry of a queue.
#[derive(Debug)]
enum LogEntry {
    Message(Vec<u8>),
    /// Everything before it is written.
    Flush(Sender<()>),
}

/// The thread that writes messages. It ends with the process.
#[derive(Debug)]
pub(super) struct LogThread {
    queue: LogQueue,
}

impl LogThread {
    /// Starts it.
    pub(super) fn start(screen: Screen) -> io::Result<Self> {
        let (entries, received) = sync_channel(WAITING_MESSAGES);
        let left_out = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&left_out);
        let _detached =
            supervise::thread("log", move || write_entries(&screen, &received, &counted))?;
        Ok(Self { queue: LogQueue { entries, left_out } })
    }

    /// Its messages.
    pub(super) fn queue(&self) -> LogQueue {
        self.queue.clone()
    }

    /// Waits a moment until the messages so far are written.
    pub(super) fn flush(&self) {
        let (written, is_written) = channel();
        // A queue without room is not written soon.
        if self.queue.entries.try_send(LogEntry::Flush(written)).is_ok() {
            let _in_time = is_written.recv_timeout(FLUSH_LIMIT);
        }
    }
}

impl LogQueue {
    /// Adds a message, if there is room for it.
    pub(super) fn add(&self, text: Vec<u8>) {
        if self.entries.try_send(LogEntry::Message(text)).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write_entries(screen: &Screen, entries: &Receiver<LogEntry>, left_out: &AtomicU64) {
    for entry in entries {
        match entry {
            LogEntry::Message(text) => screen.write(&text),
            LogEntry::Flush(written) => {
                let _waits_no_more = written.send(());
            }
        }
        let count = left_out.swap(0, Ordering::Relaxed);
        if count > 0 {
            tracing::warn!("{count} log messages are left out: standard error took none");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Mutex;
    use std::time::Instant;

    use super::*;

    /// Standard error on a disk that gives an answer when it is told to.
    struct SlowError {
        may_write: Receiver<()>,
        logged: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for SlowError {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.may_write.recv_timeout(Duration::from_secs(10)).ok();
            self.logged.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn messages_do_not_wait_for_standard_error_and_are_written_before_the_end() {
        let (permit, may_write) = channel();
        let logged: Arc<Mutex<Vec<u8>>> = Arc::default();
        let slow = SlowError { may_write, logged: Arc::clone(&logged) };
        let thread = LogThread::start(Screen::lines(Box::new(slow))).expect("started");
        let text =
            || String::from_utf8(logged.lock().expect("not poisoned").clone()).expect("text");
        for number in 0..WAITING_MESSAGES + 3 {
            thread.queue.add(format!("{number}\n").into_bytes());
        }
        // The thread may have taken one of them.
        assert!(thread.queue.left_out.load(Ordering::Relaxed) >= 2);
        assert_eq!(text(), "", "nothing is written");
        drop(permit);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !text().contains(&format!("\n{}\n", WAITING_MESSAGES - 1)) {
            assert!(Instant::now() < deadline, "not written");
            std::thread::yield_now();
        }
        thread.queue.add(b"the end\n".to_vec());
        thread.flush();
        assert!(text().ends_with("the end\n"), "written before the end");
    }
}
