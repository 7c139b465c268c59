//! Tests of slot limits: requested capacity, and executions that run together.

use rollout_protocol::wire::delivery::FreeCapacity;
use rollout_protocol::wire::heartbeat::ResourceBudget;
use rollout_protocol::wire::offer::SizeClass;

use super::harness::{FIRST, ScriptedAct, ServiceFixture, ServiceSetup};
use super::*;
use crate::testing::SourceCall;

fn pulled_capacity(scene: &ServiceFixture) -> Vec<FreeCapacity> {
    let room = |said| match said {
        SourceCall::Pull(room) => Some(room),
        _ => None,
    };
    scene.source.take_calls().into_iter().filter_map(room).collect()
}

#[tokio::test(start_paused = true)]
async fn pull_and_heartbeat_state_free_slots_and_shares() {
    let budget = ResourceBudget { cpus: Some(9), memory_mb: Some(20 * 1024) };
    let scene = ServiceFixture::with_setup(ServiceSetup { budget, ..ServiceSetup::default() });
    for n in [1, 2, 3] {
        scene.script(n, ScriptedAct::UntilStopped);
    }
    scene
        .until("it pulls", async || {
            pulled_capacity(&scene).contains(&FreeCapacity {
                slots: 4,
                shares: Some(9),
                idle: true,
            })
        })
        .await;
    assert_eq!(
        (scene.last_heartbeat().await.free, scene.last_heartbeat().await.budget),
        (4, budget)
    );
    scene.offer_with_class(SizeClass(1), &[1, 2, 3]).await;
    scene.until_running(2).await;
    let room = FreeCapacity { slots: 2, shares: Some(1), idle: false };
    scene.until("it pulls", async || pulled_capacity(&scene).contains(&room)).await;
    scene.until("the heartbeat shows it", async || scene.last_heartbeat().await.free == 2).await;
    assert_eq!(scene.queued().await, 3, "the third has to wait");
    tokio::time::sleep(SECOND).await;
    assert_eq!(scene.begun().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn solo_execution_waits_for_idle_worker_and_runs_alone() {
    let scene = ServiceFixture::new();
    scene.script(1, ScriptedAct::Sleep(30 * SECOND));
    scene.script(2, ScriptedAct::Sleep(30 * SECOND));
    scene.offer([1]).await;
    scene.until_running(1).await;
    scene.offer_with_class(SizeClass::SOLO, &[2]).await;
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!(scene.begun(), [1]);
    scene.until("it runs", async || scene.begun() == [1, 2]).await;
    scene.offer([3]).await;
    pulled_capacity(&scene);
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!((scene.begun(), pulled_capacity(&scene)), (vec![1, 2], vec![]));
    assert_eq!(scene.last_heartbeat().await.free, 0);
    scene.until("the next one ran", async || scene.begun() == [1, 2, 3]).await;
    assert_eq!(scene.runner.max_running.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn redelivery_of_try_holding_slot_is_not_given_back() {
    let scene = ServiceFixture::with_setup(ServiceSetup { slots: 1, ..ServiceSetup::default() });
    scene.script(1, ScriptedAct::Sleep(30 * SECOND));
    scene.offer_as([1], FIRST).await;
    scene.until_running(1).await;
    scene.queue.inject_fault(rollout_queue::embedded::model::BrokerModel::restart);
    scene.reports(2).await;
    scene.until_acknowledged().await;
    assert_eq!(scene.begun(), [1]);
}

#[tokio::test(start_paused = true)]
async fn pull_denied_by_queue_is_retried() {
    let scene = ServiceFixture::new();
    scene.source.set_denied(true);
    scene.offer([1]).await;
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(scene.begun(), Vec::<u32>::new());
    scene.source.set_denied(false);
    scene.report().await;
}
