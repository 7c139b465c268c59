//! Tests of context packs.

use super::*;
use crate::workloads::search::manifest::SearchNode;
use rollout_protocol::search::NodeId;

fn files(node: &SearchNode) -> Vec<&str> {
    let names = node.context_pack_files.iter().map(|file| file.path.rsplit_once('/'));
    names.map(|name| name.expect("in a directory").1).collect()
}

#[tokio::test]
async fn context_pack_has_history_and_rejected_siblings() {
    let lab = SearchFixture::new();
    let done = lab.run().await;
    let root = done.node(NodeId(0));
    assert_eq!(files(root), ["history.md", "siblings.md"]);
    let all = [
        "deltas.json",
        "diff_from_parent.patch",
        "diff_from_root.patch",
        "history.md",
        "recommendation.json",
        "siblings.md",
    ];
    let node = done.nodes.values().find(|node| node.depth == 2).expect("one");
    assert_eq!(files(node), all);
    let read = |name: &str| {
        let path = lab.root().join(format!("context/{}/{name}", node.node_id));
        std::fs::read_to_string(path).expect(name)
    };
    let parent = done.node(node.parent_node_id.expect("a parent"));
    let patch = format!("simulated: from {}\nto {}\n", done.root.root_commit, node.commit);
    assert_eq!(read("diff_from_root.patch"), patch);
    assert!(read("diff_from_parent.patch").contains(&parent.commit));
    let recommended: serde_json::Value =
        serde_json::from_str(&read("recommendation.json")).expect("a document");
    let eval = &done.evaluations[&node.promoted_from_eval_id.expect("promoted")];
    let view = eval.root_relative.as_ref().expect("scored");
    let delta = view.primary_delta.expect("compared");
    assert_eq!(recommended["root_relative"]["primary_delta"], delta);
    let history = read("history.md");
    let steps = [parent, node].map(|node| format!("## Node {}", node.node_id));
    let at = steps.map(|step| history.find(&step).expect("in the history"));
    assert!(at[0] < at[1], "{history}");
    assert!(history.contains("> - Idea") && history.contains("against the root"), "{history}");
    let siblings = read("siblings.md");
    let beside = done.evaluations.values().filter(|e| e.parent_node_id == parent.node_id);
    for eval in beside {
        let reason = eval.decision.as_ref().and_then(|decision| decision.promotion_reason);
        let told = reason.map(|reason| format!("(eval {}): {}", eval.eval_id, reason.as_str()));
        let is_told = told.is_some_and(|told| siblings.contains(&told));
        let decision = eval.decision.as_ref().expect("decided");
        let is_rejected = decision.promoted_to_node_id.is_none();
        assert_eq!(is_told, is_rejected, "{} in {siblings}", eval.eval_id);
    }
    // The last frontier gets no ideas, so it has no context pack.
    let last = done.state.frontier_node_ids.iter().map(|id| done.node(*id));
    assert!(last.into_iter().all(|node| node.context_pack_files.is_empty()));
}

#[tokio::test]
async fn context_pack_half_written_is_rewritten() {
    let lab = SearchFixture::new();
    let half = lab.root().join("context/.new-0000");
    std::fs::create_dir_all(&half).expect("made");
    std::fs::write(half.join("history.md"), "ha").expect("written");
    let done = lab.run().await;
    assert!(!half.exists());
    let whole = SearchFixture::new();
    whole.run().await;
    assert_same("half of a pack", &whole.files(), &lab.files());
    assert!(done.nodes.values().any(|node| !node.context_pack_files.is_empty()));
}
