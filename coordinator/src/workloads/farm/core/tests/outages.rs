//! Tests of outages: refills are parked, and a probe at a time finds the end.

use rollout_protocol::farm::GroupEnd;

use super::*;

/// Begins what may begin, and lets an outage end it; returns how many samples began.
fn lose(farm: &mut FarmFixture) -> usize {
    let begun = farm.begin(99);
    for ordinal in &begun {
        farm.settle(*ordinal, Outcome::Outage);
    }
    begun.len()
}

#[test]
fn outage_uses_up_no_refill_and_begins_one_probe_at_a_time() {
    let mut farm = FarmFixture::new();
    farm.admit(GroupRequest { max_refills: Some(1), ..request("g", 4) });
    assert_eq!(lose(&mut farm), 4);
    assert_eq!((farm.begin(99).len(), farm.core.status().queued_samples), (0, 4));
    let mut probes = 0;
    for _ in 0..600 {
        farm.wait(1_000);
        probes += lose(&mut farm);
    }
    // Pauses of 1, 2, 4, … 60 seconds.
    assert!((10..20).contains(&probes), "{probes} probes in ten minutes");
    assert!(farm.shown.is_empty());
    assert_eq!(farm.core.group_status(&group_id("g")).map(|group| group.refills), Some(0));

    farm.wait(60_000);
    let probe = farm.begin(99);
    assert_eq!(probe.len(), 1);
    farm.settle(probe[0], Outcome::Reward(1.0));
    let rest = farm.begin(99);
    assert_eq!(rest.len(), 3);
    farm.settle(rest[0], Outcome::Lost);
    let refill = farm.begin(99);
    farm.settle(refill[0], Outcome::Lost);
    farm.settle(rest[1], Outcome::Reward(1.0));
    farm.settle(rest[2], Outcome::Reward(1.0));
    assert_eq!(farm.last_end(), Some(GroupEnd::Complete));
    assert_eq!(farm.outcomes().iter().filter(|end| **end == "no_result").count(), 1);
}

#[test]
fn deadline_stands_during_an_outage() {
    let mut farm = FarmFixture::new();
    farm.admit(GroupRequest { deadline_sec: Some(30), ..request("g", 2) });
    assert_eq!(lose(&mut farm), 2);
    farm.wait(30_000);
    assert_eq!(farm.outcomes(), ["cancelled", "cancelled"]);
    assert_eq!((farm.begin(99).len(), farm.core.next_due()), (0, None));
}

#[test]
fn probe_follows_a_restart_and_a_pause() {
    let mut farm = FarmFixture::new();
    farm.admit(request("g", 2));
    assert_eq!(lose(&mut farm), 2);
    farm.restart();
    assert_eq!(farm.begin(99).len(), 0);
    let id = farm.next_id();
    farm.handle(FarmInput::Pause { id });
    farm.wait(100_000);
    assert_eq!((farm.begin(99).len(), farm.core.next_due()), (0, None));
    let id = farm.next_id();
    farm.handle(FarmInput::Resume { id, version: None });
    farm.wait(1_000);
    assert_eq!(farm.begin(99).len(), 1);
}

#[test]
fn cancelled_probe_gives_way_to_the_next() {
    let mut farm = FarmFixture::new();
    farm.admit(request("g", 1));
    farm.admit(request("h", 1));
    assert_eq!(lose(&mut farm), 2);
    farm.wait(1_000);
    assert_eq!(farm.begin(99).len(), 1);
    farm.cancel("g");
    farm.wait(1_000);
    assert_eq!(farm.begin(99).len(), 1);
}
