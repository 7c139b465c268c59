//! Tests of whole groups: completion, refills, and sessions that follow one another.

use rollout_protocol::farm::{AdmissionRefusal, FarmLimits, GroupEnd, SampleEnd, SubmittedGroup};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn groups_complete_and_farm_ends_when_everything_is_acknowledged() {
    let fixture = FarmFixture::new(|_| Verdict::completed(1.0)).await;
    let farm = fixture.open();
    for group in ["a", "b", "c"] {
        let receipt = farm.submit(request(group, 4)).await.expect("admitted");
        assert_eq!(receipt.state, SubmittedGroup::Admitted);
    }
    let completions = farm.read(0, 12).await;
    let cursors: Vec<u64> = completions.iter().map(|one| one.cursor).collect();
    assert_eq!(cursors, (1..=12).collect::<Vec<_>>());
    assert!(completions.iter().all(|one| one.usable && one.result.reward == Some(1.0)));
    assert!(completions.iter().all(|one| one.result.execution.is_some()));
    let ends = completions.iter().filter(|one| one.group_end == Some(GroupEnd::Complete));
    assert_eq!(ends.count(), 3);
    assert_eq!(farm.read(5, 7).await, completions[5..]);
    farm.handle.acknowledge("train", vec![6, 8]).await.expect("acknowledged");
    let left: Vec<u64> = farm.read(5, 5).await.iter().map(|one| one.cursor).collect();
    assert_eq!(left, [7, 9, 10, 11, 12]);
    let outcome = farm.close().await;
    assert_eq!((outcome.cancelled, outcome.pending), (false, 0));
    assert_eq!(fixture.executions.load(Ordering::Relaxed), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_farm_with_nothing_to_do_is_not_over() {
    let fixture = FarmFixture::new(|_| Verdict::completed(1.0)).await;
    for (group, level) in [("a", StopLevel::Drain), ("b", StopLevel::Kill)] {
        let farm = fixture.open();
        farm.submit(request(group, 2)).await.expect("admitted");
        let cursors = farm.read(0, 2).await.iter().map(|one| one.cursor).collect();
        farm.handle.acknowledge("train", cursors).await.expect("acknowledged");
        let outcome = farm.stop(level).await;
        assert_eq!((outcome.cancelled, outcome.pending), (true, 0), "{level:?}");
    }
    let farm = fixture.open();
    farm.submit(request("c", 1)).await.expect("admitted");
    assert_eq!(farm.read(0, 1).await[0].sample.group, group_id("c"));
    assert!(!farm.close().await.cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn next_session_shows_the_same_completions_except_acknowledged_ones() {
    let fixture = FarmFixture::new(|_| Verdict::completed(0.5)).await;
    let farm = fixture.open();
    farm.submit(request("a", 5)).await.expect("admitted");
    let completions = farm.read(0, 5).await;
    farm.handle.acknowledge("train", vec![2, 3]).await.expect("acknowledged");
    farm.handle.pause().await.expect("paused");
    farm.submit(request("b", 2)).await.expect("admitted");
    let handle = farm.handle.clone();
    farm.stop(StopLevel::Kill).await;
    assert!(handle.pause().await.is_err(), "the session has ended");

    let farm = fixture.open();
    // A reader may come before the session has decided anything.
    assert_eq!(farm.read(0, 1).await, completions[..1]);
    let again = farm.submit(request("a", 5)).await.expect("known");
    assert_eq!((again.state, again.end), (SubmittedGroup::Known, Some(GroupEnd::Complete)));
    assert!(farm.status_is_paused());
    let expected: Vec<_> = [0, 3, 4].map(|at| Arc::clone(&completions[at])).to_vec();
    assert_eq!(farm.read_all().await, expected);
    farm.handle.resume(Some(1)).await.expect("resumed");
    let new = farm.read(5, 2).await;
    assert_eq!(new[0].sample.group, group_id("b"));
    assert_eq!(new[0].policy.ended, 1);
    assert_eq!(farm.close().await.pending, 0);
    assert_eq!(fixture.executions.load(Ordering::Relaxed), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_samples_cost_few_more_executions_than_failures() {
    // Every third execution is lost.
    let fixture =
        FarmFixture::new(|n| if n % 3 == 0 { lost() } else { Verdict::completed(1.0) }).await;
    let farm = fixture.open();
    let (groups, n) = (10, 8);
    for group in 0..groups {
        let limit = Some(100);
        let request = GroupRequest { max_refills: limit, ..request(&format!("g{group}"), n) };
        farm.submit(request).await.expect("admitted");
    }
    let completions = farm.read(0, (groups * n) as usize).await;
    assert!(completions.iter().all(|one| one.usable));
    let refills = farm.handle.status().totals.refills;
    assert!(completions.iter().any(|one| one.sample.generation > 1));
    farm.close().await;
    let executions = u64::from(fixture.executions.load(Ordering::Relaxed));
    assert_eq!(executions, u64::from(groups * n) + refills);
    let expected = f64::from(groups * n) * 1.5;
    assert!((executions as f64 - expected).abs() <= 2.0, "{executions} for {expected}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_and_refused_groups_run_nothing() {
    let fixture = FarmFixture::new(|_| Verdict::completed(1.0)).await;
    let limits = FarmLimits { open_samples: 4, ..FarmLimits::default() };
    let settings = FarmSettings { limits, ..FarmSettings::new("f") };
    let farm = fixture.open_in(&fixture.run_dir(), settings);
    assert!(
        farm.handle.cancel(group_id("unseen")).await.expect("open").expect("cancelled").unknown
    );
    let refused = farm.submit(request("unseen", 1)).await.expect_err("refused");
    assert!(matches!(refused, SubmitError::Refused(AdmissionRefusal::Cancelled)));
    farm.handle.pause().await.expect("paused");
    farm.submit(request("a", 3)).await.expect("admitted");
    let refused = farm.submit(request("b", 2)).await.expect_err("refused");
    assert!(matches!(refused, SubmitError::Refused(AdmissionRefusal::Busy { depth: 3, .. })));
    assert_eq!(
        farm.handle.cancel(group_id("a")).await.expect("open").expect("cancelled").samples,
        3
    );
    let completions = farm.read(0, 3).await;
    let is_cancelled = |one: &Arc<Completion>| {
        matches!(one.result.end, SampleEnd::Cancelled { .. }) && one.result.reward.is_none()
    };
    assert!(completions.iter().all(is_cancelled));
    farm.handle.resume(None).await.expect("resumed");
    assert_eq!(farm.close().await.pending, 0);
    assert_eq!(fixture.executions.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline_ends_samples_without_a_trainer() {
    let fixture = FarmFixture::new(|_| Verdict::completed(1.0)).await;
    let settings = FarmSettings::new("f");
    let farm = fixture.open_in(&fixture.run_dir(), settings);
    farm.handle.pause().await.expect("paused");
    let request = GroupRequest { deadline_sec: Some(0), ..request("a", 1) };
    farm.submit(request).await.expect("admitted");
    assert!(farm.read_all().await.is_empty(), "no deadline passes during a pause");
    farm.handle.resume(None).await.expect("resumed");
    let completion = farm.read(0, 1).await.remove(0);
    assert_eq!(completion.result.end.as_str(), "cancelled");
    farm.close().await;
}
