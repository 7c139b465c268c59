//! The baseline of a search, and results without the profile's metrics.

use rollout_protocol::exit::ExitCode;
use rollout_tests::results::json;

use crate::tree::DEADLINE;
use crate::tree::small_search::{SmallSearch, results_script};

/// Runs a search with this baseline; fails unless it is refused with these messages and creates
/// nothing.
fn assert_refused(baseline: &str, says: &[&str]) {
    let project = SmallSearch { baseline: baseline.to_owned(), ..SmallSearch::default() }.write();
    let mut ended =
        project.rollout(&SmallSearch::run(&[])).wait(DEADLINE).expect_code(ExitCode::Config);
    for words in says {
        ended = ended.expect_stderr(words);
    }
    assert!(!project.path().join("runs/small").exists(), "a search was created");
}

#[test]
fn baseline_without_primary_metric_is_refused() {
    let columns = "no column `v`, the primary metric of the profile `speed`; the columns are";
    assert_refused("config_id,status,w\n0,ok,1\n1,ok,1\n2,ok,1\n", &[columns]);
    let cells = "config_id,status,v\n0,ok,nan\n1,ok,\n2,ok,inf\n";
    assert_refused(cells, &["no number in the column `v`, the primary metric"]);
}

#[test]
fn baseline_without_all_configs_is_refused() {
    let rows = "config_id,status,v\n0,ok,1\n0,ok,1\n2,error,1\n7,error,1\n";
    let missing = "no row for 1 of 3 configurations: 1";
    let failed = "failed rows for 1 of 3 configurations: 2";
    assert_refused(rows, &[missing, failed, "more than one row for a configuration: 0"]);
    assert_refused("config_id,v\n0,1\n1,1\n2,1\n", &["no column `status`"]);
    assert_refused("", &["the file is empty"]);
}

#[test]
fn baseline_invalid_in_dry_run_is_warned_of() {
    let project =
        SmallSearch { baseline: "config_id,status\n".to_owned(), ..SmallSearch::default() }.write();
    let played = project.rollout(&SmallSearch::run(&["--dry-run"])).wait(DEADLINE);
    let _warned =
        played.expect_code(ExitCode::Success).expect_stderr("a search without `--dry-run` refuses");
}

#[test]
fn baseline_without_secondary_metric_is_warned_of() {
    let rows = "config_id,status,v\n0,ok,1\n1,ok,1\n2,ok,1\n".to_owned();
    let project = SmallSearch { baseline: rows, ..SmallSearch::default() }.write();
    let ended =
        project.rollout(&SmallSearch::run(&[])).wait(DEADLINE).expect_code(ExitCode::Success);
    let _warned = ended.expect_stderr("the baseline has no number in `w`");
}

#[test]
fn results_without_profile_metric_are_warned_of() {
    let other = "config_id,status,z\n0,ok,1\n1,ok,1\n2,ok,1\n";
    let project = SmallSearch { sweep: results_script(other), ..SmallSearch::default() }.write();
    let ended =
        project.rollout(&SmallSearch::run(&[])).wait(DEADLINE).expect_code(ExitCode::Success);
    let words = "the results have no number in any metric of the profile `speed` (`v`, `w`); their \
                 columns are `config_id`, `status`, `z`";
    let _warned = ended.expect_stderr(words);
    let manifest =
        json(&SmallSearch::directory(&project).join("manifest.json")).expect("a manifest");
    let error = &manifest["evaluations"]["0000"]["error"];
    assert_eq!(
        (&error["error_type"], &error["message"]),
        (&"metrics_missing".into(), &words.into())
    );
}
