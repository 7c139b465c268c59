//! Test servers and connections.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rollout_queue::nats::{Nats, NatsName, NatsOptions};
use rollout_tests::nats::{NatsServer, programs};
use rollout_tests::wait;
use tempfile::TempDir;

/// A third of it is how late a test may be on a busy machine.
pub(crate) const LEASE: Duration = Duration::from_secs(6);

/// Maximum number of reports per run.
pub(crate) const REPORTS: usize = 20;

/// Deadline for anything that must happen.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A server with its directory.
#[derive(Debug)]
pub(crate) struct QueueFixture {
    pub(crate) server: std::sync::Mutex<NatsServer>,
    pub(crate) url: String,
    _directory: TempDir,
}

impl QueueFixture {
    pub(crate) fn new(program: &Path, settings: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let server = NatsServer::start_with(program, directory.path(), settings);
        let url = server.url();
        Self { server: server.into(), url, _directory: directory }
    }

    /// Runs `act` with the server.
    pub(crate) fn with_server<T>(&self, act: impl FnOnce(&mut NatsServer) -> T) -> T {
        act(&mut self.server.lock().expect("not poisoned"))
    }

    /// Options with a unique namespace.
    pub(crate) fn options(&self) -> NatsOptions {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let mut options = NatsOptions::parse(&self.url).expect("a valid address");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("test-{}-{number}", std::process::id());
        options.namespace = namespace.parse().expect("a valid name");
        options.lease = LEASE;
        options.reports_per_run = REPORTS;
        // A stream reserves its maximum size when it is created.
        options.report_stream_bytes = Some(16 * 1024 * 1024);
        options
    }

    pub(crate) async fn connect(&self) -> Nats {
        Nats::connect(self.options()).await.expect("a server to work with")
    }
}

/// A pool name.
pub(crate) fn pool(name: &str) -> NatsName {
    name.parse().expect("a valid name")
}

/// Runs a test with every available server, all at the same time: each waits for leases.
pub(crate) fn with_every_server(test: impl AsyncFn(PathBuf) + Sync) {
    std::thread::scope(|scope| {
        for program in programs() {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
                runtime.expect("a runtime").block_on(test(program));
            });
        }
    });
}

/// Polls until the condition holds.
pub(crate) async fn until(what: &str, so: impl AsyncFnMut() -> bool) {
    wait::until_async(DEADLINE, what, so).await;
}
