//! Executions that wait for a service on a worker.

use rollout_protocol::dependency::Dependency;
use rollout_protocol::phase::Phase;
use rollout_protocol::wire::control::StopLevel;
use rollout_protocol::wire::heartbeat::Heartbeat;

use super::fleet::{heartbeat, running_execution};
use super::*;

/// Seconds pass; in each of them these workers send heartbeats.
fn watch(world: &mut CoreFixture, seconds: u64, heartbeats: &[Heartbeat]) {
    for _ in 0..seconds {
        world.now_ms += 1000;
        let received = heartbeats.iter().cloned();
        let received =
            received.map(|heartbeat| ReceivedHeartbeat { heartbeat, age: Duration::ZERO });
        world.handle(CoreInput::Heartbeats(received.collect()));
    }
}

/// A worker on which both executions wait for the blob store.
fn waiting_worker() -> Heartbeat {
    let waiting = |n, e| ActiveExecution {
        phase: Phase::EnvironmentSetup,
        parked: Some(Dependency::BlobStore),
        ..running_execution(n, FIRST, e, false)
    };
    heartbeat("waits", vec![waiting(0, 1), waiting(1, 2)])
}

fn idle_worker() -> Heartbeat {
    Heartbeat { free: 2, ..heartbeat("idle", Vec::new()) }
}

fn stopped(world: &CoreFixture) -> Vec<(ExecId, StopLevel)> {
    let stops = world.effects.iter().filter_map(|effect| match effect {
        CoreEffect::StopExecution { exec, level } => Some((*exec, *level)),
        _ => None,
    });
    stops.collect()
}

#[test]
fn executions_that_wait_on_one_worker_are_returned_when_another_is_idle() {
    let mut world = CoreFixture::remote(2, 2);
    let heartbeats = [waiting_worker(), idle_worker()];
    watch(&mut world, 15, &heartbeats);
    assert_eq!(stopped(&world), [], "the outage may be short");
    watch(&mut world, 1, &heartbeats);
    let both = [(exec(1), StopLevel::Drain), (exec(2), StopLevel::Drain)];
    assert_eq!(stopped(&world), both);
    world.report(0, FIRST, 1, 1, lost(LostReason::Stopped));
    assert_eq!(world.offered().last(), Some(&(item(0), SECOND)), "it is offered again at once");
    let again = ActiveExecution {
        phase: Phase::EnvironmentSetup,
        parked: Some(Dependency::BlobStore),
        ..running_execution(0, SECOND, 3, false)
    };
    watch(&mut world, 60, &[heartbeat("waits", vec![again]), idle_worker()]);
    assert!(stopped(&world).iter().all(|(stopped, _)| *stopped != exec(3)), "once for each item");
}

#[test]
fn executions_stay_where_no_other_worker_could_run_them() {
    let parked_too = ActiveExecution {
        phase: Phase::EnvironmentSetup,
        parked: Some(Dependency::BlobStore),
        ..running_execution(5, FIRST, 9, false)
    };
    for other in [
        Heartbeat { executions: vec![parked_too], ..idle_worker() },
        Heartbeat { free: 0, ..idle_worker() },
        Heartbeat { draining: true, ..idle_worker() },
        Heartbeat { low_disk: true, ..idle_worker() },
        Heartbeat { pool: "other".to_owned(), ..idle_worker() },
        Heartbeat { store: "other".to_owned(), ..idle_worker() },
    ] {
        let mut world = CoreFixture::remote(2, 2);
        watch(&mut world, 60, &[waiting_worker(), other.clone()]);
        assert_eq!(stopped(&world), [], "{other:?}");
    }
    let mut worker = waiting_worker();
    worker.executions.iter_mut().for_each(|execution| execution.phase = Phase::Verification);
    let mut world = CoreFixture::remote(2, 2);
    watch(&mut world, 60, &[worker, idle_worker()]);
    assert_eq!(stopped(&world), [], "they have environments");
}
