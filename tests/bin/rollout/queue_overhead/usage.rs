//! Processor time of this process and of the server.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Reads the processor time of this process and of the server.
#[derive(Debug)]
pub(crate) struct CpuMeter {
    /// The server's process id, if known.
    pub(crate) server: Option<u32>,
}

/// Processor time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuUsage {
    pub(crate) own: Duration,
    pub(crate) server: Option<Duration>,
}

/// Processor time of the process, all threads.
pub(crate) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

impl CpuMeter {
    pub(crate) fn read(&self) -> CpuUsage {
        CpuUsage { own: cpu(), server: self.server.and_then(process_cpu) }
    }
}

impl CpuUsage {
    pub(crate) fn since(self, before: &Self) -> Self {
        let server = self.server.zip(before.server);
        Self {
            own: self.own.saturating_sub(before.own),
            server: server.map(|(now, before)| now.saturating_sub(before)),
        }
    }
}

/// Processor time of another process's live threads; `None` if the system does not report it.
fn process_cpu(pid: u32) -> Option<Duration> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let used = threads.flatten().filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Some(Duration::from_nanos(used.sum()))
}
