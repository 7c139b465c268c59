//! Executions that wait for a service on a worker, or for its disk.

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

/// A worker whose disk keeps the first of two executions from ending.
fn worker_with_silent_disk() -> Heartbeat {
    let running = |n, e| running_execution(n, FIRST, e, false);
    Heartbeat {
        low_disk: true,
        returnable: vec![exec(1)],
        ..heartbeat("hangs", vec![running(0, 1), running(1, 2)])
    }
}

#[test]
fn execution_that_a_silent_disk_holds_is_returned_once_when_another_worker_is_idle() {
    let mut world = CoreFixture::remote(2, 2);
    watch(&mut world, 1, &[worker_with_silent_disk(), idle_worker()]);
    assert_eq!(stopped(&world), [(exec(1), StopLevel::Kill)], "the worker has waited for it");
    world.report(0, FIRST, 1, 1, lost(LostReason::Stopped));
    assert_eq!(world.offered().last(), Some(&(item(0), SECOND)), "it is offered again at once");
    let again = Heartbeat {
        low_disk: true,
        returnable: vec![exec(3)],
        ..heartbeat("hangs", vec![running_execution(0, SECOND, 3, false)])
    };
    watch(&mut world, 60, &[again, idle_worker()]);
    assert!(stopped(&world).iter().all(|(stopped, _)| *stopped != exec(3)), "once for each item");
}

#[test]
fn executions_that_a_silent_disk_holds_are_returned_as_far_as_others_have_room() {
    let mut world = CoreFixture::remote(3, 3);
    let held = [(0, 1), (1, 2), (2, 3)];
    let running = held.map(|(n, e)| running_execution(n, FIRST, e, false));
    let hangs = Heartbeat {
        low_disk: true,
        returnable: held.map(|(_, e)| exec(e)).to_vec(),
        ..heartbeat("hangs", running.to_vec())
    };
    let other = Heartbeat { free: 1, ..idle_worker() };
    watch(&mut world, 30, &[hangs.clone(), other.clone()]);
    let first = (exec(1), StopLevel::Kill);
    assert!(stopped(&world).contains(&first), "again until it has ended");
    assert!(stopped(&world).iter().all(|stop| *stop == first), "{:?}", stopped(&world));
    watch(&mut world, 30, &[hangs, Heartbeat { free: 3, ..other }]);
    for (_, e) in held {
        assert!(stopped(&world).contains(&(exec(e), StopLevel::Kill)), "{e}");
    }
}

#[test]
fn result_of_an_execution_that_was_given_back_is_no_second_result() {
    let mut world = CoreFixture::remote(2, 2);
    watch(&mut world, 1, &[worker_with_silent_disk(), idle_worker()]);
    world.report(0, FIRST, 1, 1, lost(LostReason::Stopped));
    world.report(0, SECOND, 3, 1, ReportBody::Started);
    // The worker that adopted the directory has found the result on the disk.
    world.report(0, FIRST, 1, 1, ok(0.0));
    assert_eq!(world.settled().len(), 0, "it waits for the newer execution");
    world.report(0, SECOND, 3, 1, ok(1.0));
    world.report(0, FIRST, 1, 1, ok(0.0));
    let by = world.settled().into_iter().map(|settled| settled.by.as_ref().map(|by| by.exec));
    assert_eq!(by.collect::<Vec<_>>(), [Some(exec(3))]);
    world.assert_replay_matches();
}

#[test]
fn executions_that_a_silent_disk_holds_stay_without_another_worker() {
    for other in [
        Heartbeat { free: 0, ..idle_worker() },
        Heartbeat { low_disk: true, ..idle_worker() },
        Heartbeat { store: "other".to_owned(), ..idle_worker() },
    ] {
        let mut world = CoreFixture::remote(2, 2);
        watch(&mut world, 60, &[worker_with_silent_disk(), other.clone()]);
        assert_eq!(stopped(&world), [], "{other:?}");
    }
}
