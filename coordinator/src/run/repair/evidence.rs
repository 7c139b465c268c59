//! Results outside the journal, and what proves them.
//!
//! The record of an execution is a blob, which its digest proves. Markers in the store, files of
//! records and result files of trials name records. A sealed file of records is proven by its
//! digest in the manifest, so its settlements count without a blob.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rollout_protocol::Timestamp;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::limits::DOCUMENT_BYTES;
use rollout_protocol::record::{ExecutionEnd, ExecutionRecord, Outcome, Settlement, Timestamps};
use rollout_protocol::wire::marker::Marker;
use rollout_protocol::wire::report::{Body, Report, ResultBody};
use rollout_worker::spool::report_of;
use rollout_worker::store::{BlobStore, StoreError};
use rollout_worker::supervise;
use serde::Deserialize;

use super::RepairError;
use super::replica::Replica;
use crate::core::{NamedItem, Record};
use crate::journal::Layout;
use crate::report::files::layout::RESULT;
use crate::run::Manifest;

/// Directories below a run directory that lead to a trial's: agent, dataset, trial.
const DEPTH: usize = 4;

/// A restored result: its item, the records that say it, and what proves it.
pub(super) type Restored = (ItemId, Vec<Record>, &'static str);

/// Everything known beside the journal.
#[derive(Debug)]
pub(super) struct Evidence {
    run: RunId,
    /// Reports of records that the store has, by item, in the order of their tries.
    reports: BTreeMap<ItemId, BTreeMap<(TryId, ExecId), Report>>,
    /// Settlements in sealed files.
    sealed: BTreeMap<ItemId, Settlement>,
}

/// The part of a trial's result file that names its record.
#[derive(Deserialize)]
struct Named {
    run: RunId,
    outcome: Outcome,
    record: Option<BlobRef>,
}

impl Evidence {
    /// Looks for everything that proves a result.
    pub(super) async fn gather(
        run: RunId,
        layout: &Layout,
        store: Option<&dyn BlobStore>,
        manifest: Option<&Manifest>,
    ) -> Result<Self, RepairError> {
        let (of, sealed) = (layout.clone(), manifest.map(|m| m.sealed.clone()).unwrap_or_default());
        let (settlements, intact, named) = supervise::blocking(move || {
            let settlements = settlements(&of);
            let whole = sealed.iter().filter(|sealed| {
                let bytes = fs::read(of.records().join(&sealed.file)).unwrap_or_default();
                Digest::of(&bytes) == sealed.digest
            });
            let intact: BTreeSet<String> = whole.map(|sealed| sealed.file.clone()).collect();
            let mut named = Vec::new();
            result_files(of.root(), DEPTH, &mut named);
            (settlements, intact, named)
        })
        .await;
        let (reports, sealed) = (BTreeMap::new(), BTreeMap::new());
        let mut evidence = Self { run, reports, sealed };
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
        let named = named.filter(|named| named.outcome != Outcome::Cancelled);
        blobs.extend(named.filter_map(|named| Some(named.record?.digest)));
        if let Some(store) = store {
            let markers = store.list_documents(&format!("results/{run}/")).await?;
            blobs.extend(markers.iter().filter_map(|path| Some(Marker::parse(path)?.record)));
            for digest in blobs {
                evidence.read(&digest, store).await?;
            }
        }
        Ok(evidence)
    }

    /// Adds the report of a record, if the store has the record and it is this run's.
    async fn read(&mut self, digest: &Digest, store: &dyn BlobStore) -> Result<(), StoreError> {
        let bytes = match store.get_bytes(digest, DOCUMENT_BYTES).await {
            Ok(bytes) => bytes,
            Err(error) if error.is_transient() => return Err(error),
            Err(_) => return Ok(()),
        };
        let Ok(record) = serde_json::from_slice::<ExecutionRecord>(&bytes) else { return Ok(()) };
        let (of, item, try_id, exec) = record.ids();
        if of == self.run {
            let blob = BlobRef::of(&bytes, rollout_protocol::blob::MediaType::Json);
            let report = report_of(&record, blob);
            self.reports.entry(item).or_default().insert((try_id, exec), report);
        }
        Ok(())
    }

    /// Applies what is proven of items without a settlement, and says what settled any of them.
    pub(super) fn restore(self, replica: &mut Replica, at: Timestamp) -> Vec<Restored> {
        let mut restored = Vec::new();
        for (item, reports) in self.reports {
            if replica.is_settled(&item) {
                continue;
            }
            let records = reports.into_values();
            let records = records.map(|report| Record::Recovered { report: Box::new(report) });
            let records = apply(records.collect(), replica, at);
            if replica.is_settled(&item) {
                restored.push((item, records, "the blob store"));
            }
        }
        for (item, settlement) in self.sealed {
            if let Some(record) = of_sealed(self.run, &settlement, replica)
                && !replica.is_settled(&item)
            {
                let records = apply(vec![record], replica, at);
                if replica.is_settled(&item) {
                    restored.push((item, records, "a sealed file of records"));
                }
            }
        }
        restored
    }
}

/// Applies records; those and the offers that they need.
fn apply(records: Vec<Record>, replica: &mut Replica, at: Timestamp) -> Vec<Record> {
    let mut applied = Vec::new();
    for record in records {
        replica.apply(at, record, &mut |_, record| applied.push(record.clone()));
    }
    applied
}

/// The record that leads to a sealed settlement again.
fn of_sealed(run: RunId, settlement: &Settlement, replica: &Replica) -> Option<Record> {
    let item = settlement.item;
    let spec = replica.spec(&item)?;
    let items = vec![NamedItem { item, spec }];
    let Some(by) = &settlement.by else {
        return match settlement.verdict.outcome {
            Outcome::Cancelled => Some(Record::Cancelled { items }),
            Outcome::Failed => {
                let error = Box::new(settlement.verdict.error.clone()?);
                Some(Record::GivenUp { items, error })
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
        body: Body::Result(Box::new(body)),
    };
    Some(Record::Recovered { report: Box::new(report) })
}

/// Every settlement that can be read in the files of records, with the name of its file.
fn settlements(layout: &Layout) -> Vec<(String, Settlement)> {
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

/// The records that the result files of trials name.
fn result_files(dir: &Path, depth: usize, found: &mut Vec<Named>) {
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
