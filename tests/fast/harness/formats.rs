//! The table of tasks of both formats names every task.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rollout_protocol::error::ErrorType;
use rollout_tests::formats::FormatTable;
use rollout_tests::project::fixtures;

#[test]
fn formats_table_matches_tasks() {
    let formats = FormatTable::read();
    for (dataset, tasks) in &formats.0 {
        let entries = fs::read_dir(fixtures().join("formats").join(dataset)).expect("there");
        let there: BTreeSet<_> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        assert_eq!(there, tasks.keys().cloned().collect());
        for (name, outcome) in tasks {
            let known = |error: &String| ErrorType::ALL.iter().any(|t| t.as_str() == error);
            assert!(outcome.error.as_ref().is_none_or(known), "{name}");
            let says = outcome.error.is_some() || !outcome.rewards.is_empty();
            assert!(says || outcome.reward.is_some(), "{name} has an expected result");
        }
    }
    let count: usize = formats.0.values().map(BTreeMap::len).sum();
    assert!(count >= 50, "{count}");
}
