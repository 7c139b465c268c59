//! Reader of a run for exports: plan, configuration, and settled trials one by one.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_protocol::record::{Settlement, TrialRecord};
use rollout_protocol::spec::trial::TrialName;
use rollout_worker::store::BlobStore;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ExportError, RunHeader};
use crate::engine::journal::RunLayout;
use crate::plan::{JobPlan, PlanDocument, PlannedTask};
use crate::results::files::{FileError, content};

/// Maximum number of reward keys, for formats with a column per key.
const MAX_KEYS: usize = 256;

/// A run to export.
#[derive(Debug)]
pub(super) struct ExportSource {
    /// The fields of the run's manifest.
    pub(super) header: RunHeader,
    /// The plan.
    pub(super) plan: JobPlan,
    /// `config.json`; `null` when it is missing.
    pub(super) config: Value,
    /// Store of the records and files.
    pub(super) store: Arc<dyn BlobStore>,
    files: Vec<(PathBuf, BufReader<File>)>,
    positions: Vec<TrialPosition>,
    keys: BTreeSet<String>,
    keys_left_out: bool,
    unplanned: u64,
}

/// Position of a settled trial in the record files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TrialPosition {
    ordinal: u64,
    file: u32,
    offset: u64,
}

/// A settled trial.
#[derive(Debug)]
pub(super) struct SettledTrial {
    /// Its name.
    pub(super) name: TrialName,
    /// Its terminal record.
    pub(super) settlement: Settlement,
    /// The record of the execution that settled it, if there is one.
    pub(super) record: Option<TrialRecord>,
    /// Its task.
    pub(super) task: PlannedTask,
}

impl ExportSource {
    /// Opens a run directory and indexes its trials.
    pub(super) fn open(
        run_dir: &Path,
        header: RunHeader,
        store: Arc<dyn BlobStore>,
    ) -> Result<Self, ExportError> {
        let layout = RunLayout::new(run_dir);
        let missing = |what| ExportError::NotRunDirectory { path: run_dir.to_owned(), what };
        let plan: PlanDocument = document(&layout.plan())?.ok_or(missing("plan.json"))?;
        let plan = JobPlan::try_from(plan)?;
        let config = document(&layout.config())?.unwrap_or_default();
        let mut source = Self {
            header,
            plan,
            config,
            store,
            files: Vec::new(),
            positions: Vec::new(),
            keys: BTreeSet::new(),
            keys_left_out: false,
            unplanned: 0,
        };
        for number in 1.. {
            let path = layout.record_file(number);
            if !path.exists() {
                break;
            }
            source.index_records(path)?;
        }
        source.positions.sort_unstable();
        // The later of two records of a trial counts.
        source.positions.reverse();
        source.positions.dedup_by_key(|place| place.ordinal);
        source.positions.reverse();
        Ok(source)
    }

    /// Indexes the trials of a record file.
    fn index_records(&mut self, path: PathBuf) -> Result<(), ExportError> {
        let file = File::open(&path).map_err(FileError::with_context("open", &path))?;
        let mut reader = BufReader::new(file);
        let number = u32::try_from(self.files.len()).expect("fewer than 2^32 record files");
        let (mut offset, mut line) = (0, Vec::new());
        while let Some(settlement) = next_line(&mut reader, &path, &mut line)? {
            match settlement.trial().and_then(|trial| self.plan.ordinal(trial)) {
                Some(ordinal) => {
                    self.positions.push(TrialPosition { ordinal, file: number, offset });
                }
                None => self.unplanned += 1,
            }
            for key in settlement.verdict.rewards.into_keys() {
                if self.keys.len() < MAX_KEYS || self.keys.contains(&key) {
                    self.keys.insert(key);
                } else {
                    self.keys_left_out = true;
                }
            }
            offset += line.len() as u64;
        }
        self.files.push((path, reader));
        Ok(())
    }

    /// Number of trials.
    pub(super) fn len(&self) -> u64 {
        self.positions.len() as u64
    }

    /// Settled trials whose records are not written yet.
    pub(super) fn missing_records(&self) -> u64 {
        self.header.settled.saturating_sub(self.len() + self.unplanned)
    }

    /// Trials in the records that are not in the plan.
    pub(super) fn unplanned(&self) -> u64 {
        self.unplanned
    }

    /// Reward keys of verifiers that report several numbers, ascending.
    pub(super) fn keys(&self) -> Vec<String> {
        self.keys.iter().cloned().collect()
    }

    /// Whether there are more keys than [`keys`](Self::keys) returns.
    pub(super) fn keys_left_out(&self) -> bool {
        self.keys_left_out
    }

    /// Reads the trial at an index in the plan's order.
    pub(super) async fn trial(&mut self, index: u64) -> Result<SettledTrial, ExportError> {
        let position = self.positions[usize::try_from(index).expect("an index of a list")];
        let (path, reader) = &mut self.files[position.file as usize];
        reader
            .seek(SeekFrom::Start(position.offset))
            .map_err(FileError::with_context("read", path))?;
        let settlement = next_line(reader, path, &mut Vec::new())?.ok_or_else(|| {
            FileError::with_context("read", path)(std::io::ErrorKind::UnexpectedEof.into())
        })?;
        let blob = settlement.by.as_ref().and_then(|by| by.record.as_ref());
        let record = match blob {
            None => None,
            Some(blob) => {
                let record = content::read_record(&*self.store, blob, &settlement).await;
                Some(record.map_err(|source| ExportError::Trial {
                    trial: settlement.name.to_string(),
                    source: Box::new(source),
                })?)
            }
        };
        let planned = self.plan.trial(position.ordinal).expect("it was found in the plan");
        let task = self.plan.tasks()[planned.task].clone();
        Ok(SettledTrial { name: planned.name, settlement, record, task })
    }
}

/// Reads the next line into `line` and parses its settlement; `None` at the end of the file.
fn next_line(
    reader: &mut BufReader<File>,
    path: &Path,
    line: &mut Vec<u8>,
) -> Result<Option<Settlement>, ExportError> {
    line.clear();
    reader.read_until(b'\n', line).map_err(FileError::with_context("read", path))?;
    if line.is_empty() {
        return Ok(None);
    }
    let parsed = serde_json::from_slice(line);
    parsed.map(Some).map_err(|source| ExportError::Document { path: path.to_owned(), source })
}

/// Reads a JSON document of the run directory; `None` when it is missing.
fn document<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ExportError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::with_context("read", path)(error).into()),
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|source| ExportError::Document { path: path.to_owned(), source })
}
