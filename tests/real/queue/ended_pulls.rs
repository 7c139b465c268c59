//! The end of a worker's pulls: offers that were under way to it go to others at once.

use std::time::{Duration, Instant};

use rollout_protocol::wire::delivery::FreeCapacity;
use rollout_queue::contract::{CLASSES, samples};
use rollout_queue::nats::Nats;
use rollout_queue::traits::{Dispatch as _, WorkSource as _};
use tokio::time::timeout;

use crate::queue::fixture::{DEADLINE, LEASE, QueueFixture, pool, with_every_server};

/// Workers that leave, one after the other.
const ROUNDS: u8 = 20;

/// Longer than a request needs to reach the server.
const ON_THE_WAY: Duration = Duration::from_millis(50);

#[test]
fn offer_on_its_way_to_a_worker_that_leaves_goes_to_another_at_once() {
    with_every_server(async |program| {
        let fixture = QueueFixture::new(&program, "");
        let options = fixture.options();
        let coordinator = Nats::connect(options.clone()).await.expect("a server");
        let dispatch = coordinator.dispatch(&pool("one"), &CLASSES).await.expect("a dispatch");
        let others = Nats::connect(options.clone()).await.expect("a server");
        let staying = others.source(&pool("one"), "store").await.expect("a source");
        for item in 0..ROUNDS {
            let leaving = Nats::connect(options.clone()).await.expect("a server");
            let leaving = leaving.source(&pool("one"), "store").await.expect("a source");
            let pull = leaving.pull(FreeCapacity::with_slots(4), DEADLINE);
            let _open = timeout(ON_THE_WAY, pull).await.expect_err("nothing is offered yet");
            // The server gives it to the request that is open.
            let offers = [samples::offer(1, item)];
            let (offered, ()) = tokio::join!(dispatch.offer(&offers), leaving.end_pulls());
            offered.expect("reachable")[0].as_ref().expect("published");
            drop(leaving);
            let began = Instant::now();
            let mut pulled = Vec::new();
            while pulled.is_empty() {
                assert!(began.elapsed() < LEASE / 2, "offer {item} waits for its lease");
                let capacity = FreeCapacity::with_slots(1);
                pulled = staying.pull(capacity, LEASE / 6).await.expect("reachable");
            }
            assert_eq!(pulled[0].offer, offers[0]);
            staying.ack(&[pulled[0].token]).await.expect("reachable");
        }
    });
}
