//! Tests of the ends of groups: early stop, drop, cancellation and staleness.

use rollout_protocol::farm::GroupEnd;

use super::*;

#[test]
fn enough_usable_samples_cancel_the_rest() {
    let mut farm = FarmFixture::new();
    farm.admit(GroupRequest { min_usable: Some(2), ..request("g", 4) });
    let begun = farm.begin(3);
    farm.settle(begun[0], Outcome::AgentFailed);
    farm.settle(begun[1], Outcome::Reward(0.0));
    assert_eq!(farm.outcomes(), ["no_result", "completed"]);
    farm.begin(1);
    farm.settle(begun[2], Outcome::Reward(1.0));
    assert_eq!(farm.outcomes(), ["no_result", "completed", "completed", "cancelled"]);
    assert_eq!(farm.last_end(), Some(GroupEnd::Complete));
    let last = &farm.shown[3];
    assert_eq!(last.result.end, SampleEnd::Cancelled { reason: CancelReason::EnoughUsable });
    assert_eq!(farm.running.len(), 1, "the run cancels the last one");
    assert_eq!(farm.core.ending(), farm.running);
}

#[test]
fn dropped_group_ends_at_first_loss() {
    let mut farm = FarmFixture::new();
    farm.admit(GroupRequest { group_policy: GroupPolicy::Drop, ..request("g", 3) });
    let begun = farm.begin(3);
    farm.settle(begun[0], Outcome::AgentFailed);
    assert_eq!(farm.last_end(), None, "a failure of the agent is a result");
    farm.settle(begun[1], Outcome::Lost);
    assert_eq!(farm.outcomes(), ["no_result", "no_result", "cancelled"]);
    assert_eq!(farm.last_end(), Some(GroupEnd::Dropped));
}

#[test]
fn dropped_group_with_min_usable_ends_when_it_cannot_reach_it() {
    let mut farm = FarmFixture::new();
    let (group_policy, min_usable) = (GroupPolicy::Drop, Some(2));
    farm.admit(GroupRequest { group_policy, min_usable, ..request("g", 3) });
    let begun = farm.begin(3);
    farm.settle(begun[0], Outcome::Lost);
    assert_eq!(farm.last_end(), None, "two are possible");
    farm.settle(begun[1], Outcome::Truncated);
    assert_eq!(farm.last_end(), Some(GroupEnd::Dropped));
    assert_eq!(farm.shown[2].sample.index, 2);
}

#[test]
fn group_as_is_ends_with_what_it_has() {
    let mut farm = FarmFixture::new();
    farm.admit(GroupRequest { group_policy: GroupPolicy::AsIs, ..request("g", 2) });
    let begun = farm.begin(2);
    farm.settle(begun[0], Outcome::Lost);
    farm.settle(begun[1], Outcome::Reward(1.0));
    assert_eq!(farm.outcomes(), ["no_result", "completed"]);
    assert_eq!((farm.last_end(), farm.core.totals.refills), (Some(GroupEnd::Complete), 0));
}

#[test]
fn result_after_cancellation_is_kept_and_does_not_count() {
    let mut farm = FarmFixture::new();
    farm.admit(request("g", 2));
    let begun = farm.begin(1);
    assert_eq!(farm.cancel("g").samples, 2);
    assert_eq!(farm.last_end(), Some(GroupEnd::Cancelled));
    farm.restart();
    farm.settle(begun[0], Outcome::Reward(1.0));
    let is_late = |(_, record): &(Timestamp, FarmRecord)| matches!(record, FarmRecord::Late(late) if late.result.reward == Some(1.0));
    assert!(farm.journal.iter().any(is_late));
    assert_eq!(farm.outcomes(), ["cancelled", "cancelled"]);
    assert_eq!((farm.core.totals.late, farm.core.totals.usable), (1, 0));
}

#[test]
fn old_policy_version_ends_samples_by_where_they_are() {
    let bounds =
        StalenessBounds { queue: Some(1), in_flight: Some(2), ..StalenessBounds::default() };
    let mut farm = FarmFixture::with_settings(|settings| settings.staleness = bounds);
    farm.handle(FarmInput::PolicyVersion { id: 1, version: 10 });
    farm.admit(GroupRequest { policy_version: 10, ..request("g", 3) });
    let begun = farm.begin(1);
    farm.handle(FarmInput::PolicyVersion { id: 2, version: 11 });
    assert!(farm.shown.is_empty());
    farm.handle(FarmInput::PolicyVersion { id: 3, version: 12 });
    assert_eq!(farm.shown.len(), 2, "those that wait");
    let stale = SampleEnd::Cancelled { reason: CancelReason::Stale };
    assert!(farm.shown.iter().all(|completion| completion.result.end == stale));
    farm.restart();
    farm.handle(FarmInput::PolicyVersion { id: 4, version: 12 });
    assert_eq!(farm.shown.len(), 2);
    farm.handle(FarmInput::PolicyVersion { id: 5, version: 13 });
    let last = farm.shown.last().expect("the one that ran");
    assert_eq!(last.sample.index, 0);
    let versions = (last.policy.requested, last.policy.admitted, last.policy.ended);
    assert_eq!(versions, (10, 10, 13));
    assert!(farm.running.contains(&begun[0]), "the run still cancels it");
    let known = farm.core.status().policy_version;
    farm.handle(FarmInput::PolicyVersion { id: 6, version: 4 });
    assert_eq!(farm.core.status().policy_version, known, "an older one changes nothing");
}

#[test]
fn samples_begin_by_priority_then_by_admission() {
    let mut farm = FarmFixture::new();
    farm.admit(request("a", 2));
    farm.admit(GroupRequest { priority: 5, ..request("b", 1) });
    farm.admit(request("c", 1));
    let groups: Vec<String> = farm
        .begin(9)
        .into_iter()
        .map(|ordinal| farm.core.sample(ordinal).expect("known").to_string())
        .collect();
    assert_eq!(groups, ["f/b/0.1", "f/a/0.1", "f/a/1.1", "f/c/0.1"]);
}

#[test]
fn group_of_an_earlier_version_with_much_metadata_ends_in_one_short_record() {
    let mut farm = FarmFixture::new();
    let text = serde_json::Value::String("x".repeat(100_000));
    let metadata = Arc::new([("prompt".to_owned(), text)].into_iter().collect());
    let request = GroupRequest { metadata, ..request("g", 400) };
    let record = FarmRecord::Admitted(Box::new(admitted(request)));
    farm.core.apply(farm.now(), &record, &mut Vec::new());
    farm.journal.push((farm.now(), record));
    assert_eq!(farm.cancel("g").samples, 400);
    let lengths: Vec<_> = farm
        .journal
        .iter()
        .filter(|(_, record)| matches!(record, FarmRecord::Completed { .. }))
        .map(|(_, record)| serde_json::to_string(record).expect("JSON").len())
        .collect();
    assert!(lengths.len() == 1 && lengths[0] < 400 * 400, "{lengths:?}");
    assert!(farm.shown.iter().all(|one| one.metadata.contains_key("prompt")));
    farm.restart();
    assert_eq!(farm.last_end(), Some(GroupEnd::Cancelled));
}
