//! Traces of runs in one process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rollout_protocol::exit::ExitCode;
use rollout_tests::net::free_port;
use rollout_tests::otlp_collector::{CollectorAnswer, OtlpCollector, assert_trial_tree};
use rollout_tests::program::ProgramExit;
use rollout_tests::project::Project;

use crate::e2e::{DEADLINE, assert_adds_up, project};

/// A word that only agents and tests see.
const SECRET: &str = "word-of-the-agent";

/// An agent that prints and has a secret, on a task that passes and on one whose tests fail.
const JOB: &str = "\
name: traced
environment: {type: process}
retry: {max_attempts: 1}
agents:
  - name: prints
    env: {TOKEN: '${TOKEN}'}
    install: 'true'
    execute: 'echo $TOKEN'
datasets:
  - path: tasks
";

fn traced_project() -> Project {
    let tasks = ["faults/passes", "faults/verifier-failed"];
    project().tasks(tasks, &[]).write("job.yaml", JOB)
}

fn run(project: &Project, variables: &[(String, String)]) -> ProgramExit {
    let mut command = project.command(&["run", "job.yaml"]);
    command.env("TOKEN", SECRET).envs(variables.iter().map(|(name, value)| (name, value)));
    let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_adds_up(&project.results("traced"), 2);
    assert_eq!(project.results("traced").count("completed_trials"), 1);
    ended
}

#[test]
fn every_trial_has_one_trace_with_its_phases() {
    let (project, collector) = (traced_project(), OtlpCollector::start(CollectorAnswer::Takes));
    let ended = run(&project, &collector.environment());
    assert!(!ended.stderr.contains("traces"), "{}", ended.stderr);
    let spans = collector.spans();
    let mut traces = BTreeMap::<_, Vec<_>>::new();
    for span in &spans {
        assert_eq!(span.service, "rollout-coordinator");
        traces.entry(&span.trace).or_default().push(span);
    }
    assert_eq!(traces.len(), 2, "{spans:#?}");
    let ids: BTreeSet<_> = spans.iter().map(|span| &span.id).collect();
    assert_eq!(ids.len(), spans.len(), "an id of a span is used twice");
    let roots = traces.values().map(|spans| assert_trial_tree(spans));
    let mut outcomes = BTreeMap::new();
    for root in roots {
        let attribute = |name: &str| root.attributes.get(name).map(String::as_str);
        assert_eq!(
            (attribute("rollout.agent"), attribute("rollout.tries")),
            (Some("prints"), Some("1"))
        );
        let facts = (attribute("rollout.outcome"), attribute("error.type"), root.is_error);
        outcomes.insert(attribute("rollout.task").expect("a name"), facts);
    }
    let expected = BTreeMap::from([
        ("passes", (Some("completed"), None, false)),
        ("verifier-failed", (Some("failed"), Some("verifier_failed"), true)),
    ]);
    assert_eq!(outcomes, expected);
    assert!(collector.headers("authorization").iter().all(|value| value == "Bearer word"));
    for text in [SECRET, "TOKEN", "echo", "test.sh"] {
        assert!(!collector.has_seen(text), "{text:?} was exported");
    }

    // The results are replayed, and their spans are not exported again.
    let requests = collector.requests();
    let _again = run(&project, &collector.environment());
    assert_eq!(collector.requests(), requests);
}

#[test]
fn run_without_endpoint_or_with_traces_disabled_sends_nothing() {
    let (project, collector) = (traced_project(), OtlpCollector::start(CollectorAnswer::Takes));
    let disabled = ("OTEL_SDK_DISABLED".to_owned(), "true".to_owned());
    let variables: Vec<_> = collector.environment().into_iter().chain([disabled]).collect();
    let _ended = run(&project, &variables);
    let other = traced_project();
    let _ended = run(&other, &collector.environment()[1..]);
    assert_eq!(collector.requests(), 0);
}

#[test]
fn sampler_chooses_traces() {
    let (project, collector) = (traced_project(), OtlpCollector::start(CollectorAnswer::Takes));
    let sampler = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0")];
    let sampler = sampler.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let variables: Vec<_> = collector.environment().into_iter().chain(sampler).collect();
    let _ended = run(&project, &variables);
    assert_eq!(collector.spans(), []);
}

#[test]
fn invalid_setting_is_a_warning() {
    let project = traced_project();
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), "user:password@host".to_owned());
    let ended = run(&project, &[endpoint]);
    let text = "`OTEL_EXPORTER_OTLP_ENDPOINT` is no `http` or `https` address";
    let ended = ended.expect_stderr(text);
    assert!(!ended.stderr.contains("password"), "{}", ended.stderr);
}

#[test]
fn collector_that_is_down_or_slow_changes_no_result() {
    let timed = |variables: &[(String, String)]| {
        let (project, begun) = (traced_project(), Instant::now());
        (run(&project, variables), begun.elapsed())
    };
    let endpoint = |address| ("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), address);
    let hanging = OtlpCollector::start(CollectorAnswer::Hangs);
    let refusing = OtlpCollector::start(CollectorAnswer::Refuses);
    let down = endpoint(format!("http://127.0.0.1:{}", free_port()));
    for (variables, reason) in [
        (vec![down], None),
        (hanging.environment().to_vec(), None),
        (refusing.environment().to_vec(), Some("the collector answered 400 Bad Request")),
    ] {
        let (ended, took) = timed(&variables);
        // Other programs may keep the machine busy for the one run and not for the other.
        let usual = timed(&[]).1;
        // Three seconds for the last spans, and those of a busy machine.
        let limit = usual * 3 + Duration::from_secs(13);
        assert!(took < limit, "{took:?} instead of {usual:?}");
        let ended = ended.expect_stderr("spans were not exported");
        if let Some(reason) = reason {
            let _ended = ended.expect_stderr(reason);
        }
    }
    assert!(hanging.requests() > 0 && refusing.requests() > 0);
}
