//! Runs under random faults for a few minutes; `tests/chaos` runs longer.

use std::time::Duration;

use rollout_tests::chaos::{self, ChaosPlan};
use rollout_tests::print_notice;
use rollout_tests::project::Project;

/// The program under test, which can also be the S3 server.
const PROGRAM: &str = env!("CARGO_BIN_EXE_rollout-under-test");

#[test]
fn run_under_repeated_kills_has_same_results() {
    assert_chaos_harmless(&ChaosPlan { only_kills: true, ..plan(1) });
}

#[test]
fn run_under_all_faults_has_same_results() {
    assert_chaos_harmless(&plan(2));
}

#[test]
fn run_under_all_faults_with_store_in_s3_has_same_results() {
    assert_chaos_harmless(&ChaosPlan { s3_program: Some(PROGRAM.into()), ..plan(3) });
}

fn plan(seed: u64) -> ChaosPlan {
    ChaosPlan {
        seed,
        disturbed: Duration::from_secs(180),
        items: 60,
        workers: 3,
        slots: 3,
        seconds: (1.0, 3.0),
        providers: vec!["process".to_owned()],
        pause: (2.0, 4.0),
        lease: Duration::from_secs(6),
        no_return: false,
        only_kills: false,
        s3_program: None,
    }
}

fn assert_chaos_harmless(plan: &ChaosPlan) {
    let project = Project::new(PROGRAM);
    let Some(report) = chaos::run_jobs(plan, project, &print_notice) else { return };
    print_notice(&report.to_string());
    assert_eq!(report.problems, Vec::<String>::new(), "{plan:?}\n{report}");
}
