//! `rollout tree score`: reference vectors, invalid files, odd rows and cells.

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use serde_json::Value;

use crate::tree::{DEADLINE, project};

const HEADER: &str = "config_id,status,mean_topN_avg_return_per_trade_pct_oos,core_topN_cagr,\
                      core_topN_sharpe,core_topN_max_drawdown,core_topN_cvar_05";
const BASELINE: &str = "0,ok,0.02,0.60,1.50,-0.25,-0.09";

/// The JSON document of a comparison.
fn score_document(project: &Project, options: &[&str]) -> Value {
    let files = ["tree", "score", "--json", "--baseline", "a.csv", "--candidate", "b.csv"];
    let ended = project.rollout(&[&files[..], options].concat()).wait(DEADLINE);
    serde_json::from_str(&ended.expect_code(ExitCode::Success).stdout).expect("a JSON document")
}

/// A project with a baseline and a candidate.
fn files(baseline: &str, candidate: &str) -> Project {
    project().write("a.csv", baseline).write("b.csv", candidate)
}

fn rows(candidate: &str) -> Project {
    files(&format!("{HEADER}\n{BASELINE}\n"), &format!("{HEADER}\n{candidate}\n"))
}

fn assert_near(found: &Value, expected: f64, what: &str) {
    let found = found.as_f64().unwrap_or(f64::NAN);
    assert!((found - expected).abs() < 1e-12, "{what}: {found}, expected {expected}");
}

/// Explore, grade, score, difference of the primary metric.
type ExpectedScore = (bool, &'static str, f64, Option<f64>);

const VECTORS: [(&str, ExpectedScore, ExpectedScore); 7] = [
    (
        "0,ok,0.022,0.63,1.55,-0.24,-0.088",
        (true, "promising", 0.061_414_141_414, Some(0.002)),
        (true, "promising", 0.054_285_714_286, Some(0.05)),
    ),
    (
        "0,ok,0.018,0.62,1.55,-0.25,-0.09",
        (false, "weak", -0.022_222_222_222, Some(-0.002)),
        (false, "mixed", -0.014_285_714_286, Some(0.05)),
    ),
    (
        "0,ok,0.022,0.60,1.50,-0.35,-0.12",
        (false, "weak", -0.042_424_242_424, Some(0.002)),
        (false, "weak", -0.085_714_285_714, Some(0.0)),
    ),
    (BASELINE, (false, "mixed", 0.0, Some(0.0)), (false, "mixed", 0.0, Some(0.0))),
    (
        "0,ok,0.0196,0.66,1.60,-0.24,-0.085",
        (true, "promising", 0.038_989_898_990, Some(-0.0004)),
        (true, "promising", 0.034_285_714_286, Some(0.10)),
    ),
    (
        "0,ok,0.0199,0.59,1.49,-0.252,-0.0905",
        (false, "mixed", -0.008_545_454_545, Some(-0.0001)),
        (false, "mixed", -0.006_571_428_571, Some(-0.01)),
    ),
    (
        "0,ok,nan,0.63,1.55,-0.24,-0.088",
        (true, "promising", 0.039_365_079_365, None),
        (true, "promising", 0.036, Some(0.05)),
    ),
];

#[test]
fn score_of_reference_vectors_matches() {
    for (candidate, returns, sharpe) in VECTORS {
        let project = rows(candidate);
        for (name, (explore, grade, score, delta)) in [("returns", returns), ("sharpe", sharpe)] {
            let found = score_document(&project, &["--profile", name]);
            let recommendation = &found["recommendation"];
            assert_eq!(recommendation["should_explore"], explore, "{name} {candidate}");
            assert_eq!(recommendation["grade"], grade, "{name} {candidate}");
            assert_near(&recommendation["score"], score, candidate);
            match delta {
                Some(delta) => assert_near(&found["primary_delta"], delta, candidate),
                None => assert_eq!(found["primary_delta"], Value::Null, "{candidate}"),
            }
            assert_eq!(found["baseline_rows_used"], 1);
            assert_eq!(found["candidate_rows_used"], 1);
            assert!(recommendation["reasons"].is_array());
        }
    }
}

#[test]
fn score_of_invalid_results_file_is_refused() {
    let good = format!("{HEADER}\n{BASELINE}\n");
    for (candidate, word) in
        [("", "empty"), ("\n\n", "empty"), ("config_id,status,config_id\n0,ok,1\n", "twice")]
    {
        let files = files(&good, candidate);
        let words = ["tree", "score", "--baseline", "a.csv", "--candidate", "b.csv", "--json"];
        let ended =
            files.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Config).expect_stderr(word);
        assert_eq!(ended.stdout, "");
    }
    let words = ["tree", "score", "--baseline", "a.csv", "--candidate", "none.csv"];
    let _gone = rows(BASELINE)
        .rollout(&words)
        .wait(DEADLINE)
        .expect_code(ExitCode::Config)
        .expect_stderr("none.csv");
}

#[test]
fn score_of_odd_rows_and_cells_is_defined() {
    let candidate = |text: &str, options: &[&str]| {
        let baseline = "config_id,status,core_topN_sharpe\n0,ok,1\n1,ok,1\n";
        let mut options = options.to_vec();
        options.extend(["--profile", "sharpe"]);
        score_document(&files(baseline, text), &options)
    };
    // No rows: no configuration is on both sides.
    let found = candidate("config_id,status,core_topN_sharpe\n", &["--limit", "2"]);
    assert_eq!(found["candidate_rows_used"], 0);
    assert_eq!(
        (&found["primary_delta"], &found["candidate_is_complete"]),
        (&Value::Null, &false.into())
    );
    assert_eq!(found["recommendation"]["grade"], "mixed");
    // Without the columns `config_id` and `status`, completeness is unknown and the first rows are
    // used.
    let found = candidate("core_topN_sharpe\n2\n4\n9\n", &["--limit", "2"]);
    assert_eq!(found["candidate_completeness"], Value::Null);
    assert_eq!(found["candidate_rows_used"], 2);
    assert_near(&found["primary_delta"], 2.0, "the first two");
    // A duplicate configuration makes a sweep incomplete; a fractional one does not count.
    let found = candidate("config_id,status,core_topN_sharpe\n0,ok,1\n0,ok,1\n", &["--limit", "2"]);
    assert_eq!(
        (&found["candidate_is_complete"], &found["candidate_rows_used"]),
        (&false.into(), &2.into())
    );
    let text = "config_id,status,core_topN_sharpe\n0,ok,1\n0.5,ok,9\n1.0,OK,3\n";
    let found = candidate(text, &["--limit", "2"]);
    assert_eq!(
        (&found["candidate_is_complete"], &found["candidate_rows_used"]),
        (&true.into(), &2.into())
    );
    assert_near(&found["primary_delta"], 1.0, "0 and 1.0");
    // Cells that are missing or not finite numbers are left out of the mean.
    let text = "config_id,status,core_topN_sharpe\n0,ok,nan\n1,ok,inf\n2,ok\n3,ok,-Infinity\n4,ok,3,7\n5,ok,\n";
    let found = candidate(text, &[]);
    assert_eq!(found["candidate_rows_used"], 6);
    assert_near(&found["primary_delta"], 2.0, "of the only number");
}
