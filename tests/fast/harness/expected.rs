//! The table of expected results of fixtures names every fixture.

use std::fs;

use rollout_protocol::error::ErrorType;
use rollout_tests::expected::ExpectedTrials;
use rollout_tests::project::fixtures;

#[test]
fn expected_table_matches_fixtures() {
    let expected = ExpectedTrials::read();
    let names = |below: &str| {
        let entries = fs::read_dir(fixtures().join(below)).expect("a directory");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names("tasks/faults"), expected.faults.keys().cloned().collect::<Vec<_>>());
    assert_eq!(names("tasks/bad-toml"), expected.invalid_tasks.keys().cloned().collect::<Vec<_>>());
    let jobs: Vec<_> = names("jobs/invalid").iter().map(|name| format!("invalid/{name}")).collect();
    assert_eq!(jobs, expected.invalid_jobs.keys().cloned().collect::<Vec<_>>());
    let types: Vec<_> = ErrorType::ALL.iter().map(|t| t.as_str()).collect();
    for (name, outcome) in expected.faults.iter().chain(&expected.agents) {
        let known = outcome.error.as_deref().is_none_or(|error| types.contains(&error));
        assert!(known && outcome.error.is_some() != outcome.reward.is_some(), "{name}");
    }
}
