//! Reader of a run's settled trials: the plan, and the settlements of `records/*.jsonl` in plan
//! order. Only the position of each trial is kept in memory, and settlements that the records lack: a
//! run that was killed has them in its journal.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rollout_protocol::record::Settlement;
use rollout_protocol::spec::trial::TrialName;
use rollout_worker::shown_path::shown;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::files::FileError;
use crate::engine::journal::RunLayout;
use crate::plan::{JobPlan, JobPlanError, PlanDocument};

/// The settled trials of a run directory.
#[derive(Debug)]
pub(super) struct SettledTrials {
    plan: JobPlan,
    files: Vec<(PathBuf, File)>,
    positions: Vec<TrialPosition>,
    /// Settlements that the records lack.
    late: Vec<Settlement>,
    unplanned: u64,
}

/// A file number that stands for the settlements in memory.
const LATE: u32 = u32::MAX;

/// Position of a settled trial in the records files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TrialPosition {
    ordinal: u64,
    file: u32,
    bytes: u32,
    offset: u64,
}

/// The part of a settlement that an index needs.
#[derive(Debug, Deserialize)]
struct SettlementKey {
    trial: Option<TrialName>,
    verdict: VerdictKeys,
}

#[derive(Debug, Deserialize)]
struct VerdictKeys {
    #[serde(default)]
    rewards: BTreeMap<String, IgnoredAny>,
}

/// Why the settlements of a run could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SettlementsError {
    /// The directory has no plan.
    #[error("{} is not a run directory: plan.json is missing", shown(.0))]
    NoPlan(PathBuf),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A document of the run cannot be parsed.
    #[error("cannot parse {}", shown(path))]
    Document {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The plan is damaged or has a newer format.
    #[error(transparent)]
    Plan(#[from] JobPlanError),
}

impl SettledTrials {
    /// Opens a run directory and indexes its trials. `each_key` receives the reward keys of every
    /// settlement whose verifier reported several numbers.
    pub(super) fn open(
        run_dir: &Path,
        mut each_key: impl FnMut(String),
    ) -> Result<Self, SettlementsError> {
        let layout = RunLayout::new(run_dir);
        let plan: Option<PlanDocument> = document(&layout.plan())?;
        let plan = plan.ok_or_else(|| SettlementsError::NoPlan(run_dir.to_owned()))?;
        let plan = JobPlan::try_from(plan)?;
        let (files, positions, late) = (Vec::new(), Vec::new(), Vec::new());
        let mut settled = Self { plan, files, positions, late, unplanned: 0 };
        for number in 1.. {
            let path = layout.record_file(number);
            if !path.exists() {
                break;
            }
            settled.index(path, &mut each_key)?;
        }
        settled.order();
        Ok(settled)
    }

    /// Puts trials into plan order. The later of two settlements of a trial counts.
    fn order(&mut self) {
        self.positions.sort_unstable_by_key(|at| (at.ordinal, at.file, at.offset));
        self.positions.reverse();
        self.positions.dedup_by_key(|position| position.ordinal);
        self.positions.reverse();
    }

    /// Adds settlements of the journal that the records lack.
    ///
    /// # Errors
    /// The records cannot be read.
    pub(super) fn add_late(
        &mut self,
        settlements: impl IntoIterator<Item = Settlement>,
    ) -> Result<(), SettlementsError> {
        let mut added = Vec::new();
        for settlement in settlements {
            let trial = settlement.trial();
            let Some(ordinal) = trial.and_then(|trial| self.plan.ordinal(trial)) else { continue };
            let known = self.positions.binary_search_by_key(&ordinal, |position| position.ordinal);
            if let Ok(index) = known
                && self.get(index as u64)?.1.settled_at >= settlement.settled_at
            {
                continue;
            }
            let offset = self.late.len() as u64;
            added.push(TrialPosition { ordinal, file: LATE, bytes: 0, offset });
            self.late.push(settlement);
        }
        self.positions.extend(added);
        self.order();
        Ok(())
    }

    /// Indexes the trials of a records file.
    fn index(
        &mut self,
        path: PathBuf,
        each_key: &mut impl FnMut(String),
    ) -> Result<(), SettlementsError> {
        let file = File::open(&path).map_err(FileError::with_context("open", &path))?;
        let number = u32::try_from(self.files.len()).expect("fewer than 2^32 records files");
        let mut reader = BufReader::new(&file);
        let (mut offset, mut line) = (0, Vec::new());
        loop {
            line.clear();
            reader.read_until(b'\n', &mut line).map_err(FileError::with_context("read", &path))?;
            // A process that was killed may leave a part of a line.
            if line.last() != Some(&b'\n') {
                break;
            }
            let SettlementKey { trial, verdict } = parse(&path, &line)?;
            let bytes = u32::try_from(line.len());
            match trial.and_then(|trial| self.plan.ordinal(&trial)) {
                Some(ordinal) => {
                    let bytes = bytes.map_err(|_| too_long(&path))?;
                    self.positions.push(TrialPosition { ordinal, file: number, bytes, offset });
                }
                None => self.unplanned += 1,
            }
            verdict.rewards.into_keys().for_each(&mut *each_key);
            offset += line.len() as u64;
        }
        self.files.push((path, file));
        Ok(())
    }

    /// The plan.
    pub(super) fn plan(&self) -> &JobPlan {
        &self.plan
    }

    /// Number of trials.
    pub(super) fn len(&self) -> u64 {
        self.positions.len() as u64
    }

    /// Settlements whose trials are not in the plan.
    pub(super) fn unplanned(&self) -> u64 {
        self.unplanned
    }

    /// Reads the trial at an index below [`len`](Self::len), in plan order, with its ordinal.
    pub(super) fn get(&self, index: u64) -> Result<(u64, Settlement), SettlementsError> {
        let position = self.positions[usize::try_from(index).expect("an index of a list")];
        if position.file == LATE {
            let late = &self.late[usize::try_from(position.offset).expect("an index of a list")];
            return Ok((position.ordinal, late.clone()));
        }
        let (path, file) = &self.files[position.file as usize];
        let mut line = vec![0; position.bytes as usize];
        file.read_exact_at(&mut line, position.offset)
            .map_err(FileError::with_context("read", path))?;
        Ok((position.ordinal, parse(path, &line)?))
    }

    /// Every trial with its ordinal, in plan order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Result<(u64, Settlement), SettlementsError>> {
        (0..self.len()).map(|index| self.get(index))
    }
}

fn too_long(path: &Path) -> FileError {
    FileError::with_context("read", path)(std::io::ErrorKind::InvalidData.into())
}

fn parse<T: DeserializeOwned>(path: &Path, line: &[u8]) -> Result<T, SettlementsError> {
    let parsed = serde_json::from_slice(line);
    parsed.map_err(|source| SettlementsError::Document { path: path.to_owned(), source })
}

/// Reads a JSON document of the run directory; `None` when it is missing.
pub(super) fn document<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, SettlementsError> {
    match std::fs::read(path) {
        Ok(bytes) => parse(path, &bytes).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::with_context("read", path)(error).into()),
    }
}
