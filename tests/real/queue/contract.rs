//! The contract of all queues, checked with real servers.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use rollout_queue::contract::{
    Broker, CLASSES, ContractCheck, DISRUPTIVE_CHECKS, SHARED_SERVER_CHECKS,
};
use rollout_queue::nats::{Nats, NatsDispatch, NatsKvStore, NatsSource};
use rollout_queue::traits::{Dispatch, KvStore, RunControl, WorkSource};

use crate::queue::fixture::{LEASE, QueueFixture, REPORTS, pool, until, with_every_server};

struct NatsUnderTest {
    fixture: Arc<QueueFixture>,
    nats: Nats,
    source: Arc<NatsSource>,
    dispatch: Arc<NatsDispatch>,
    kv_store: Arc<NatsKvStore>,
}

impl NatsUnderTest {
    async fn new(fixture: Arc<QueueFixture>) -> Self {
        let nats = fixture.connect().await;
        let pool = pool("default");
        let dispatch = nats.dispatch(&pool, &CLASSES).await.expect("a dispatch");
        // The worker has its own connection.
        let options = nats.options().clone();
        let worker = Nats::connect(options).await.expect("a server to work with");
        let source = worker.source(&pool, "store").await.expect("a source");
        let kv_store = Arc::new(nats.kv_store());
        Self { fixture, nats, source: Arc::new(source), dispatch: Arc::new(dispatch), kv_store }
    }

    /// Waits until coordinator and worker are connected again.
    async fn wait_until_back(&self) {
        until("the coordinator is back", async || self.dispatch.incarnation().await.is_ok()).await;
        let kv_store = async || self.kv_store.read("nothing").await.is_ok();
        until("the KV store is back", kv_store).await;
        until("the worker is back", async || self.source.connection_status().borrow().up).await;
    }
}

#[async_trait(?Send)]
impl Broker for NatsUnderTest {
    fn source(&self) -> Arc<dyn WorkSource> {
        self.source.clone()
    }

    fn dispatch(&self) -> Arc<dyn Dispatch> {
        self.dispatch.clone()
    }

    fn kv_store(&self) -> Arc<dyn KvStore> {
        self.kv_store.clone()
    }

    fn control(&self) -> Arc<dyn RunControl> {
        Arc::new(self.nats.clone())
    }

    fn reports_per_run(&self) -> usize {
        REPORTS
    }

    fn quiet_period(&self) -> Duration {
        Duration::from_millis(250)
    }

    async fn restart(&self) {
        self.fixture.with_server(|server| {
            server.kill();
            server.ensure_started();
        });
        self.wait_until_back().await;
    }

    async fn wipe(&self) {
        self.fixture.with_server(|server| {
            server.wipe();
            server.ensure_started();
        });
        self.wait_until_back().await;
    }

    async fn advance_lease(&self, thirds: u32) {
        // The server has its own clock: only real time ends a lease.
        tokio::time::sleep(LEASE / 3 * thirds).await;
    }
}

/// Runs the checks concurrently, each with its own namespace.
async fn run_checks(checks: &[(&'static str, ContractCheck)], lab: impl Fn() -> Arc<QueueFixture>) {
    let mut running: FuturesUnordered<_> = (checks.iter())
        .map(|(name, check)| {
            let lab = lab();
            let run = async move { check(&NatsUnderTest::new(lab).await).await };
            AssertUnwindSafe(run).catch_unwind().map(move |outcome| (*name, outcome.is_ok()))
        })
        .collect();
    let mut failed = Vec::new();
    while let Some((name, kept)) = running.next().await {
        if !kept {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "failed checks: {failed:?}");
}

#[test]
fn nats_queue_passes_contract() {
    with_every_server(async |program| {
        let shared = Arc::new(QueueFixture::new(&program, ""));
        run_checks(SHARED_SERVER_CHECKS, || shared.clone()).await;
    });
}

#[test]
fn nats_queue_passes_contract_over_restarts() {
    with_every_server(async |program| {
        run_checks(DISRUPTIVE_CHECKS, || Arc::new(QueueFixture::new(&program, ""))).await;
    });
}
