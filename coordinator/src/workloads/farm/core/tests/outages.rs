//! Tests of outages: refills are parked, and probes find the end, or that a sample has a fault of its
//! own.

use rollout_protocol::farm::{GroupEnd, OutageCause, SlotOutage};

use super::super::outage::SPARED_LOSSES;
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
fn refill_that_is_parked_without_its_outage_is_due_at_once_and_hides_no_deadline() {
    let mut farm = FarmFixture::new();
    farm.admit(GroupRequest { deadline_sec: Some(30), ..request("g", 1) });
    let begun = farm.begin(1);
    let slot = SlotOutage { cause: OutageCause::DiskFull, losses: 1, is_parked: true };
    farm.core.park(begun[0], slot);
    let (now, due) = (farm.now(), farm.core.next_due());
    assert!(due.is_some_and(|due| due <= now), "{due:?}");
    farm.core.begin_probes(now);
    assert_eq!(farm.begin(1), begun);
    assert!(farm.core.next_due().is_some_and(|due| due > now), "the deadline");
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

/// The group and generation of a sample.
fn named(farm: &FarmFixture, ordinal: u64) -> (String, u32) {
    let key = farm.core.sample(ordinal).expect("a sample");
    (key.group.to_string(), key.generation)
}

#[test]
fn lasting_fault_of_a_sample_uses_refills_after_the_spared_ones() {
    let mut farm = FarmFixture::new();
    farm.admit(GroupRequest { max_refills: Some(2), ..request("g", 1) });
    let mut minutes = 0;
    while farm.shown.is_empty() {
        lose(&mut farm);
        farm.wait(60_000);
        minutes += 1;
        assert!(minutes < 60, "it never ends");
    }
    assert_eq!((farm.outcomes(), farm.last_end()), (vec!["no_result"], Some(GroupEnd::Complete)));
    assert_eq!(farm.shown[0].sample.generation, SPARED_LOSSES + 3, "two refills and the first");
    assert_eq!(farm.shown[0].result.reward, None);
}

#[test]
fn outage_of_a_group_spares_every_one_of_its_samples() {
    let mut farm = FarmFixture::new();
    farm.admit(request("g", 8));
    for _ in 0..60 {
        lose(&mut farm);
        farm.wait(60_000);
    }
    let status = farm.core.group_status(&group_id("g")).expect("known");
    assert_eq!((status.refills, status.open), (0, 8), "probes take turns");
}

#[test]
fn healthy_samples_beside_a_faulty_one_begin_no_probe_of_it() {
    let mut farm = FarmFixture::new();
    farm.admit(request("faulty", 1));
    lose(&mut farm);
    farm.admit(request("healthy", 3));
    for ordinal in farm.begin(99) {
        farm.settle(ordinal, Outcome::Reward(1.0));
        assert!(farm.begin(99).is_empty(), "only a probe shows the end");
    }
    farm.wait(1_000);
    assert_eq!(farm.begin(99).len(), 1);
}

#[test]
fn end_of_an_outage_releases_what_it_parked_alone() {
    let mut farm = FarmFixture::new();
    farm.admit(request("disk", 2));
    let disk = farm.begin(2);
    farm.admit(request("model", 2));
    let model = farm.begin(2);
    disk.into_iter().for_each(|ordinal| farm.settle(ordinal, Outcome::Outage));
    model.into_iter().for_each(|ordinal| farm.settle(ordinal, Outcome::ModelOutage));
    farm.wait(1_000);
    let probes = farm.begin(99);
    assert_eq!(probes.len(), 2, "one of each outage");
    let is_model = |ordinal: &&u64| named(&farm, **ordinal).0 == "model";
    let probe = *probes.iter().find(is_model).expect("a probe of the model server");
    farm.settle(probe, Outcome::Reward(1.0));
    let released: Vec<_> = farm.begin(99).into_iter().map(|of| named(&farm, of)).collect();
    assert_eq!(released, [("model".to_owned(), 2u32)]);
}

#[test]
fn faulty_sample_keeps_no_other_back_and_its_pause_when_released() {
    let mut farm = FarmFixture::new();
    farm.admit(GroupRequest { priority: 5, ..request("faulty", 1) });
    farm.admit(request("other", 1));
    assert_eq!(lose(&mut farm), 2);
    farm.wait(1_000);
    assert_eq!(lose(&mut farm), 1, "the first in order");
    farm.wait(2_000);
    let probe = farm.begin(99);
    assert_eq!(named(&farm, probe[0]), ("other".to_owned(), 2), "now the other");
    farm.settle(probe[0], Outcome::Reward(1.0));
    assert_eq!(lose(&mut farm), 1, "the faulty one is released");
    farm.wait(3_999);
    assert!(farm.begin(99).is_empty());
    farm.wait(1);
    assert_eq!(farm.begin(99).len(), 1, "its third loss was followed by four seconds");
}

#[test]
fn probe_that_runs_long_lets_the_next_begin() {
    let mut farm = FarmFixture::new();
    farm.admit(request("g", 3));
    lose(&mut farm);
    farm.wait(1_000);
    assert_eq!(farm.begin(99).len(), 1);
    farm.wait(59_999);
    assert!(farm.begin(99).is_empty());
    farm.wait(1);
    assert_eq!(farm.begin(99).len(), 1);
}

#[test]
fn snapshot_keeps_parked_refills_and_the_pause_of_probes() {
    let mut farm = FarmFixture::new();
    farm.admit(request("g", 3));
    for _ in 0..3 {
        lose(&mut farm);
        farm.wait(10_000);
    }
    lose(&mut farm);
    let due = farm.core.next_due();
    assert!(due.is_some_and(|due| due > farm.now()));
    farm.compact();
    farm.restart();
    assert_eq!((farm.begin(99), farm.core.next_due()), (Vec::new(), due));
    assert_eq!(farm.core.status().queued_samples, 3);
    farm.wait(60_000);
    let probe = farm.begin(99);
    assert_eq!(probe.len(), 1);
    farm.compact();
    farm.restart();
    farm.settle(probe[0], Outcome::Reward(1.0));
    assert_eq!(farm.begin(99).len(), 2);
    farm.compact();
    farm.restart();
    assert_eq!(farm.running.len(), 2);
}
