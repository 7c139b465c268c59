use std::cell::Cell;
use std::io::{self, Read};

use proptest::prelude::*;

use super::*;
use crate::config::{MetricDirection, ScoringProfile};

const HEADER: &str = "config_id,status,mean_topN_avg_return_per_trade_pct_oos,core_topN_cagr,\
                      core_topN_sharpe,core_topN_max_drawdown,core_topN_cvar_05";
const BASELINE: &str = "0,ok,0.02,0.60,1.50,-0.25,-0.09";

fn sweep(rows: &str) -> String {
    format!("{HEADER}\n{rows}\n")
}

fn profile(name: &str) -> ScoringProfile {
    ScoringProfile::built_in(name).expect("built in")
}

fn read(text: &str, limit: Option<u64>) -> SweepSummary {
    summarize(text.as_bytes(), &profile("returns"), limit).expect("a sweep")
}

fn scored(profile: &ScoringProfile, baseline: &str, candidate: &str) -> SweepComparison {
    let read = |text: &str| summarize(text.as_bytes(), profile, None).expect("a sweep");
    compare(&read(baseline), &read(candidate), profile)
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12 * a.abs().max(1.0)
}

/// Expected score of one profile: explore, grade, score to twelve places, primary delta.
type ExpectedScore = (bool, Grade, f64, Option<f64>);

#[test]
fn score_matches_vectors_of_format() {
    use Grade::{Mixed, Promising, Weak};
    let vectors: [(&str, ExpectedScore, ExpectedScore); 7] = [
        (
            "0,ok,0.022,0.63,1.55,-0.24,-0.088",
            (true, Promising, 0.061_414_141_414, Some(0.002)),
            (true, Promising, 0.054_285_714_286, Some(0.05)),
        ),
        (
            "0,ok,0.018,0.62,1.55,-0.25,-0.09",
            (false, Weak, -0.022_222_222_222, Some(-0.002)),
            (false, Mixed, -0.014_285_714_286, Some(0.05)),
        ),
        (
            "0,ok,0.022,0.60,1.50,-0.35,-0.12",
            (false, Weak, -0.042_424_242_424, Some(0.002)),
            (false, Weak, -0.085_714_285_714, Some(0.0)),
        ),
        (BASELINE, (false, Mixed, 0.0, Some(0.0)), (false, Mixed, 0.0, Some(0.0))),
        (
            "0,ok,0.0196,0.66,1.60,-0.24,-0.085",
            (true, Promising, 0.038_989_898_990, Some(-0.0004)),
            (true, Promising, 0.034_285_714_286, Some(0.10)),
        ),
        (
            "0,ok,0.0199,0.59,1.49,-0.252,-0.0905",
            (false, Mixed, -0.008_545_454_545, Some(-0.0001)),
            (false, Mixed, -0.006_571_428_571, Some(-0.01)),
        ),
        (
            "0,ok,nan,0.63,1.55,-0.24,-0.088",
            (true, Promising, 0.039_365_079_365, None),
            (true, Promising, 0.036, Some(0.05)),
        ),
    ];
    for (candidate, returns, sharpe) in vectors {
        for (name, (explore, grade, score, delta)) in [("returns", returns), ("sharpe", sharpe)] {
            let got = scored(&profile(name), &sweep(BASELINE), &sweep(candidate));
            let recommendation = &got.recommendation;
            let shown = format!("{name} {candidate}: {got:?}");
            assert_eq!(
                (recommendation.should_explore, recommendation.grade),
                (explore, grade),
                "{shown}"
            );
            assert!((recommendation.score - score).abs() < 6e-13, "{shown}");
            let same = match (got.primary_delta, delta) {
                (Some(a), Some(b)) => (a - b).abs() < 1e-12,
                (a, b) => a == b,
            };
            assert!(same, "{shown}");
            assert_eq!((got.baseline_rows_used, got.candidate_rows_used), (1, 1));
        }
    }
}

#[test]
fn score_reasons_name_regressed_metrics() {
    let reasons = |candidate: &str| {
        let got = scored(&profile("returns"), &sweep(BASELINE), &sweep(candidate));
        got.recommendation.reasons
    };
    assert_eq!(
        reasons("0,ok,0.018,0.62,1.55,-0.25,-0.09"),
        ["primary_metric_regressed", "insufficient_signal"]
    );
    assert_eq!(
        reasons("0,ok,0.022,0.60,1.50,-0.35,-0.12"),
        ["risk_regressed: core_topN_max_drawdown, core_topN_cvar_05", "insufficient_signal"]
    );
    assert_eq!(reasons("0,ok,0.022,0.63,1.55,-0.24,-0.088"), ["net_improvement"]);
}

#[test]
fn sweep_file_ragged_or_malformed_has_defined_result() {
    let nothing = read(HEADER, Some(3));
    assert_eq!((nothing.rows, nothing.rows_used, nothing.means.len()), (0, 0, 0));
    let got = scored(&profile("returns"), &sweep(BASELINE), HEADER);
    assert_eq!((got.recommendation.grade, got.primary_delta), (Grade::Mixed, None));
    assert!(near(got.recommendation.score, 0.0) && got.columns.is_empty());

    // Short rows have blanks at their end, long ones are cut; text, nan and inf do not count.
    let ragged =
        "\u{feff}config_id,status,x,y\n0,ok,1\n1,ok,3,5,9,9\n2,ok,nan,\n3,ok,inf,text\n4\n";
    let means = read(ragged, None).means;
    assert!(near(means["x"], 2.0) && near(means["y"], 5.0), "{means:?}");
    assert!(!means.contains_key("status"));

    for (text, wrong) in
        [("", "empty"), ("\n\n", "empty"), ("a,b,a\n1,2,3\n", "twice"), ("a,b\n1,\"2\n", "")]
    {
        match summarize(text.as_bytes(), &profile("returns"), None) {
            Err(error) => assert!(error.to_string().contains(wrong), "{text:?}: {error}"),
            Ok(summary) => assert!(wrong.is_empty(), "{text:?}: {summary:?}"),
        }
    }
    let invalid = summarize(&b"a,b\n\xff,1\n"[..], &profile("returns"), None);
    assert!(matches!(invalid, Err(SweepError::Csv(_))), "{invalid:?}");
}

#[test]
fn sweep_config_limit_selects_rows_by_config_id() {
    let text = "config_id,status,x\n3.0,ok,1\n0,error,2\n1.5,ok,100\n-1,ok,100\nx,ok,100\n1,ok,4\n";
    let used = read(text, Some(2));
    assert_eq!(used.rows_used, 2);
    assert!(near(used.means["x"], 3.0), "{used:?}");
    assert_eq!(read(text, Some(4)).rows_used, 3);
    // None is below the limit: the first rows are used.
    let high = "config_id,status,x\n7,ok,1\n8,ok,3\n9,ok,100\n";
    let used = read(high, Some(2));
    assert_eq!(used.rows_used, 2);
    assert!(near(used.means["x"], 2.0), "{used:?}");
    let without = read("x\n1\n3\n100\n", Some(2));
    assert_eq!((without.rows_used, without.missing_columns.len()), (2, 2));
    assert!(without.completeness.is_none());
}

#[test]
fn completeness_needs_every_config_ok_exactly_once() {
    let complete = |rows: &str| {
        let text = format!("config_id,status\n{rows}");
        read(&text, Some(2)).completeness.expect("both columns").is_complete()
    };
    assert!(complete("0,ok\n1,OK\n"));
    assert!(complete("0,ok\n1.0, ok \n5,error\nx,error\n"), "others do not count");
    assert!(!complete("0,ok\n"), "a configuration is missing");
    assert!(!complete("0,ok\n1,error\n"));
    assert!(!complete("0,ok\n1,ok\n1,ok\n"), "a configuration is repeated");
    assert!(!complete("0,ok\n1,error\n1,ok\n"), "a repeated row does not replace a failed one");
    assert!(!complete("0,ok\n1\n"), "a missing status is not a success");
    let all = read("config_id,status\n0,ok\n1,ok\n2,error\n3,ok\n", None).completeness;
    assert_eq!(all.and_then(|all| all.ok_rate()), Some(0.75));
    // Without a limit the status is enough, with one it is not.
    let status = "status,x\nok,1\nerror,2\n";
    assert_eq!(read(status, None).completeness.and_then(|all| all.ok_rate()), Some(0.5));
    let limited = read(status, Some(2));
    assert_eq!((limited.completeness, limited.missing_columns), (None, vec!["config_id".into()]));
    assert_eq!(read("config_id,x\n0,1\n", None).missing_columns, ["status"]);
}

#[test]
fn metric_with_direction_lower_improves_when_it_falls() {
    let mut lower = profile("returns");
    lower.primary.column = "loss".to_owned();
    lower.primary.direction = MetricDirection::Lower;
    lower.metrics.truncate(1);
    lower.metrics[0].column = "loss".to_owned();
    lower.metrics[0].direction = MetricDirection::Lower;
    let got = scored(&lower, "loss\n2\n", "loss\n1\n");
    assert_eq!(got.primary_delta, Some(1.0));
    assert!(near(got.recommendation.score, 0.5) && got.recommendation.should_explore);
    assert!(near(got.columns["loss"].delta, -1.0));
}

proptest! {
    #[test]
    fn sweep_file_of_arbitrary_bytes_never_panics(bytes: Vec<u8>, limit in proptest::option::of(0..5u64)) {
        if let Ok(summary) = summarize(&bytes[..], &profile("returns"), limit) {
            prop_assert!(summary.rows_used <= summary.rows);
            prop_assert!(summary.means.values().all(|mean| mean.is_finite()));
        }
    }

    #[test]
    fn column_mean_does_not_depend_on_row_order(mut values in proptest::collection::vec(-1e9..1e9f64, 1..50)) {
        let mean = |values: &[f64]| {
            let text: String = values.iter().map(|value| format!("{value:e}\n")).collect();
            read(&format!("x\n{text}"), None).means["x"]
        };
        let forwards = mean(&values);
        values.reverse();
        prop_assert!((forwards - mean(&values)).abs() < 1e-6, "{values:?}");
    }
}

/// A file without an end.
struct Endless<'a> {
    byte: u8,
    read: &'a Cell<usize>,
}

impl Read for Endless<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        buffer.fill(self.byte);
        self.read.set(self.read.get() + buffer.len());
        Ok(buffer.len())
    }
}

#[test]
fn endless_record_is_refused_after_a_bounded_read() {
    for (start, byte) in
        [("", b','), ("", b'0'), ("", b'\n'), ("a,b\n", b','), ("a,b\n1,\"", b'\n')]
    {
        let read = Cell::new(0);
        let file = start.as_bytes().chain(Endless { byte, read: &read });
        let refused = summarize(file, &profile("returns"), None);
        assert!(matches!(refused, Err(SweepError::LargeRecord)), "{start:?}, {byte}: {refused:?}");
        assert!(read.get() < 2 * 1024 * 1024, "{start:?}, {byte}: {} bytes", read.get());
    }
}

/// A file on a disk that fails.
struct Faulty;

impl Read for Faulty {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::other("the disk fails"))
    }
}

#[test]
fn sweep_on_failing_disk_is_no_fault_of_its_content() {
    for start in ["", "a,b\n1,2\n"] {
        let failed = summarize(start.as_bytes().chain(Faulty), &profile("returns"), None);
        assert!(matches!(failed, Err(SweepError::Io(_))), "{start:?}: {failed:?}");
    }
}

#[test]
fn sweep_of_many_small_records_may_be_larger_than_a_record() {
    let rows = vec![BASELINE; 64 * 1024].join("\n");
    assert!(rows.len() > 1024 * 1024, "{}", rows.len());
    assert_eq!(read(&sweep(&rows), None).rows, 64 * 1024);
}
