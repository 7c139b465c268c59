//! Tests of the journal of a farm: short records, and those of earlier versions.

use std::fs;

use rollout_engine::core::{JournalRecord, SessionStart};
use rollout_engine::journal::{self, SegmentRebuilder};
use rollout_protocol::version::RUN_FORMAT;

use super::*;

/// Begins a report in its short form.
const SHORT: &str = r#""report":{"n":"#;

/// Begins one in its full form.
const FULL: &str = r#""reported":"#;

fn segment(run_dir: &Path, epoch: u32) -> String {
    let bytes = fs::read(RunLayout::new(run_dir).segment(epoch)).expect("a segment");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn journal_has_short_reports_and_the_metadata_of_a_group_once() {
    let fixture = FarmFixture::new(|_| Verdict::completed(1.0)).await;
    let farm = fixture.open();
    let prompt = "x".repeat(1000);
    let metadata = [("prompt".to_owned(), prompt.as_str().into())].into_iter().collect();
    let wanted = GroupRequest { metadata: Arc::new(metadata), ..request("g", 8) };
    farm.submit(wanted).await.expect("admitted");
    let completions = farm.read(0, 8).await;
    assert!(completions.iter().all(|one| one.metadata["prompt"] == *prompt));
    assert_eq!(farm.close().await.pending, 0);
    let text = segment(&fixture.run_dir(), 1);
    // A start is reported, too, if the sample runs for longer than a second.
    assert!(text.matches(SHORT).count() >= 8);
    assert!(!text.contains(FULL));
    assert_eq!(text.matches(&prompt).count(), 1);
    // The full form, with the metadata of each sample, takes more.
    assert!(text.len() < 18_000, "{} bytes for eight samples", text.len());
}

/// Writes a journal as an earlier version would have written it.
fn write_in_full_form(run_dir: &Path, former: &Path) {
    let mut records = Vec::new();
    let read =
        journal::replay(&RunLayout::new(run_dir), &[], |at, record| records.push((at, record)));
    let (at, opened) = read.expect("readable").expect("a journal").first;
    assert_eq!(opened.format, RUN_FORMAT + 1, "programs of earlier versions refuse it");
    let layout = RunLayout::new(former);
    fs::create_dir_all(layout.journal()).expect("made");
    let opened = SessionStart { format: RUN_FORMAT, ..opened };
    let mut rebuilder = SegmentRebuilder::create(&layout, at, opened).expect("creatable");
    for (at, record) in &records {
        if !matches!(record, JournalRecord::Opened(_)) {
            rebuilder.record(*at, record).expect("written");
        }
    }
    rebuilder.finish().expect("finished");
}

#[tokio::test(flavor = "multi_thread")]
async fn journal_of_an_earlier_version_is_continued_with_short_reports() {
    let fixture = FarmFixture::new(|_| Verdict::completed(0.5)).await;
    let farm = fixture.open();
    farm.submit(request("g", 3)).await.expect("admitted");
    let shown = farm.read(0, 3).await;
    farm.stop(StopLevel::Drain).await;
    let former = fixture.dir.path().join("former");
    write_in_full_form(&fixture.run_dir(), &former);

    let farm = fixture.open_in(&former, FarmSettings::new("f"));
    farm.submit(request("h", 1)).await.expect("admitted");
    assert_eq!(farm.read(0, 4).await[..3], shown[..]);
    assert_eq!(farm.close().await.pending, 0);
    let [before, after] = [1, 2].map(|epoch| segment(&former, epoch));
    assert!(before.contains(FULL) && !before.contains(SHORT));
    assert!(after.contains(SHORT) && !after.contains(FULL));
}
