use std::sync::Arc;

use super::*;
use crate::queue::contract::{self, Broker};

#[derive(Debug)]
struct Embedded(Arc<EmbeddedQueue>);

#[async_trait]
impl Broker for Embedded {
    fn source(&self) -> Arc<dyn WorkSource> {
        self.0.clone()
    }

    fn dispatch(&self) -> Arc<dyn Dispatch> {
        self.0.clone()
    }

    fn reports_per_run(&self) -> usize {
        self.0.model().config().reports_per_run
    }

    async fn restart(&self) {
        self.0.disturb(Model::restart);
    }

    async fn pass(&self, thirds: u32) {
        let lease = self.0.model().config().lease;
        tokio::time::advance(lease / 3 * thirds).await;
    }
}

#[tokio::test(start_paused = true)]
async fn keeps_the_contract() {
    let config = ModelConfig { reports_per_run: 20, ..ModelConfig::default() };
    contract::all(async || Embedded(Arc::new(EmbeddedQueue::new(config)))).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_pull_gets_what_expires_while_it_waits() {
    let broker = Embedded(Arc::new(EmbeddedQueue::default()));
    contract::a_silent_delivery_comes_again_after_its_lease(&broker).await;
    let again = broker.source().pull(1, Duration::from_secs(3600)).await.expect("reachable");
    assert_eq!(again[0].delivered, 3);
}
