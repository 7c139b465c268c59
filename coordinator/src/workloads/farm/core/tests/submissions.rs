//! Tests of admission: repeated, conflicting, cancelled and refused groups.

use rollout_protocol::farm::{BusyLimit, GroupEnd};

use super::*;

#[test]
fn full_list_of_cancelled_ids_refuses_and_forgets_none() {
    let mut farm = FarmFixture::with_settings(|settings| settings.limits.cancelled_groups = 2);
    assert!(farm.cancel("unseen").unknown);
    farm.admit(request("open", 1));
    let busy = AdmissionRefusal::Busy { limit: BusyLimit::CancelledGroups, depth: 2, max: 2 };
    assert_eq!(farm.submit(request("more", 1)), Err(busy.clone()));
    assert_eq!(farm.try_cancel("other"), Err(busy));
    // An open group can always be cancelled.
    assert_eq!(farm.cancel("open").samples, 1);
    for known in ["open", "unseen"] {
        assert_eq!(farm.cancel(known).end, Some(GroupEnd::Cancelled));
        assert_eq!(farm.submit(request(known, 1)), Err(AdmissionRefusal::Cancelled));
    }
}

#[test]
fn same_request_again_changes_nothing_and_other_content_is_conflict() {
    let mut farm = FarmFixture::new();
    farm.admit(request("g", 2));
    let records = farm.journal.len();
    let known = SubmitReceipt { state: SubmittedGroup::Known, end: None };
    assert_eq!(farm.submit(request("g", 2)), Ok(known));
    let other = GroupRequest { priority: 1, ..request("g", 2) };
    assert_eq!(farm.submit(other.clone()), Err(AdmissionRefusal::Conflict));
    farm.restart();
    assert_eq!(farm.submit(request("g", 2)), Ok(known));
    assert_eq!(farm.submit(other), Err(AdmissionRefusal::Conflict));
    assert_eq!(farm.journal.len(), records);
    assert_eq!(farm.core.status().queued_samples, 2);
}

#[test]
fn ended_and_acknowledged_group_is_known_until_others_displace_it() {
    let mut farm = FarmFixture::with_settings(|settings| settings.limits.remembered_groups = 1);
    for name in ["a", "b"] {
        farm.admit(request(name, 1));
        let ordinal = farm.begin(1)[0];
        farm.settle(ordinal, Outcome::Reward(1.0));
        let cursor = farm.shown.last().expect("a completion").cursor;
        farm.acknowledge("train", &[cursor]);
        let end = Some(GroupEnd::Complete);
        let known = SubmitReceipt { state: SubmittedGroup::Known, end };
        assert_eq!(farm.submit(request(name, 1)), Ok(known));
        assert_eq!(farm.submit(request(name, 2)), Err(AdmissionRefusal::Conflict));
    }
    assert_eq!((farm.core.groups.len(), farm.forgotten), (0, 2));
    farm.compact();
    farm.restart();
    assert_eq!(farm.submit(request("b", 2)), Err(AdmissionRefusal::Conflict));
    farm.admit(request("a", 1));
    assert_eq!(farm.core.next_cursor, 3, "cursors are not used again");
}

#[test]
fn cancelled_id_stays_cancelled_for_groups_seen_and_unseen() {
    let mut farm = FarmFixture::with_settings(|settings| settings.limits.remembered_groups = 0);
    assert!(farm.cancel("unseen").unknown);
    farm.admit(request("seen", 2));
    assert_eq!(farm.cancel("seen"), CancelReceipt { samples: 2, ..CancelReceipt::default() });
    for ordinal in farm.running.clone() {
        farm.settle(ordinal, Outcome::CancelledByUser);
    }
    farm.acknowledge("train", &[1, 2]);
    farm.compact();
    farm.restart();
    assert!(farm.core.groups.is_empty());
    for name in ["seen", "unseen"] {
        assert_eq!(farm.submit(request(name, 2)), Err(AdmissionRefusal::Cancelled));
        assert_eq!(farm.cancel(name).end, Some(GroupEnd::Cancelled));
    }
}

#[test]
fn group_beyond_a_limit_is_refused_with_depth() {
    let limits =
        FarmLimits { open_groups: 2, open_samples: 5, unacknowledged: 6, ..FarmLimits::default() };
    let mut farm = FarmFixture::with_settings(|settings| settings.limits = limits);
    let invalid = farm.submit(request("large", 6)).expect_err("too large");
    assert!(matches!(invalid, AdmissionRefusal::Invalid { .. }) && !invalid.is_retryable());
    farm.admit(request("a", 3));
    let busy = |limit, depth, max| Err(AdmissionRefusal::Busy { limit, depth, max });
    assert_eq!(farm.submit(request("b", 3)), busy(BusyLimit::OpenSamples, 3, 5));
    farm.admit(request("b", 2));
    assert_eq!(farm.submit(request("c", 1)), busy(BusyLimit::OpenGroups, 2, 2));
    for ordinal in farm.begin(3) {
        farm.settle(ordinal, Outcome::Reward(1.0));
    }
    assert_eq!(farm.submit(request("c", 2)), busy(BusyLimit::Unacknowledged, 5, 6));
    farm.acknowledge("train", &[1]);
    farm.admit(request("c", 2));
}

#[test]
fn stale_group_is_refused_and_closed_farm_admits_none() {
    let bounds = StalenessBounds { admission: Some(1), ..StalenessBounds::default() };
    let mut farm = FarmFixture::with_settings(|settings| settings.staleness = bounds);
    farm.handle(FarmInput::PolicyVersion { id: 1, version: 5 });
    let stale = AdmissionRefusal::Stale { version: 3, newest: 5, bound: 1 };
    assert_eq!(farm.submit(GroupRequest { policy_version: 3, ..request("g", 1) }), Err(stale));
    farm.admit(GroupRequest { policy_version: 4, ..request("g", 1) });
    farm.handle(FarmInput::Close { id: 2 });
    assert_eq!(farm.submit(request("h", 1)), Err(AdmissionRefusal::Closed));
    assert!(!farm.core.is_over());
    let ordinal = farm.begin(1)[0];
    farm.settle(ordinal, Outcome::Truncated);
    farm.acknowledge("train", &[1]);
    assert!(farm.core.is_over());
}

#[test]
fn acknowledgement_is_of_the_completions_of_its_consumer() {
    let consumers = vec!["train".to_owned(), "eval".to_owned()];
    let mut farm = FarmFixture::with_settings(|settings| settings.consumers = consumers);
    farm.admit(request("a", 1));
    farm.admit(GroupRequest { consumer: Some("eval".to_owned()), ..request("b", 1) });
    for ordinal in farm.begin(2) {
        farm.settle(ordinal, Outcome::Reward(0.0));
    }
    let receipt = farm.acknowledge("train", &[1, 2, 3, 1]);
    assert_eq!(receipt, AckReceipt { acknowledged: 1, repeated: 1, unknown: 2 });
    let receipt = farm.acknowledge("train", &[1]);
    assert_eq!(receipt, AckReceipt { acknowledged: 0, repeated: 1, unknown: 0 });
    let left: Vec<u64> = farm.core.completions().map(|completion| completion.cursor).collect();
    assert_eq!(left, [2]);
}

/// A request whose metadata is about as large as it may be for its 64 samples.
fn heavy(name: &str) -> GroupRequest {
    let text = serde_json::Value::String("x".repeat(262_000));
    let metadata = Arc::new([("prompt".to_owned(), text)].into_iter().collect());
    GroupRequest { metadata, ..request(name, 64) }
}

fn is_full(refused: &AdmissionRefusal) -> bool {
    matches!(refused, AdmissionRefusal::Busy { limit: BusyLimit::HeldBytes, .. })
}

#[test]
fn metadata_of_all_samples_is_bounded_over_the_groups_of_a_farm() {
    let mut farm = FarmFixture::new();
    for n in 0..31 {
        farm.admit(heavy(&format!("g{n}")));
    }
    farm.admit(request("without", 64));
    let refused = farm.submit(heavy("more")).and_then(|_| farm.submit(heavy("last")));
    assert!(is_full(&refused.expect_err("as much as it may hold")));
    let cancelled = farm.core.open_groups();
    for group in &cancelled {
        assert_eq!(farm.cancel(group.as_str()).samples, 64);
    }
    assert!(farm.submit(heavy("last")).is_err(), "its completions are not acknowledged");

    farm.compact();
    farm.restart();
    let mut completions = 0;
    for (_, record) in &farm.journal {
        if let FarmRecord::SnapshotCompletions { completions: those } = record {
            assert!(those.iter().all(|one| one.metadata.is_empty()), "the group has it");
            completions += those.len();
        }
    }
    assert_eq!(completions, cancelled.len() * 64);
    farm.acknowledge("train", &(1..=64).collect::<Vec<_>>());
    assert!(farm.submit(heavy("last")).is_err(), "its executions have not ended");
    for ordinal in farm.running.clone() {
        farm.settle(ordinal, Outcome::CancelledByUser);
    }
    farm.admit(heavy("last"));
}

#[test]
fn sampling_parameters_are_bounded_over_the_groups_of_a_farm_by_their_values() {
    let mut farm = FarmFixture::new();
    let values = 100_000;
    let sampling: serde_json::Map<_, _> =
        [("x".to_owned(), vec![0; values].into())].into_iter().collect();
    let mut admitted = 0;
    let refused = loop {
        let request =
            GroupRequest { sampling: sampling.clone(), ..request(&format!("g{admitted}"), 1) };
        match farm.submit(request) {
            Ok(_) => admitted += 1,
            Err(refused) => break refused,
        }
        assert!(admitted < 200, "{admitted} groups of {values} values");
    };
    assert!(is_full(&refused), "{refused}");
    assert!(admitted > 50, "{admitted}");
}

#[test]
fn completions_read_from_journal_share_the_metadata_of_their_group() {
    let mut farm = FarmFixture::new();
    let metadata = Arc::new([("row".to_owned(), 7.into())].into_iter().collect());
    farm.admit(GroupRequest { metadata, ..request("g", 3) });
    farm.cancel("g");
    for is_compacted in [false, true] {
        if is_compacted {
            farm.compact();
        }
        let text = serde_json::to_string(&farm.journal).expect("JSON");
        assert_eq!(text.matches(r#""row":7"#).count(), 1, "only the record of the group has it");
        farm.journal = serde_json::from_str(&text).expect("its records");
        farm.restart();
        let metadata = &farm.core.groups[&group_id("g")].request().metadata;
        assert_eq!(metadata["row"], 7);
        let mut read = farm.core.completions();
        assert!(read.all(|one| Arc::ptr_eq(&one.metadata, metadata)), "{is_compacted}");
        assert_eq!(farm.core.completions().count(), 3);
    }
}

#[test]
fn completions_of_an_earlier_version_with_metadata_share_that_of_their_group() {
    let mut farm = FarmFixture::new();
    let metadata = Arc::new([("row".to_owned(), 7.into())].into_iter().collect());
    farm.admit(GroupRequest { metadata: Arc::clone(&metadata), ..request("g", 3) });
    farm.cancel("g");
    for (_, record) in &mut farm.journal {
        if let FarmRecord::Completed { completions } = record {
            completions.iter_mut().for_each(|one| one.metadata = Arc::clone(&metadata));
        }
    }
    let text = serde_json::to_string(&farm.journal).expect("JSON");
    assert_eq!(text.matches(r#""row":7"#).count(), 4);
    farm.journal = serde_json::from_str(&text).expect("its records");
    farm.restart();
    let metadata = &farm.core.groups[&group_id("g")].request().metadata;
    assert_eq!(farm.core.completions().count(), 3);
    assert!(farm.core.completions().all(|one| Arc::ptr_eq(&one.metadata, metadata)));
}
