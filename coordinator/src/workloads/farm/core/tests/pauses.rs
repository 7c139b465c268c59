//! Tests of deadlines and pauses.

use super::*;

fn with_deadline(name: &str, seconds: u64) -> GroupRequest {
    GroupRequest { deadline_sec: Some(seconds), ..request(name, 1) }
}

#[test]
fn deadline_ends_samples_that_have_not_ended() {
    let mut farm = FarmFixture::new();
    farm.admit(with_deadline("g", 10));
    assert_eq!(farm.core.next_due().expect("a deadline").as_millisecond(), 1_010_000);
    farm.wait(9_999);
    assert!(farm.shown.is_empty());
    farm.wait(1);
    let deadline = SampleEnd::Cancelled { reason: CancelReason::Deadline };
    assert_eq!(farm.shown[0].result.end, deadline);
    assert_eq!(farm.core.next_due(), None);
}

#[test]
fn time_of_a_pause_counts_towards_no_deadline() {
    let mut farm = FarmFixture::new();
    farm.admit(with_deadline("before", 10));
    farm.wait(4_000);
    farm.handle(FarmInput::Pause { id: 1 });
    assert_eq!((farm.core.next_due(), farm.begin(1)), (None, Vec::new()));
    farm.wait(10_000);
    farm.admit(with_deadline("within", 10));
    farm.restart();
    farm.wait(20_000);
    farm.compact();
    farm.restart();
    farm.handle(FarmInput::Resume { id: 2, version: Some(3) });
    assert_eq!(farm.core.status().policy_version, 3);
    assert_eq!(farm.begin(1).len(), 1);
    farm.wait(5_999);
    assert!(farm.shown.is_empty());
    farm.wait(1);
    assert_eq!(farm.shown[0].sample.group, group_id("before"));
    farm.wait(3_999);
    assert_eq!(farm.shown.len(), 1);
    farm.wait(1);
    assert_eq!(farm.shown[1].sample.group, group_id("within"));
}

#[test]
fn pause_and_resume_again_change_nothing() {
    let mut farm = FarmFixture::new();
    for _ in 0..2 {
        farm.handle(FarmInput::Pause { id: 1 });
    }
    let records = farm.journal.len();
    farm.handle(FarmInput::Resume { id: 2, version: None });
    farm.handle(FarmInput::Resume { id: 3, version: None });
    assert_eq!(farm.journal.len(), records + 1);
}

#[test]
fn clock_set_back_between_sessions_lengthens_no_deadline() {
    for compacts in [false, true] {
        let mut farm = FarmFixture::new();
        farm.admit(with_deadline("former", 10));
        farm.wait(4_000);
        farm.admit(with_deadline("latter", 10));
        if compacts {
            farm.compact();
        }
        farm.restart_at(-86_400_000);
        assert_eq!(farm.now_ms, 1_004_000);
        farm.wait(5_999);
        assert!(farm.shown.is_empty());
        farm.wait(1);
        assert_eq!(farm.shown[0].sample.group, group_id("former"));
        farm.wait(4_000);
        assert_eq!(farm.shown[1].sample.group, group_id("latter"));
    }
}

#[test]
fn clock_set_back_between_sessions_keeps_length_of_pause() {
    let mut farm = FarmFixture::new();
    farm.admit(with_deadline("g", 10));
    farm.wait(4_000);
    farm.handle(FarmInput::Pause { id: 1 });
    farm.compact();
    farm.restart_at(0);
    farm.wait(20_000);
    farm.handle(FarmInput::Resume { id: 2, version: None });
    farm.wait(5_999);
    assert!(farm.shown.is_empty());
    farm.wait(1);
    assert_eq!(farm.shown.len(), 1);
}

#[test]
fn time_between_sessions_counts_towards_deadlines() {
    let mut farm = FarmFixture::new();
    farm.admit(with_deadline("g", 10));
    farm.restart_at(1_009_999);
    assert!(farm.shown.is_empty());
    farm.restart_at(1_010_000);
    assert_eq!(farm.outcomes(), ["cancelled"]);
}
