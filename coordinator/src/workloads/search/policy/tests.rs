//! Tests of searches with simulated evals: every outcome, by the eval's number.

use std::collections::BTreeSet;
use std::convert::Infallible;

use proptest::prelude::*;
use rollout_protocol::Timestamp;

use super::super::idea;
use super::super::manifest::{DedupeScope, ManifestEventKind, Reason, StepCalls};
use super::testing::{new_search, simulated_eval};
use super::*;
use rollout_protocol::spec::eval::EvalStage;

struct AllArtifacts;

impl ArtifactLookup for AllArtifacts {
    fn exists(&self, _: &str) -> bool {
        true
    }
}

/// Continues as far as the manifest allows. `persist` is called after every block; if it fails, the
/// manifest must be read again.
fn advance<E>(
    manifest: &mut SearchManifest,
    mut persist: impl FnMut(&mut SearchManifest) -> Result<(), E>,
) -> Result<PolicyNeeds, E> {
    loop {
        match step(manifest, Timestamp::UNIX_EPOCH, &AllArtifacts) {
            PolicyStep::Changed => persist(manifest)?,
            PolicyStep::Needs(needs) => return Ok(needs),
        }
    }
}

/// Six ideas for a node; the third repeats the first, and the first one repeats the root's.
fn ideas(node: NodeId) -> Vec<IdeaFile> {
    let texts = ["- The same everywhere", "", "* the SAME everywhere", "", "", ""];
    let file = |(n, text): (usize, &&str)| {
        let own = format!("idea {n} of {node}");
        let text = if text.is_empty() { &own } else { *text };
        idea::idea_file(format!("node_ideas/{node}/{n}.md"), text.as_bytes())
    };
    texts.iter().enumerate().map(file).collect()
}

/// Runs a search to its end. `order` permutes the results; `crash` selects the blocks after which
/// the process restarts from the written manifest.
fn run(
    mut manifest: SearchManifest,
    mut order: impl FnMut(&mut Vec<EvalId>),
    mut crash: impl FnMut(usize) -> bool,
) -> SearchManifest {
    let (mut blocks, mut written) = (0, manifest.clone());
    loop {
        let needs = advance(&mut manifest, |manifest| {
            written = manifest.clone();
            blocks += 1;
            if crash(blocks) { Err(()) } else { Ok(()) }
        });
        match needs {
            Err(()) => manifest = written.clone(),
            Ok(PolicyNeeds::Ended(_)) => return manifest,
            Ok(PolicyNeeds::Ideas(nodes)) => {
                for node in nodes {
                    add_ideas(&mut manifest, node, ideas(node));
                }
            }
            Ok(PolicyNeeds::Evals(mut evals)) => {
                order(&mut evals);
                for id in evals {
                    let result = simulated_eval(&manifest, id);
                    assert!(add_result(&mut manifest, result.clone()));
                    assert!(!add_result(&mut manifest, result), "once");
                    let text = serde_json::to_string(&manifest).expect("plain");
                    let read: SearchManifest =
                        serde_json::from_str(&text).expect("the written manifest");
                    assert_eq!(read, manifest);
                }
            }
        }
    }
}

pub(super) fn plain(manifest: SearchManifest) -> SearchManifest {
    run(manifest, |_| {}, |_| false)
}

#[test]
fn search_runs_to_max_depth_and_promotes_best() {
    let done = plain(new_search(|_| {}));
    assert_eq!(done.state.stop_reason, Some(StopReason::MaxDepthReached));
    assert_eq!(done.state.completed_depths, [0, 1, 2]);
    // The root tries four; the third repeats the first.
    let tried: Vec<_> = done.evals_at(0).map(|(_, eval)| eval.idea_path.clone()).collect();
    let names = ["0", "1", "3", "4"].map(|name| format!("node_ideas/0000/{name}.md"));
    assert_eq!(tried, names);
    assert_eq!(done.node(NodeId(0)).dedupe.skipped.len(), 1);
    // Of 0 to 3: 0 is best, 1 is second, 2 is weak, 3 regressed.
    let reasons: Vec<_> = done
        .evals_at(0)
        .map(|(_, eval)| eval.decision.as_ref().expect("decided").promotion_reason)
        .collect();
    assert_eq!(
        reasons,
        [
            Reason::WorthExploring,
            Reason::MixedNotRegressed,
            Reason::NotWorthExploring,
            Reason::PrimaryRegressed
        ]
        .map(Some)
    );
    let node = done.node(NodeId(2));
    assert_eq!((node.commit.as_str(), node.parent_node_id), ("c0001", Some(NodeId(0))));
    assert_eq!(node.idea_chain, ["node_ideas/0000/1.md"]);
    // A node of depth 1 must not repeat the ideas of its ancestor.
    let skipped = &done.node(NodeId(1)).dedupe.skipped;
    assert!(skipped.iter().any(|idea| idea.repeats == "node_ideas/0000/0.md"), "{skipped:?}");
    let kept = refs(&done, false);
    assert_eq!(kept.len(), done.nodes.len(), "candidates that were not promoted are removed");
    assert_eq!(worktrees(&done).len(), done.state.frontier_node_ids.len());
}

#[test]
fn search_budget_spent_ends_after_current_depth() {
    for (budget, evals, nodes) in [(2, 2, 3), (4, 4, 3), (5, 5, 4), (1000, 4 + 8 + 8, 7)] {
        let done = plain(new_search(|config| config.max_total_idea_evals = Some(budget)));
        assert_eq!(done.evaluations.len(), evals, "{budget}");
        assert_eq!(done.nodes.len(), nodes, "{budget}: tried ideas are ranked and promoted");
        let spent = done.state.stop_reason == Some(StopReason::MaxTotalIdeaEvalsReached);
        assert_eq!(spent, budget < 1000);
        assert!(done.evaluations.values().all(|eval| eval.decision.is_some()));
    }
}

#[test]
fn ideas_beyond_eval_budget_are_not_requested() {
    for (budget, asked) in [(0, 0), (2, 1), (4, 1), (5, 3), (12, 3)] {
        let mut search = new_search(|config| config.max_total_idea_evals = Some(budget));
        let mut nodes_asked = 0;
        loop {
            match advance(&mut search, |_| Ok::<_, Infallible>(())).expect("it cannot fail") {
                PolicyNeeds::Ideas(nodes) => {
                    nodes_asked += nodes.len();
                    for node in nodes {
                        add_ideas(&mut search, node, ideas(node));
                    }
                }
                PolicyNeeds::Evals(evals) => {
                    for id in evals {
                        let result = simulated_eval(&search, id);
                        assert!(add_result(&mut search, result));
                    }
                }
                PolicyNeeds::Ended(reason) => {
                    assert_eq!(reason, StopReason::MaxTotalIdeaEvalsReached, "{budget}");
                    break;
                }
            }
        }
        assert_eq!((search.evaluations.len(), nodes_asked), (budget as usize, asked), "{budget}");
    }
}

#[test]
fn search_with_nothing_to_promote_ends() {
    let mut search = new_search(|config| config.ideas_per_node = 1);
    search.state.next_eval_id = 2;
    let done = plain(search);
    assert_eq!(done.state.stop_reason, Some(StopReason::EmptyFrontier));
    assert_eq!((done.nodes.len(), done.state.completed_depths.len()), (1, 1));
}

#[test]
fn search_resumed_after_any_block_ends_the_same() {
    let whole = plain(new_search(|_| {}));
    for at in 1..=6 {
        assert_eq!(run(new_search(|_| {}), |_| {}, |block| block == at), whole, "after block {at}");
    }
    assert_eq!(run(new_search(|_| {}), |_| {}, |_| true), whole, "after every block");
}

#[test]
fn eval_and_node_ids_are_never_reused() {
    let done = plain(new_search(|config| config.dedupe_scope = DedupeScope::None));
    let paths: BTreeSet<_> = done.evaluations.values().map(|eval| &eval.eval_output_root).collect();
    assert_eq!(paths.len(), done.evaluations.len());
    assert_eq!(done.state.next_eval_id as usize, done.evaluations.len());
    assert_eq!(done.state.next_node_id as usize, done.nodes.len());
}

#[test]
fn dedupe_scope_decides_number_of_skipped_ideas() {
    let skipped = |scope| {
        let done = plain(new_search(|config| config.dedupe_scope = scope));
        let count: usize = done.nodes.values().map(|node| node.dedupe.skipped.len()).sum();
        count
    };
    assert_eq!(skipped(DedupeScope::None), 0);
    let node = skipped(DedupeScope::Node);
    let ancestors = skipped(DedupeScope::NodePlusAncestors);
    assert!(node > 0 && node < ancestors, "{node} {ancestors}");
    assert!(skipped(DedupeScope::Global) >= ancestors);
}

#[test]
fn search_with_failed_manifest_write_stops() {
    let mut search = new_search(|_| {});
    add_ideas(&mut search, NodeId(0), ideas(NodeId(0)));
    let refused = advance(&mut search, |_| Err("full"));
    assert_eq!(refused, Err("full"));
    let fine: Result<_, Infallible> = advance(&mut search, |_| Ok(()));
    assert!(matches!(fine, Ok(PolicyNeeds::Evals(_))));
}

proptest! {
    // Each case is a whole search, written and read after every result.
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn search_with_random_order_and_crashes_ends_the_same(seed: u64, crashes in proptest::collection::vec(any::<bool>(), 8)) {
        let mut state = seed | 1;
        let shuffle = |evals: &mut Vec<EvalId>| {
            for at in (1..evals.len()).rev() {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                evals.swap(at, (state % (at as u64 + 1)) as usize);
            }
        };
        let crash = |block: usize| crashes.get(block).copied().unwrap_or(false);
        prop_assert_eq!(run(new_search(|_| {}), shuffle, crash), plain(new_search(|_| {})));
    }
}

#[test]
fn depth_tries_as_many_ideas_as_its_budget_covers_whatever_evals_cost_and_in_any_order() {
    let budgeted = || {
        new_search(|config| {
            (config.budget_depth_cost, config.max_attempt_cost) = (Some(0.9), Some(0.2));
            config.eval_retries = 1;
        })
    };
    let done = plain(budgeted());
    // Neither of the two of depth 1 is promoted.
    assert_eq!(done.state.completed_depths, [0, 1]);
    for depth in 0..2 {
        let parents: Vec<_> = done.evals_at(depth).map(|(_, eval)| eval.parent_node_id.0).collect();
        // 0.9 covers two evals of two attempts for 0.2 each, one for each node of depth 1.
        assert_eq!(parents, if depth == 0 { [0, 0] } else { [1, 2] });
    }
    let left_out = done.events.iter().filter_map(|event| match event.kind {
        ManifestEventKind::IdeasLeftOut { depth, ideas } => Some((depth, ideas)),
        _ => None,
    });
    assert_eq!(left_out.collect::<Vec<_>>(), [(0, 2), (1, 6)]);
    let reversed = run(budgeted(), |evals| evals.reverse(), |block| block % 3 == 0);
    assert_eq!(reversed.evaluations, done.evaluations);
}

#[test]
fn ideas_that_used_up_the_budget_of_a_depth_end_the_search() {
    let mut manifest = new_search(|config| {
        (config.budget_depth_cost, config.max_attempt_cost) = (Some(1.0), Some(0.2));
    });
    let root = manifest.nodes.get_mut(&NodeId(0)).expect("the root");
    // Costs that scripts report are not part of the budget.
    root.ideas_cost = Some(5.85);
    root.ideas_calls = vec![StepCalls { cost: 0.85, ..StepCalls::none(EvalStage::Ideas) }];
    let done = plain(manifest);
    assert_eq!(done.state.stop_reason, Some(StopReason::BudgetSpent));
    assert!(done.evaluations.is_empty());
}
