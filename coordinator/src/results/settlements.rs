//! Reader of a run's settled trials: the plan, and the settlements of `records/*.jsonl` in plan
//! order. Only the position of each trial is kept in memory.
//!
//! Of a run that has not ended, the journal decides: the records lack its last settlements, and have
//! those of trials that run again. Settlements that the records lack are kept in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rollout_base::shown_path::shown;
use rollout_engine::journal::RunLayout;
use rollout_protocol::Timestamp;
use rollout_protocol::id::ItemId;
use rollout_protocol::record::Settlement;
use rollout_protocol::spec::trial::TrialName;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::files::FileError;
use crate::plan::{JobPlan, JobPlanError, PlanDocument};

/// The settled trials of a run directory.
#[derive(Debug)]
pub struct SettledTrials {
    plan: JobPlan,
    files: Vec<(PathBuf, File)>,
    positions: Vec<TrialPosition>,
    /// Settlements that the records lack, by ordinal.
    late: BTreeMap<u64, Settlement>,
    keys: RewardKeys,
    unplanned: u64,
}

/// A file number that stands for the settlements in memory.
const LATE: u32 = u32::MAX;

/// Maximum number of reward keys, for formats with a column per key.
const MAX_KEYS: usize = 256;

/// Position of a settled trial in the records files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TrialPosition {
    ordinal: u64,
    file: u32,
    bytes: u32,
    offset: u64,
    settled_at: Timestamp,
}

/// Reward keys of verifiers that report several numbers.
#[derive(Debug, Default)]
struct RewardKeys {
    keys: BTreeSet<String>,
    left_out: bool,
}

/// The part of a settlement that an index needs.
#[derive(Debug, Deserialize)]
struct SettlementKey {
    trial: Option<TrialName>,
    verdict: VerdictKeys,
    settled_at: Timestamp,
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
    /// Opens a run directory and indexes the trials of its records.
    ///
    /// # Errors
    /// [`SettlementsError`].
    pub fn open(run_dir: &Path) -> Result<Self, SettlementsError> {
        let layout = RunLayout::new(run_dir);
        let plan: Option<PlanDocument> = document(&layout.plan())?;
        let plan = plan.ok_or_else(|| SettlementsError::NoPlan(run_dir.to_owned()))?;
        let plan = JobPlan::try_from(plan)?;
        let (files, positions, late) = (Vec::new(), Vec::new(), BTreeMap::new());
        let keys = RewardKeys::default();
        let mut settled = Self { plan, files, positions, late, keys, unplanned: 0 };
        for number in 1.. {
            let path = layout.record_file(number);
            if !path.exists() {
                break;
            }
            settled.index(path)?;
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

    /// Takes a settlement of the journal, in its order. One that the records have is not kept.
    /// [`keep`](Self::keep) decides which ones count.
    pub(crate) fn add_journaled(&mut self, ordinal: u64, settlement: &Settlement) {
        let known = self.positions.binary_search_by_key(&ordinal, |position| position.ordinal);
        if known.is_ok_and(|index| self.positions[index].settled_at == settlement.settled_at) {
            self.late.remove(&ordinal);
        } else {
            self.late.insert(ordinal, settlement.clone());
        }
    }

    /// Keeps only the settlements that are in effect by the journal, which was read to its end:
    /// `settled_at` is the time of that of an item.
    pub(crate) fn keep(&mut self, settled_at: impl Fn(&ItemId) -> Option<Timestamp>) {
        self.late.retain(|_, late| settled_at(&late.item) == Some(late.settled_at));
        let Self { plan, positions, late, keys, .. } = self;
        positions.retain(|position| {
            let planned = plan.trial(position.ordinal);
            planned.is_some_and(|trial| settled_at(&trial.item) == Some(position.settled_at))
        });
        for (ordinal, settlement) in late {
            settlement.verdict.rewards.keys().cloned().for_each(|key| keys.add(key));
            let (ordinal, settled_at) = (*ordinal, settlement.settled_at);
            positions.push(TrialPosition { ordinal, file: LATE, bytes: 0, offset: 0, settled_at });
        }
        self.order();
    }

    /// Indexes the trials of a records file.
    fn index(&mut self, path: PathBuf) -> Result<(), SettlementsError> {
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
            let SettlementKey { trial, verdict, settled_at } = parse(&path, &line)?;
            let bytes = u32::try_from(line.len());
            match trial.and_then(|trial| self.plan.ordinal(&trial)) {
                Some(ordinal) => {
                    let bytes = bytes.map_err(|_| too_long(&path))?;
                    let file = number;
                    self.positions.push(TrialPosition { ordinal, file, bytes, offset, settled_at });
                }
                None => self.unplanned += 1,
            }
            verdict.rewards.into_keys().for_each(|key| self.keys.add(key));
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

    /// Reward keys of verifiers that report several numbers, ascending.
    pub(super) fn keys(&self) -> Vec<String> {
        self.keys.keys.iter().cloned().collect()
    }

    /// Whether there are more keys than [`keys`](Self::keys) returns.
    pub(super) fn keys_left_out(&self) -> bool {
        self.keys.left_out
    }

    /// Settlements whose trials are not in the plan.
    pub(super) fn unplanned(&self) -> u64 {
        self.unplanned
    }

    /// Reads the trial at an index below [`len`](Self::len), in plan order, with its ordinal.
    pub(super) fn get(&self, index: u64) -> Result<(u64, Settlement), SettlementsError> {
        let position = self.positions[usize::try_from(index).expect("an index of a list")];
        if position.file == LATE {
            return Ok((position.ordinal, self.late[&position.ordinal].clone()));
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

impl RewardKeys {
    fn add(&mut self, key: String) {
        if self.keys.len() < MAX_KEYS || self.keys.contains(&key) {
            self.keys.insert(key);
        } else {
            self.left_out = true;
        }
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
