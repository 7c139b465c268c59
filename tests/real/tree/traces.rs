//! Traces of a search: one for each set of ideas and for each eval.

use std::collections::BTreeMap;

use rollout_protocol::exit::ExitCode;
use rollout_tests::otlp_collector::{CollectorAnswer, OtlpCollector, ReceivedSpan};

use crate::tree::DEADLINE;
use crate::tree::small_search::SmallSearch;

/// The root of a trace whose item ran once.
#[track_caller]
fn root<'a>(spans: &[&'a ReceivedSpan]) -> &'a ReceivedSpan {
    let (roots, others): (Vec<&ReceivedSpan>, Vec<_>) =
        spans.iter().partition(|span| span.parent.is_empty());
    let [root] = roots[..] else { panic!("{spans:#?}") };
    let executions: Vec<_> = others.iter().filter(|span| span.name == "execution").collect();
    let [execution] = executions[..] else { panic!("{spans:#?}") };
    for span in &others {
        let parent = if span.id == execution.id { root } else { execution };
        assert_eq!(span.parent, parent.id, "{span:?}");
    }
    assert!(spans.iter().any(|span| span.name == "agent_execution"), "{spans:#?}");
    root
}

#[test]
fn every_item_of_search_has_one_trace() {
    let project = SmallSearch::default().write();
    let collector = OtlpCollector::start(CollectorAnswer::Takes);
    let run = || {
        let mut command = project.command(&SmallSearch::run(&[]));
        command.envs(collector.environment());
        let _ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    };
    run();

    let spans = collector.spans();
    let mut traces = BTreeMap::<_, Vec<_>>::new();
    for span in &spans {
        traces.entry(&span.trace).or_default().push(span);
    }
    let roots = traces.values().map(|spans| root(spans));
    let names = roots.map(|root| {
        assert_eq!(root.attributes["rollout.search"], "small");
        assert_eq!(root.attributes["rollout.outcome"], "completed");
        assert!(!root.is_error, "{root:?}");
        (root.name.as_str(), root.attributes.get("rollout.eval").map(String::as_str))
    });
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    let evals = names.iter().filter(|(name, eval)| *name == "eval" && eval.is_some()).count();
    let ideas = names.iter().filter(|(name, eval)| *name == "ideas" && eval.is_none()).count();
    assert_eq!((ideas, evals, names.len()), (1, 2, 3), "{names:?}");

    // A finished search exports nothing again.
    let requests = collector.requests();
    run();
    assert_eq!(collector.requests(), requests);
}
