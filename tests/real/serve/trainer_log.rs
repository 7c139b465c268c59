//! The log of a trainer that was killed, and the rules that it shows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

/// Everything that a trainer read and acknowledged.
#[derive(Debug, Default)]
pub(crate) struct TrainerLog {
    /// Completions by their cursors.
    pub(crate) completions: BTreeMap<u64, Value>,
    /// Readings that showed completions.
    pub(crate) pages: usize,
    /// Completions that were shown again.
    pub(crate) repeated: usize,
    /// Farms that its processes opened.
    farms: BTreeSet<String>,
    /// Cursors whose acknowledgement was sent; the answer may be lost.
    sent: BTreeSet<u64>,
    /// Cursors whose acknowledgement was answered.
    answered: BTreeSet<u64>,
    /// Policy versions whose weight sync was answered.
    pub(crate) versions: BTreeSet<u64>,
    is_closed: bool,
}

impl TrainerLog {
    /// Reads a log, and checks every reading.
    ///
    /// # Panics
    /// When a reading shows what it may not.
    #[track_caller]
    pub(crate) fn read(path: &Path) -> Self {
        let mut log = Self::default();
        let text = std::fs::read_to_string(path).expect("a log");
        // A killed process may have cut a line: it did nothing after that.
        for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            if let Some(farm) = line["farm"].as_str() {
                log.farms.insert(farm.to_owned());
            }
            log.sent.extend(numbers(&line["acknowledging"]));
            log.answered.extend(numbers(&line["acknowledged"]));
            log.versions.extend(line["version"].as_u64());
            log.is_closed |= line["closed"].is_string();
            if let Some(page) = line["completions"].as_array() {
                log.take(line["after"].as_u64().expect("a cursor"), page);
            }
        }
        log
    }

    /// A page has completions above its cursor in their order. Gaps were acknowledged, and nothing
    /// else is missing.
    #[track_caller]
    fn take(&mut self, after: u64, page: &[Value]) {
        let mut former = after;
        self.pages += usize::from(!page.is_empty());
        for completion in page {
            let cursor = completion["cursor"].as_u64().expect("a cursor");
            assert!(cursor > former, "{cursor} comes after {former}");
            let missing = (former + 1..cursor).find(|gap| !self.sent.contains(gap));
            assert_eq!(missing, None, "not acknowledged, between {former} and {cursor}");
            assert!(!self.answered.contains(&cursor), "{cursor} is shown after its answer");
            match self.completions.get(&cursor) {
                Some(known) => {
                    assert_eq!(known, completion, "a completion does not change");
                    self.repeated += 1;
                }
                None => drop(self.completions.insert(cursor, completion.clone())),
            }
            former = cursor;
        }
    }

    /// Fails unless the one farm ended every sample of every group once, with a reward, and every
    /// cursor was read and acknowledged. Returns the farm.
    #[track_caller]
    pub(crate) fn assert_complete(&self, groups: usize, n: usize) -> &str {
        let cursors: Vec<_> = self.completions.keys().copied().collect();
        assert_eq!(cursors, (1..=(groups * n) as u64).collect::<Vec<_>>(), "cursors are dense");
        assert_eq!(self.sent.iter().copied().collect::<Vec<_>>(), cursors, "all are acknowledged");
        let mut samples: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
        let mut ends: BTreeMap<&str, &str> = BTreeMap::new();
        let mut version = 0;
        for completion in self.completions.values() {
            let ended = completion["policy"]["ended"].as_u64().expect("a version");
            assert!(ended >= version, "version {ended} after {version}: {completion:#}");
            version = ended;
            let group = completion["group"].as_str().expect("a group");
            let index = completion["index"].as_u64().expect("an index");
            assert!(samples.entry(group).or_default().insert(index), "{group}/{index} ended twice");
            assert_eq!(completion["reward"], 1.0, "{completion:#}");
            assert_eq!(completion["usable"], true, "{completion:#}");
            if let Some(end) = completion["group_end"].as_str() {
                assert_eq!(ends.insert(group, end), None, "{group} ended twice");
            }
        }
        assert_eq!(samples.len(), groups, "every group has completions");
        let whole: BTreeSet<_> = (0..n as u64).collect();
        assert!(samples.values().all(|indexes| *indexes == whole), "{samples:?}");
        assert_eq!(ends.len(), groups, "every group ended");
        assert!(ends.values().all(|end| *end == "complete"), "{ends:?}");
        assert!(self.is_closed, "the trainer ended in order");
        assert_eq!(self.farms.len(), 1, "one farm under one key");
        self.farms.first().expect("a farm")
    }

    /// Executions of the samples that decided their completions, and others of the same generation.
    pub(crate) fn executions(&self) -> u64 {
        let others = |one: &Value| one["other_executions"].as_u64().unwrap_or_default();
        self.completions.values().map(|one| 1 + others(one)).sum()
    }
}

fn numbers(list: &Value) -> impl Iterator<Item = u64> {
    list.as_array().into_iter().flatten().filter_map(Value::as_u64)
}
