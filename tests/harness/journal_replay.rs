//! Manifest state and terminal records of a run, rebuilt from its journal alone.

use std::fs;
use std::path::Path;

use rollout_engine::core::{
    Core, CoreEffect, CoreSettings, ItemSettlement, JournalRecord, RemoteTimeouts, SessionEnd,
    SessionStart,
};
use rollout_engine::journal::{self, RunLayout};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_protocol::record::Settlement;
use rollout_protocol::retry::RetryPolicy;
use rollout_protocol::spec::trial::TrialName;
use serde_json::{Value, json};

/// State rebuilt from a journal.
#[derive(Debug)]
pub struct JournalReplay {
    /// Manifest fields that follow from the journal.
    pub manifest: Value,
    /// Terminal records in order, without trial names, which only the plan knows.
    pub records: Vec<Value>,
}

impl JournalReplay {
    /// Reads the journal of a run directory with the core that wrote it, and no other file.
    ///
    /// # Panics
    /// When the journal is damaged or was not closed.
    pub fn from_run_dir(run_dir: &Path) -> Self {
        let settings = CoreSettings {
            run: RunId::from_bytes([0; 16]),
            epoch: 1,
            permits: 1,
            retry: RetryPolicy::default(),
            timeouts: RemoteTimeouts::default(),
        };
        let mut core = Core::new(settings);
        let (mut records, mut effects) = (Vec::new(), Vec::new());
        let (mut last, mut closed): (Option<SessionStart>, Option<SessionEnd>) = (None, None);
        let replay = journal::replay(&RunLayout::new(run_dir), &[], |at, record| {
            match &record {
                JournalRecord::Opened(opened) => (last, closed) = (Some(*opened.clone()), None),
                JournalRecord::Closed(end) => closed = Some(*end),
                _ => assert_eq!(closed, None, "no record follows the end of a run session"),
            }
            core.apply(at, record, &mut effects);
            for effect in effects.drain(..) {
                if let CoreEffect::Settled(settled) = effect {
                    records.push(settlement_without_name(*settled));
                }
            }
        });
        let replay = replay.expect("a whole journal").expect("a journal");
        let (last, closed) = (last.expect("it was opened"), closed.expect("it was closed"));
        let settled = records.len() as u64;
        let state = if closed.owed == 0 { "completed" } else { "stopped" };
        let manifest = json!({
            "format": last.format,
            "run": replay.first.1.run,
            "created_at": replay.first.0,
            "plan": last.plan,
            "epoch": last.epoch,
            "state": state,
            "total": settled + closed.owed,
            "settled": settled,
            "journal": { "epoch": replay.head.epoch, "durable_bytes": replay.head.bytes },
        });
        Self { manifest, records }
    }
}

/// The record of a settlement, without the trial fields that come from the plan.
fn settlement_without_name(settled: ItemSettlement) -> Value {
    let ItemSettlement { item, by, verdict, superseded, at, .. } = settled;
    let nobody = String::new();
    let trial =
        TrialName { agent: nobody.clone(), dataset: nobody.clone(), task: nobody, attempt: 1 };
    let name = trial.into();
    let task_git_commit_id = None;
    let settlement =
        Settlement { item, name, by, verdict, superseded, settled_at: at, task_git_commit_id };
    record_without_name(serde_json::to_value(settlement).expect("text keys"))
}

fn record_without_name(mut record: Value) -> Value {
    let fields = record.as_object_mut().expect("an object");
    // This field and the name come from the plan.
    fields.remove("task_git_commit_id");
    let names = ["trial", "eval", "ideas"].map(|kind| fields.remove(kind));
    let count = names.iter().flatten().count();
    assert_eq!(count, 1, "a record with {count} names: {record:#}");
    record
}

/// Asserts that manifest and terminal records of a closed run follow from its journal.
///
/// # Panics
/// With the differences.
#[track_caller]
pub fn assert_follows_from_journal(run_dir: &Path) {
    let recount = JournalReplay::from_run_dir(run_dir);
    let read = |path: &Path| fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let manifest: Value = serde_json::from_slice(&read(&run_dir.join("manifest.json")))
        .expect("the manifest is JSON");
    for (key, expected) in recount.manifest.as_object().expect("an object") {
        assert_eq!(&manifest[key], expected, "`{key}` of the manifest");
    }
    let mut files: Vec<_> = fs::read_dir(run_dir.join("records"))
        .expect("records")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    let mut found = Vec::new();
    for path in &files {
        let text = read(path);
        let name = path.file_name().expect("a file").to_string_lossy();
        let sealed = manifest["sealed"].as_array().expect("a list");
        let mut noted = sealed.iter().chain(manifest.get("unsealed"));
        if let Some(noted) = noted.find(|noted| noted["file"] == *name) {
            assert_eq!(noted["digest"], json!(Digest::sha256(&text)), "{name}");
        }
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            found.push(record_without_name(serde_json::from_slice(line).expect("a record")));
        }
    }
    assert_eq!(found.len(), recount.records.len(), "records in {files:?}");
    for (found, expected) in found.iter().zip(&recount.records) {
        assert_eq!(found, expected);
    }
}
