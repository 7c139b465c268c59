//! Farms whose samples run in process sandboxes: trainers that are killed, groups that are cancelled
//! while they run, and pauses of model calls.

mod pause;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_coordinator::launch::farm::{FarmRequest, FarmSession};
use rollout_protocol::farm::{
    FarmLimits, FarmSettings, GroupEnd, GroupRequest, SampleEnd, SubmittedGroup,
};
use rollout_protocol::limits;
use rollout_protocol::wire::control::StopLevel;
use rollout_store::StoreUrl;
use rollout_tests::cluster::Cluster;
use rollout_tests::project::Project;
use rollout_tests::wait::{self, LONG_DEADLINE};
use rollout_tests::{farm, hidden_commands, print_notice};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_rollout-under-test");

/// Lease of the workers.
const LEASE: Duration = Duration::from_secs(4);

/// Groups of the trainer that is killed.
const GROUPS: u32 = 8;

/// Samples of each of its groups.
const N: u32 = 3;

fn start_trainer(project: &Project) -> Child {
    let mut command = Command::new(PROGRAM);
    command
        .arg(hidden_commands::FARM_TRAINER)
        .arg(project.path())
        .arg(PROGRAM)
        .arg(GROUPS.to_string());
    command.stdin(Stdio::null()).spawn().expect("the trainer starts")
}

/// The lines of a file of the trainer. The last one may be cut.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn killed_trainer_finds_every_completion_once_and_under_its_cursor() {
    let project = farm::write_job(Project::new(PROGRAM), "echo done >answer.txt");
    let seen = project.path().join("seen.jsonl");
    for kills in 1..=5usize {
        let mut trainer = start_trainer(&project);
        let until = lines(&seen).len() + kills;
        let has_read = || lines(&seen).len() >= until;
        let ended = |trainer: &mut Child| trainer.try_wait().expect("a status").is_some();
        wait::until(LONG_DEADLINE, "the trainer reads completions", || {
            has_read() || ended(&mut trainer)
        });
        trainer.kill().expect("killed");
        trainer.wait().expect("it has ended");
    }
    let status = start_trainer(&project).wait().expect("it ends");
    assert!(status.success(), "{status}");

    let mut completions: BTreeMap<u64, Value> = BTreeMap::new();
    let mut acknowledged = BTreeSet::new();
    for line in lines(&seen) {
        if let Some(cursors) = line["acknowledged"].as_array() {
            acknowledged.extend(cursors.iter().filter_map(Value::as_u64));
            continue;
        }
        let cursor = line["cursor"].as_u64().expect("a cursor");
        assert!(!acknowledged.contains(&cursor), "{cursor} is shown after its acknowledgement");
        let known = completions.entry(cursor).or_insert_with(|| line.clone());
        assert_eq!(*known, line, "a completion does not change");
    }
    let cursors: Vec<u64> = completions.keys().copied().collect();
    assert_eq!(cursors, (1..=u64::from(GROUPS * N)).collect::<Vec<_>>());
    let sample = |one: &Value| (one["group"].to_string(), one["index"].as_u64());
    let samples: BTreeSet<_> = completions.values().map(sample).collect();
    assert_eq!(samples.len(), completions.len(), "every sample ends once");
    assert!(completions.values().all(|one| one["reward"] == 1.0), "{completions:?}");
    let ends = completions.values().filter(|one| one["group_end"] == "complete");
    assert_eq!(ends.count(), GROUPS as usize);
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_group_ends_its_running_sandboxes() {
    let project = Project::new(PROGRAM);
    let mark = project.mark();
    let project = farm::write_job(project, &format!("exec -a {mark} sleep 86400"));
    let farm =
        FarmSession::open(farm::request(project.path(), PROGRAM, None)).await.expect("a farm");
    let id = "cancelled".parse().expect("an id");
    farm.submit(GroupRequest::new(id, "tasks/t", 4)).await.expect("admitted");
    let running = || rollout_tests::processes::with_mark(&mark).len();
    wait::until(LONG_DEADLINE, "the samples run", || running() >= 4);
    let cancelled = Instant::now();
    let receipt = farm.cancel("cancelled".parse().expect("an id")).await.expect("cancelled");
    assert_eq!(receipt.samples, 4);
    let page = farm.completions("train", 0, 9, Duration::from_secs(5)).await.expect("completions");
    let is_cancelled = |end: &SampleEnd| matches!(end, SampleEnd::Cancelled { .. });
    assert!(page.completions.iter().all(|one| is_cancelled(&one.result.end)));
    assert_eq!(page.completions[3].group_end, Some(GroupEnd::Cancelled));
    wait::until(LONG_DEADLINE, "the sandboxes end", || running() == 0);
    print_notice(&format!("the sandboxes ended after {:?}", cancelled.elapsed()));
    let outcome = farm.stop(StopLevel::Kill).await.expect("stopped");
    assert_eq!(outcome.pending, 0, "the run has settled the cancelled samples");
}

/// Reads this many completions, and acknowledges them.
async fn take(farm: &FarmSession, count: usize) -> Vec<u64> {
    let mut cursors = Vec::new();
    while cursors.len() < count {
        let after = cursors.last().copied().unwrap_or(0);
        let page = farm.completions("train", after, count, LONG_DEADLINE).await;
        let page = page.expect("an open farm");
        assert!(!page.completions.is_empty(), "{} of {count} came", cursors.len());
        assert!(page.completions.iter().all(|one| one.result.reward == Some(1.0)));
        cursors.extend(page.completions.iter().map(|one| one.cursor));
    }
    let receipt = farm.acknowledge("train", cursors.clone()).await.expect("acknowledged");
    assert_eq!(receipt.acknowledged, count as u64);
    cursors
}

#[test]
fn farm_over_nats_continues_after_stop_with_compacted_journal() {
    let project = farm::write_job(Project::new(PROGRAM), "echo done >answer.txt");
    let Some(cluster) = Cluster::new(project).map(|cluster| cluster.with_lease(LEASE)) else {
        return;
    };
    let _worker = cluster.worker("a", 3).started();
    let url = cluster.server.url();
    let request = || {
        let request = farm::request(cluster.project.path(), PROGRAM, Some((&url, LEASE)));
        let store = Some(StoreUrl::from(cluster.store()));
        let journal_bytes = limits::MIN_FARM_JOURNAL_BYTES;
        let limits = FarmLimits { journal_bytes, ..FarmLimits::default() };
        let settings = FarmSettings { limits, ..request.settings };
        FarmRequest { store, settings, ..request }
    };
    // Two groups are enough for a compaction.
    let padding = "x".repeat(1 << 16);
    let group = |name: &str| {
        let request = GroupRequest::new(name.parse().expect("an id"), "tasks/t", 3);
        let metadata = [("padding".to_owned(), Value::from(padding.as_str()))].into_iter();
        let metadata = Arc::new(metadata.collect());
        GroupRequest { metadata, ..request }
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let farm = FarmSession::open(request()).await.expect("a farm");
        for name in ["a", "b"] {
            farm.submit(group(name)).await.expect("admitted");
        }
        assert_eq!(take(&farm, 3).await, [1, 2, 3]);
        farm.stop(StopLevel::Kill).await.expect("stopped");

        let farm = FarmSession::open(request()).await.expect("a farm");
        let again = farm.submit(group("a")).await.expect("known");
        assert_eq!(again.state, SubmittedGroup::Known);
        farm.submit(group("c")).await.expect("admitted");
        assert_eq!(take(&farm, 6).await, [4, 5, 6, 7, 8, 9]);
        let outcome = farm.close().await.expect("ended");
        assert_eq!(outcome.pending, 0);
    });
}
