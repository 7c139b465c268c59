//! Traces of a run whose coordinator and workers are different processes.

use std::collections::{BTreeMap, BTreeSet};

use rollout_protocol::exit::ExitCode;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::otlp_collector::{CollectorAnswer, OtlpCollector, assert_trial_tree};
use rollout_tests::wait;

use crate::cluster::{DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

#[test]
fn trace_joins_spans_of_coordinator_and_worker_over_a_restart() {
    let Some(cluster) = cluster() else { return };
    let collector = OtlpCollector::start(CollectorAnswer::Takes);
    let counter = LiveCounter::start();
    let load = Load::new("traced", 2, (2.0, 3.0));
    load.write(&cluster.project, &counter);
    let mut worker = cluster.worker("a", 2);
    let mut coordinator = cluster.coordinator(&load.file());
    for (name, value) in collector.environment() {
        worker = worker.with_variable(&name, &value);
        coordinator = coordinator.with_variable(&name, &value);
    }
    worker.start();
    coordinator.start();
    wait::until(DEADLINE, "both agents to run", || counter.running() == 2);
    let _killed = coordinator.kill();
    coordinator.start();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_undisturbed(&cluster, &load);
    assert_no_leaks(&cluster, &["traced"], [worker]);

    let spans = collector.spans();
    let mut traces = BTreeMap::<_, Vec<_>>::new();
    // The killed session may have exported the wait before the execution, with the same id.
    let mut seen = BTreeSet::new();
    for span in spans.iter().filter(|span| seen.insert(&span.id)) {
        let of_worker = ["trial", "wait"].iter().all(|name| span.name != *name);
        let service = if of_worker { "rollout-worker" } else { "rollout-coordinator" };
        assert_eq!(span.service, service, "{span:?}");
        traces.entry(&span.trace).or_default().push(span);
    }
    assert_eq!(traces.len(), 2, "{spans:#?}");
    for spans in traces.values() {
        let root = assert_trial_tree(spans);
        assert_eq!(root.attributes["rollout.session"], "2");
        let execution = spans.iter().find(|span| span.name == "execution").expect("a span");
        assert_eq!(execution.attributes["rollout.execution"], root.attributes["rollout.execution"]);
    }
}
