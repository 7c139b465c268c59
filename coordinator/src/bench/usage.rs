//! Processor time and memory of this process and the server.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of the process, all threads.
pub(super) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// Largest resident size of the process so far, bytes; `None` if the system does not report it.
pub(super) fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Reads the processor time of this process and of the server.
#[cfg(feature = "nats")]
#[derive(Debug)]
pub(super) struct CpuMeter {
    /// The server's process id, if known.
    pub(super) server: Option<u32>,
}

/// Processor time.
#[cfg(feature = "nats")]
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuUsage {
    pub(super) own: Duration,
    pub(super) server: Option<Duration>,
}

#[cfg(feature = "nats")]
impl CpuMeter {
    pub(super) fn read(&self) -> CpuUsage {
        CpuUsage { own: cpu(), server: self.server.and_then(process_cpu) }
    }
}

#[cfg(feature = "nats")]
impl CpuUsage {
    pub(super) fn since(self, before: &Self) -> Self {
        let server = self.server.zip(before.server);
        Self {
            own: self.own.saturating_sub(before.own),
            server: server.map(|(now, before)| now.saturating_sub(before)),
        }
    }
}

/// Processor time of another process's live threads; `None` if the system does not report it.
#[cfg(feature = "nats")]
fn process_cpu(pid: u32) -> Option<Duration> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let used = threads.flatten().filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Some(Duration::from_nanos(used.sum()))
}
