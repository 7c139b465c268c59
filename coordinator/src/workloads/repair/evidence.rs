//! Results outside the journal, and the evidence for them.
//!
//! The record of an execution is a blob, which its digest proves. Markers in the store, records
//! files and result files of trials name records. A records file whose digest the manifest names is
//! proven by it, so its settlements count without a blob.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rollout_base::supervise;
use rollout_engine::core::{JournalRecord, NamedItem, SessionStart};
use rollout_engine::journal::RunLayout;
use rollout_engine::{RecordsFile, RunManifest};
use rollout_protocol::Timestamp;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::limits::DOCUMENT_BYTES;
use rollout_protocol::record::{
    ExecutionEnd, ExecutionRecord, ItemOutcome, Settlement, Timestamps,
};
use rollout_protocol::wire::marker::ResultMarker;
use rollout_protocol::wire::report::{Report, ReportBody, ResultBody};
use rollout_store::{BlobStore, StoreError};
use serde::Deserialize;

use super::RepairError;
use super::replay::{HistoryReplay, RecordSink};
use crate::results::files::layout::RESULT;

/// Levels of directories from a run directory to a trial: agent, dataset, trial.
const MAX_TRIAL_DEPTH: usize = 4;

/// A restored result: its item and the source of the proof.
pub(super) type RestoredResult = (ItemId, &'static str);

/// All evidence beside the journal.
#[derive(Debug)]
pub(super) struct RepairEvidence {
    run: RunId,
    /// Reports of records in the store, by item, in the order of their tries.
    reports: BTreeMap<ItemId, BTreeMap<(TryId, ExecId), Report>>,
    /// Settlements in records files whose digests match the manifest.
    sealed: BTreeMap<ItemId, Settlement>,
    /// Epoch of the manifest that names the files; 0 if an earlier version wrote it: such a
    /// manifest may name files from before a reopening.
    sealed_by: u32,
}

/// The part of a trial's result file that names its record.
#[derive(Deserialize)]
struct TrialResultFile {
    run: RunId,
    outcome: ItemOutcome,
    record: Option<BlobRef>,
}

impl RepairEvidence {
    /// No evidence.
    pub(super) fn empty(run: RunId) -> Self {
        Self { run, reports: BTreeMap::new(), sealed: BTreeMap::new(), sealed_by: 0 }
    }

    /// Collects everything that proves a result.
    pub(super) async fn gather(
        run: RunId,
        layout: &RunLayout,
        store: Option<&dyn BlobStore>,
        manifest: Option<&RunManifest>,
    ) -> Result<Self, RepairError> {
        let of = layout.clone();
        let proven: Vec<RecordsFile> = manifest
            .into_iter()
            .flat_map(|m| m.sealed.iter().chain(&m.unsealed))
            .cloned()
            .collect();
        let (settlements, intact, named) = supervise::blocking(move || {
            let settlements = settlements(&of);
            let whole = proven.into_iter().filter(|file| {
                let bytes = fs::read(of.records().join(&file.file)).unwrap_or_default();
                Digest::sha256(&bytes) == file.digest
            });
            let intact: BTreeSet<String> = whole.map(|file| file.file).collect();
            let mut named = Vec::new();
            result_files(of.root(), MAX_TRIAL_DEPTH, &mut named);
            (settlements, intact, named)
        })
        .await;
        let complete = manifest.filter(|manifest| manifest.reopened.is_some());
        let sealed_by = complete.map_or(0, |manifest| manifest.epoch);
        let mut evidence = Self { sealed_by, ..Self::empty(run) };
        let mut blobs: BTreeSet<Digest> = BTreeSet::new();
        for (file, settlement) in settlements {
            let by = settlement.by.as_ref();
            let by = by.filter(|by| matches!(by.end, ExecutionEnd::Reported { .. }));
            blobs.extend(by.and_then(|by| by.record.as_ref()).map(|blob| blob.digest));
            if intact.contains(&file) {
                evidence.sealed.insert(settlement.item, settlement);
            }
        }
        let named = named.into_iter().filter(|named| named.run == run);
        let named = named.filter(|named| named.outcome != ItemOutcome::Cancelled);
        blobs.extend(named.filter_map(|named| Some(named.record?.digest)));
        if let Some(store) = store {
            let markers = store.list_documents(&format!("results/{run}/")).await?;
            blobs.extend(markers.iter().filter_map(|path| Some(ResultMarker::parse(path)?.record)));
            for digest in blobs {
                evidence.read(&digest, store).await?;
            }
        }
        Ok(evidence)
    }

    /// Adds the report of a record if the store has the record and it belongs to this run.
    async fn read(&mut self, digest: &Digest, store: &dyn BlobStore) -> Result<(), StoreError> {
        let bytes = match store.get_bytes(digest, DOCUMENT_BYTES).await {
            Ok(bytes) => bytes,
            Err(error) if error.is_transient() => return Err(error),
            Err(_) => return Ok(()),
        };
        let Ok(record) = serde_json::from_slice::<ExecutionRecord>(&bytes) else { return Ok(()) };
        let (of, item, try_id, exec) = record.ids();
        if of == self.run {
            let blob = BlobRef::for_bytes(&bytes, rollout_protocol::blob::MediaType::Json);
            let report = record.result_report(blob);
            self.reports.entry(item).or_default().insert((try_id, exec), report);
        }
        Ok(())
    }

    /// Settles items that a session reopens and whose settlement is lost, from the evidence for
    /// tries before that session: this becomes their former result.
    pub(super) fn settle_before(
        &self,
        opened: &SessionStart,
        replay: &mut HistoryReplay,
        at: Timestamp,
        out: RecordSink<'_>,
    ) {
        for item in &opened.reopened {
            if !replay.is_settled(item) {
                let tries = replay.reopened_at(item)..opened.epoch;
                self.apply(item, replay, at, out, |_, try_id| tries.contains(&try_id.epoch));
            }
        }
    }

    /// Applies the evidence for items without a settlement and for settled items that were reopened
    /// afterwards. Returns the restored items and the sources of the proof.
    pub(super) fn restore(
        &self,
        replay: &mut HistoryReplay,
        at: Timestamp,
        out: RecordSink<'_>,
    ) -> Vec<RestoredResult> {
        let mut restored = Vec::new();
        for item in self.reports.keys() {
            let former = replay.effective_settlement(item);
            let floor = replay.reopened_at(item);
            let counts = |replica: &HistoryReplay, try_id: TryId| {
                let settled = replica.is_settled(item);
                try_id.epoch >= floor
                    && (!settled || replica.lost_reopening(item, try_id).is_some())
            };
            self.apply(item, replay, at, out, counts);
            if replay.is_settled(item) && replay.effective_settlement(item) != former {
                restored.push((*item, "the blob store"));
            }
        }
        for (item, settlement) in &self.sealed {
            let as_of = self.counted_until(settlement);
            // A sealed result is newer than another one: the item was reopened between them.
            if let Some(effective) = replay.effective_settlement(item)
                && let Some(by) = &settlement.by
                && by.try_id.epoch > effective.epoch
            {
                let (epoch, items) = (by.try_id.epoch, vec![*item]);
                replay.apply(at, JournalRecord::Reopened { epoch, items }, out);
            }
            if !replay.is_settled(item)
                && replay.reopened_at(item) <= as_of
                && let Some(record) = record_of_settlement(self.run, settlement, replay)
            {
                replay.apply(at, record, out);
                if replay.is_settled(item) {
                    restored.push((*item, "a records file"));
                }
            }
            let by = settlement.by.as_ref().map(|by| by.exec);
            if replay.effective_settlement(item).is_some_and(|standing| standing.exec == by) {
                replay.mark_not_superseded(item, as_of);
            }
        }
        restored
    }

    /// Applies those reports of an item that `counts` accepts, in the order of their tries.
    fn apply(
        &self,
        item: &ItemId,
        replay: &mut HistoryReplay,
        at: Timestamp,
        out: RecordSink<'_>,
        counts: impl Fn(&HistoryReplay, TryId) -> bool,
    ) {
        for ((try_id, _), report) in self.reports.get(item).into_iter().flatten() {
            if counts(replay, *try_id) {
                let report = Box::new(report.clone());
                replay.apply(at, JournalRecord::Recovered { report }, out);
            }
        }
    }

    /// The newest session in which a sealed settlement is known to be effective.
    fn counted_until(&self, settlement: &Settlement) -> u32 {
        let by = settlement.by.as_ref().map_or(0, |by| by.try_id.epoch);
        self.sealed_by.max(by)
    }
}

/// The record that replays to a sealed settlement.
fn record_of_settlement(
    run: RunId,
    settlement: &Settlement,
    replay: &HistoryReplay,
) -> Option<JournalRecord> {
    let item = settlement.item;
    let spec = replay.spec(&item)?;
    let items = vec![NamedItem { item, spec }];
    let Some(by) = &settlement.by else {
        return match settlement.verdict.outcome {
            ItemOutcome::Cancelled => Some(JournalRecord::Cancelled { items }),
            ItemOutcome::Failed => {
                let error = Box::new(settlement.verdict.error.clone()?);
                Some(JournalRecord::GivenUp { items, error })
            }
            _ => None,
        };
    };
    let ExecutionEnd::Reported { verdict } = &by.end else { return None };
    let timestamps =
        by.timestamps.clone().unwrap_or_else(|| Timestamps::instant(settlement.settled_at));
    let body = ResultBody {
        verdict: verdict.clone(),
        durations: by.durations.clone().unwrap_or_default(),
        timestamps,
        record: by.record.clone(),
    };
    let report = Report {
        run,
        item,
        try_id: by.try_id,
        exec: by.exec,
        spec,
        worker: by.worker.clone(),
        body: ReportBody::Result(Box::new(body)),
    };
    Some(JournalRecord::Recovered { report: Box::new(report) })
}

/// Every readable settlement in the records files, with the name of its file.
fn settlements(layout: &RunLayout) -> Vec<(String, Settlement)> {
    let mut found = Vec::new();
    let mut files: Vec<_> =
        fs::read_dir(layout.records()).into_iter().flatten().flatten().collect();
    files.sort_by_key(fs::DirEntry::file_name);
    for entry in files {
        let Ok(bytes) = fs::read(entry.path()) else { continue };
        let name = entry.file_name().to_string_lossy().into_owned();
        let lines = bytes.split(|byte| *byte == b'\n');
        let read = lines.filter_map(|line| serde_json::from_slice(line).ok());
        found.extend(read.map(|settlement| (name.clone(), settlement)));
    }
    found
}

/// Collects the records that the result files of trials name.
fn result_files(dir: &Path, depth: usize, found: &mut Vec<TrialResultFile>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_dir && depth > 1 {
            result_files(&path, depth - 1, found);
        } else if !is_dir && entry.file_name() == RESULT {
            let named = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            found.extend(named);
        }
    }
}
