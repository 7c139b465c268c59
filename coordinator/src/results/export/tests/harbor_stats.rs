//! The figures of a job in Harbor's layout, compared with those of Harbor.

use rollout_protocol::record::{GatewaySummary, TokenUsage};

use super::*;

/// The figures that Harbor 0.26.0 computes of the exported trials. Written by
/// `tests/harbor/stats.py DIR`, with the directory that a failure of the test keeps, in an environment
/// with the package `harbor==0.26.0`.
const GOLDEN: &str = "src/results/export/golden/harbor_stats.json";

/// An agent's calls with these tokens and this cost.
fn calls(input: u64, output: u64, cost: f64, unpriced_calls: u64) -> GatewaySummary {
    let usage = TokenUsage { input, cached_input: input / 2, output, ..TokenUsage::default() };
    GatewaySummary { calls: 2, usage, cost, unpriced_calls, ..GatewaySummary::default() }
}

/// Settles a trial, with a record of its calls and steps.
async fn settle(
    run: &mut TestRun,
    trial: TrialName,
    verdict: Verdict,
    gateway: Option<GatewaySummary>,
    step_error: Option<TrialError>,
) {
    let settled = settlement(trial, verdict);
    let step = step_error.map(|error| StepRecord {
        name: "one".into(),
        reward: Some(1.0),
        rewards: Rewards::new(),
        error: Some(error),
        agent_execution_started_at: Some(at(1)),
        agent_execution_ended_at: Some(at(2)),
        verifier_started_at: None,
        verifier_ended_at: None,
        logs: None,
        harness: None,
    });
    let recorded = TrialRecord {
        gateway: gateway.map(Box::new),
        steps: step.into_iter().collect(),
        ..record(&settled)
    };
    run.settle(settled, Some(recorded)).await;
}

/// A run with every kind of end that Harbor tells apart.
async fn run_of_all_ends() -> TestRun {
    let mut run = TestRun::with(4, &["mean", "max"]);
    let of = |kind, class| error(kind, class, "an error");
    let timeout = || of(ErrorType::AgentExecutionTimeout, ErrorClass::Agent);
    let with_error = |verdict, error| Verdict { error: Some(error), ..verdict };
    let numbers = |pairs: &[(&str, f64)]| Verdict {
        reward: None,
        rewards: pairs.iter().map(|(key, number)| ((*key).to_owned(), *number)).collect(),
        ..Verdict::completed(0.0)
    };
    let missing = of(ErrorType::VerifierRewardMissing, ErrorClass::Verifier);
    let unable = of(ErrorType::EnvironmentStartFailed, ErrorClass::Infrastructure);
    let unbuilt = of(ErrorType::EnvironmentBuildTimeout, ErrorClass::Task);
    let unverified = of(ErrorType::VerifierTimeout, ErrorClass::Verifier);
    for (trial, verdict, gateway, step) in [
        (name(0, 0, 1), Verdict::completed(1.0), Some(calls(100, 7, 0.25, 0)), None),
        (name(0, 0, 2), Verdict::completed(0.0), Some(calls(50, 3, 0.5, 1)), None),
        (name(0, 0, 3), with_error(Verdict::completed(1.0), timeout()), None, None),
        (name(0, 0, 4), Verdict::failed(missing), Some(calls(0, 0, 0.0, 0)), None),
        (name(0, 1, 1), Verdict::completed(1.0), None, None),
        (name(0, 1, 2), Verdict::completed(0.0), None, Some(timeout())),
        (name(0, 1, 3), Verdict::failed(unable), None, None),
        (name(0, 1, 4), Verdict::cancelled(0.0), None, None),
        (name(1, 0, 1), numbers(&[("a", 1.0), ("b", -0.25)]), None, None),
        (name(1, 0, 2), numbers(&[("a", 0.5)]), None, None),
        (name(1, 0, 3), Verdict::completed(1.0), None, Some(unverified)),
        (name(1, 0, 4), Verdict::failed(unbuilt), None, None),
    ] {
        settle(&mut run, trial, verdict, gateway, step).await;
    }
    run.close();
    run
}

/// Whether two documents are equal but for the rounding of numbers and the order of names.
fn is_close(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => {
            let has = |(key, value): (&String, &Value)| {
                expected.get(key).is_some_and(|expected| is_close(value, expected))
            };
            found.len() == expected.len() && found.iter().all(has)
        }
        (Value::Array(found), Value::Array(expected)) => {
            let sorted = |values: &[Value]| {
                let mut texts: Vec<_> = values.iter().map(Value::to_string).collect();
                texts.sort();
                texts
            };
            let is_names = found.iter().all(Value::is_string);
            let is_equal = found.len() == expected.len()
                && found.iter().zip(expected).all(|(one, other)| is_close(one, other));
            is_equal || is_names && sorted(found) == sorted(expected)
        }
        (Value::Number(found), Value::Number(expected)) => {
            let number = |value: &serde_json::Number| value.as_f64().unwrap_or(f64::NAN);
            (number(found) - number(expected)).abs() < 1e-12
        }
        (found, expected) => found == expected,
    }
}

#[tokio::test]
async fn settlements_of_the_journal_replace_those_of_the_records() {
    let mut run = run().await;
    run.lines.extend_from_slice(b"{\"item\": \"0");
    run.close();
    let journaled = |trial, reward, second| Settlement {
        settled_at: at(second),
        ..settlement(trial, Verdict::completed(reward))
    };
    // The records have the first, an older line of the second, and lack the third. The fourth runs
    // again: its line in the records no longer counts, nor does its settlement in the journal.
    let known = settlement(name(0, 1, 2), Verdict::completed(0.0));
    let [later, new] = [journaled(name(0, 0, 1), 0.25, 99), journaled(name(0, 1, 1), 0.5, 99)];
    let reopened = journaled(name(1, 0, 2), 0.75, 10);
    let mut settled = SettledTrials::open(&run.path()).expect("opened");
    let plan = testing::plan(&AGENTS, &TASKS, 2, about);
    for journaled in [&known, &later, &new, &reopened] {
        let ordinal = plan.ordinal(journaled.trial().expect("a trial")).expect("planned");
        settled.add_journaled(ordinal, journaled);
    }
    settled.keep(|item| {
        let in_effect = [&known, &later, &new].into_iter().find(|of| of.item == *item);
        in_effect.map(|of| of.settled_at)
    });
    let header = RunHeader {
        run: testing::run(),
        job: "a job".to_owned(),
        created_at: at(0),
        updated_at: at(9),
        is_completed: false,
        settled: 3,
    };
    let (store, out) = (Arc::clone(&run.store) as Arc<dyn BlobStore>, run.path().join("out"));
    let (run_dir, format, min_reward) = (run.path(), ExportFormat::Jsonl, DEFAULT_MIN_REWARD);
    let request = ExportRequest {
        run_dir,
        store,
        format,
        out: Some(out.clone()),
        shown_in: None,
        min_reward,
    };
    let exported = super::super::export(&request, header, settled).await.expect("exported");
    assert_eq!((exported.trials, exported.missing), (3, 0));
    let text = fs::read_to_string(out).expect("written");
    let rewards = text.lines().map(|line| -> Value { serde_json::from_str(line).expect("JSON") });
    let rewards: Vec<Value> = rewards.map(|line| line["reward"].clone()).collect();
    assert_eq!(rewards, [json!(0.25), json!(0.5), Value::Null]);
}

#[tokio::test]
async fn stats_equal_those_that_harbor_computes() {
    let run = run_of_all_ends().await;
    let jobs = run.path().join("jobs");
    run.export(ExportFormat::Harbor, &jobs).await.expect("exported");
    let job = jobs.join("a job");
    let read = |path: PathBuf| -> Value {
        serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON")
    };
    let found = read(job.join("result.json"))["stats"].clone();
    let mut expected = read(Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN));
    // Harbor sums the costs that are known, and does not say that it leaves out a trial.
    assert_eq!(expected["cost_usd"].take(), 0.25);
    if !is_close(&found, &expected) {
        let kept = run.dir.keep().join("jobs/a job");
        panic!("{found:#}\n\nexported to {}", kept.display());
    }
}
