use std::sync::Arc;

use super::*;
use crate::contract::{self, Broker};
use crate::traits::KvStore;

#[derive(Debug)]
struct EmbeddedBroker(Arc<EmbeddedQueue>, Arc<EmbeddedKvStore>);

impl EmbeddedBroker {
    fn new(config: BrokerModelConfig) -> Self {
        Self(Arc::new(EmbeddedQueue::with_immediate_acks(config)), Arc::default())
    }
}

#[async_trait(?Send)]
impl Broker for EmbeddedBroker {
    fn source(&self) -> Arc<dyn WorkSource> {
        self.0.clone()
    }

    fn dispatch(&self) -> Arc<dyn Dispatch> {
        self.0.clone()
    }

    fn kv_store(&self) -> Arc<dyn KvStore> {
        self.1.clone()
    }

    fn control(&self) -> Arc<dyn RunControl> {
        self.0.clone()
    }

    fn reports_per_run(&self) -> usize {
        self.0.model().config().reports_per_run
    }

    async fn restart(&self) {
        self.0.inject_fault(BrokerModel::restart);
    }

    async fn wipe(&self) {
        self.0.inject_fault(|model| model.wipe(Incarnation(rand::random())));
        self.1.wipe();
    }

    async fn advance_lease(&self, thirds: u32) {
        let lease = self.0.model().config().lease;
        tokio::time::advance(lease / 3 * thirds).await;
    }
}

#[tokio::test(start_paused = true)]
async fn embedded_queue_passes_queue_contract() {
    let config = BrokerModelConfig { reports_per_run: 20, ..BrokerModelConfig::default() };
    contract::run_all(async || EmbeddedBroker::new(config)).await;
}

#[tokio::test(start_paused = true)]
async fn pull_waiting_at_lease_expiry_gets_redelivery() {
    let broker = EmbeddedBroker::new(BrokerModelConfig::default());
    contract::delivery_without_progress_is_redelivered_after_lease(&broker).await;
    let again = broker
        .source()
        .pull(FreeCapacity::with_slots(1), Duration::from_secs(3600))
        .await
        .expect("reachable");
    assert_eq!(again[0].delivered, 3);
}

fn started_report(exec: u8) -> Report {
    use rollout_protocol::digest::Digest;
    use rollout_protocol::id::ExecId;
    Report {
        run: RunId::from_bytes([1; 16]),
        item: ItemId::from_bytes([exec; 16]),
        try_id: TryId::first(1),
        exec: ExecId::from_bytes([exec; 16]),
        spec: Digest::from_bytes([0; 32]),
        worker: "w".parse().expect("valid"),
        body: rollout_protocol::wire::report::ReportBody::Started,
    }
}

#[tokio::test(start_paused = true)]
async fn report_is_acknowledged_only_after_journal_write() {
    let queue = EmbeddedQueue::new(BrokerModelConfig::default());
    let run = RunId::from_bytes([1; 16]);
    let mut said = std::pin::pin!(queue.report(vec![started_report(1), started_report(2)]));
    let long = Duration::from_secs(600);
    assert!(tokio::time::timeout(long, said.as_mut()).await.is_err(), "it is not journalled");
    let read = queue.reports(run, None, 10, Duration::ZERO).await.expect("no position").reports;
    assert_eq!(read.len(), 2);
    queue.mark_journaled(run, read[0].position).await.expect("reachable");
    assert!(tokio::time::timeout(long, said.as_mut()).await.is_err(), "only the first");
    queue.mark_journaled(run, read[1].position).await.expect("reachable");
    assert_eq!(said.await.expect("journalled"), [Ok(()), Ok(())]);
}

#[tokio::test(start_paused = true)]
async fn report_lost_by_queue_fails_as_unreachable() {
    let queue = EmbeddedQueue::new(BrokerModelConfig::default());
    let mut said = std::pin::pin!(queue.report(vec![started_report(1)]));
    assert!(futures_util::poll!(said.as_mut()).is_pending());
    queue.inject_fault(|model| model.lose_report_tail(1));
    let answer = said.await;
    assert!(matches!(answer, Err(QueueError::Unreachable { .. })), "{answer:?}");
}
