//! Tests of farms whose journal is compacted while they run.

use std::fs;

use rollout_engine::journal;
use rollout_protocol::farm::{AdmissionRefusal, FarmLimits, SubmittedGroup};

use super::*;

/// Compacts whenever a batch has been written.
fn compacting() -> FarmSettings {
    let limits = FarmLimits { journal_bytes: 1, ..FarmLimits::default() };
    FarmSettings { limits, ..FarmSettings::new("f") }
}

fn segments(run_dir: &Path) -> Vec<u32> {
    journal::segment_epochs(&RunLayout::new(run_dir)).expect("a journal")
}

fn newest_bytes(run_dir: &Path) -> u64 {
    let newest = *segments(run_dir).last().expect("a segment");
    fs::metadata(RunLayout::new(run_dir).segment(newest)).expect("a segment").len()
}

#[tokio::test(flavor = "multi_thread")]
async fn compacted_journal_keeps_state_and_forgets_acknowledged_groups() {
    // Every fifth execution is lost.
    let fixture =
        FarmFixture::new(|n| if n % 5 == 0 { lost() } else { Verdict::completed(1.0) }).await;
    let run_dir = fixture.run_dir();
    let mut after = 0;
    let mut sizes = Vec::new();
    for session in 0..3 {
        let farm = fixture.open_in(&run_dir, compacting());
        assert_eq!(
            farm.handle.cancel(group_id("never")).await.expect("open").expect("cancelled").samples,
            0
        );
        for round in 0..6 {
            let group = format!("g{session}-{round}");
            let limit = Some(100);
            let wanted = GroupRequest { max_refills: limit, ..request(&group, 3) };
            farm.submit(wanted.clone()).await.expect("admitted");
            let completions = farm.read(after, 3).await;
            let cursors: Vec<u64> = completions.iter().map(|one| one.cursor).collect();
            assert_eq!(cursors, [after + 1, after + 2, after + 3]);
            assert!(completions.iter().all(|one| one.sample.group == group_id(&group)));
            let receipt = farm.handle.acknowledge("train", cursors).await.expect("it runs");
            assert_eq!(receipt.acknowledged, 3);
            after += 3;
            let again = farm.submit(wanted).await.expect("known");
            assert_eq!(again.state, SubmittedGroup::Known);
        }
        let refused = farm.submit(request("never", 1)).await.expect_err("refused");
        assert!(matches!(refused, SubmitError::Refused(AdmissionRefusal::Cancelled)));
        farm.stop(StopLevel::Kill).await;
        sizes.push(newest_bytes(&run_dir));
        let epochs = segments(&run_dir);
        assert!(epochs.len() <= 2 && epochs[0] > 3, "former segments are gone: {epochs:?}");
    }
    // The ids of twelve groups and the openings of two sessions are all that is added: with its samples,
    // a group would be some thousand bytes.
    assert!(sizes[2] - sizes[0] < 12 * 400, "{sizes:?}");
    let farm = fixture.open_in(&run_dir, compacting());
    let known = farm.submit(GroupRequest { max_refills: Some(100), ..request("g0-0", 3) }).await;
    assert_eq!(known.expect("known").state, SubmittedGroup::Known);
    let status = farm.handle.status();
    assert_eq!((status.last_cursor, status.totals.groups), (after, 18));
    assert_eq!(farm.close().await.pending, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_completions_and_unfinished_samples_survive_compactions() {
    let fixture = FarmFixture::new(|_| Verdict::completed(0.25)).await;
    let run_dir = fixture.run_dir();
    let farm = fixture.open_in(&run_dir, compacting());
    farm.submit(request("read", 2)).await.expect("admitted");
    farm.submit(request("unread", 2)).await.expect("admitted");
    let completions = farm.read(0, 4).await;
    farm.handle.acknowledge("train", vec![1]).await.expect("acknowledged");
    farm.handle.pause().await.expect("paused");
    farm.submit(request("waiting", 3)).await.expect("admitted");
    farm.handle.set_policy_version(7).await.expect("it runs");
    farm.stop(StopLevel::Kill).await;
    assert!(segments(&run_dir)[0] > 1, "it was compacted");

    let farm = fixture.open_in(&run_dir, compacting());
    let status = farm.handle.resume(None).await.expect("resumed");
    assert_eq!((status.policy_version, status.totals.samples), (7, 7));
    let all = farm.read(0, 6).await;
    assert_eq!(all[..3], completions[1..]);
    assert!(all[3..].iter().all(|one| one.sample.group == group_id("waiting")));
    assert_eq!(farm.close().await.pending, 0);
    assert_eq!(fixture.executions.load(Ordering::Relaxed), 7);
}
