//! Requests of former sessions of a search, derived from its manifest.

use std::sync::{Mutex, PoisonError};

use rollout_protocol::digest::Digest;
use rollout_protocol::id::ItemId;
use rollout_protocol::item_name::{EvalName, IdeasName, ItemName};

use super::requests::WorkKind;
use crate::workloads::search::manifest::{ManifestEventKind, SearchManifest};
use rollout_protocol::search::{EvalId, NodeId};

/// Number of sessions with infrastructure failures of a try up to which its name is found. After
/// more, the try is missing only in the records of the run.
const MAX_UNABLE_SESSIONS: u32 = 8;

/// The evals of a search, to identify settled items.
#[derive(Debug, Default)]
pub(super) struct PastRequests {
    tree: String,
    attempts: u32,
    /// Upper bound of the discards of results.
    rounds: u32,
    evals: Vec<(EvalId, NodeId)>,
    /// Nodes, and how often their ideas were discarded.
    nodes: Vec<(NodeId, u32)>,
    /// Position of the last match: items mostly come in the order of the evals.
    cursor: Mutex<usize>,
}

impl PastRequests {
    /// Past requests of a manifest.
    pub(super) fn from_manifest(manifest: &SearchManifest) -> Self {
        let thrown = |event: &&crate::workloads::search::manifest::ManifestEvent| {
            matches!(event.kind, ManifestEventKind::EvalsRequeued { .. })
        };
        let rounds = manifest.events.iter().filter(thrown).count();
        let evals = manifest.evaluations.values().map(|eval| (eval.eval_id, eval.parent_node_id));
        Self {
            tree: manifest.tree_run_id.clone(),
            attempts: manifest.run_config.eval_retries.saturating_add(1),
            rounds: u32::try_from(rounds).unwrap_or(u32::MAX),
            evals: evals.collect(),
            nodes: manifest.nodes.keys().map(|id| (*id, manifest.idea_discards(*id))).collect(),
            cursor: Mutex::new(0),
        }
    }

    /// Kind and name of a request, by its key and the digest of its spec.
    pub(super) fn name(&self, item: &ItemId, spec: &Digest) -> Option<(WorkKind, ItemName)> {
        if let Some(name) = self.eval(item, spec) {
            return Some((WorkKind::Eval, ItemName::Eval(name)));
        }
        Some((WorkKind::Ideas, ItemName::Ideas(self.ideas(item, spec)?)))
    }

    fn ideas(&self, item: &ItemId, spec: &Digest) -> Option<IdeasName> {
        let attempts = self.nodes.iter().flat_map(|(node, rounds)| {
            let rounds = 0..=*rounds;
            rounds.flat_map(move |n| {
                (1..=MAX_UNABLE_SESSIONS).map(move |attempt| (*node, n, attempt))
            })
        });
        let is_it = |(node, round, attempt): &(NodeId, u32, u32)| {
            ItemId::for_ideas(&self.tree, node.0, *round, *attempt, spec) == *item
        };
        let (node, _, attempt) = attempts.into_iter().find(is_it)?;
        Some(IdeasName { search: self.tree.clone(), node, attempt })
    }

    fn eval(&self, item: &ItemId, spec: &Digest) -> Option<EvalName> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let len = self.evals.len();
        let nearest = (0..len).flat_map(|away| {
            let (before, after) = (cursor.checked_sub(away), cursor.checked_add(away));
            [after, before.filter(|_| away > 0)]
        });
        for at in nearest.flatten().filter(|at| *at < len) {
            let (eval, node) = self.evals[at];
            if let Some(attempt) = self.attempt(eval, item, spec) {
                *cursor = at;
                return Some(EvalName { search: self.tree.clone(), node, eval, attempt });
            }
        }
        None
    }

    fn attempt(&self, eval: EvalId, item: &ItemId, spec: &Digest) -> Option<u32> {
        let rounds = (0..=self.rounds)
            .flat_map(|n| (0..=MAX_UNABLE_SESSIONS).map(move |unable| (n, unable)));
        let attempts =
            rounds.flat_map(|rounds| (1..=self.attempts).map(move |attempt| (rounds, attempt)));
        let is_it = |(rounds, attempt): &((u32, u32), u32)| {
            ItemId::for_eval(&self.tree, eval.0, *rounds, *attempt, spec) == *item
        };
        attempts.into_iter().find(is_it).map(|(_, attempt)| attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_requests_in_any_order_are_recognized() {
        let former = PastRequests {
            tree: "search".to_owned(),
            attempts: 2,
            rounds: 1,
            evals: (0..5).map(|n| (EvalId(n), NodeId(n / 2))).collect(),
            nodes: vec![(NodeId(0), 0), (NodeId(2), 1)],
            cursor: Mutex::new(0),
        };
        let spec = Digest::sha256(b"spec");
        for (eval, rounds, attempt) in
            [(3, (0, 0), 1), (0, (1, 0), 2), (4, (0, 3), 2), (3, (1, 1), 1)]
        {
            let item = ItemId::for_eval("search", eval, rounds, attempt, &spec);
            let (kind, name) = former.name(&item, &spec).expect("a past request");
            assert_eq!(kind, WorkKind::Eval);
            let expected = format!("search/node-{:04}/eval-{eval:04}__{attempt}", eval / 2);
            assert_eq!(name.to_string(), expected);
        }
        for (eval, rounds, attempt) in [(5, (0, 0), 1), (0, (2, 0), 1), (0, (0, 0), 3)] {
            let item = ItemId::for_eval("search", eval, rounds, attempt, &spec);
            assert_eq!(former.name(&item, &spec), None);
        }
        let item = ItemId::for_ideas("search", 2, 1, 3, &spec);
        let (kind, name) = former.name(&item, &spec).expect("a past request");
        assert_eq!(
            (kind, name.to_string()),
            (WorkKind::Ideas, "search/node-0002/ideas__3".to_owned())
        );
        let item = ItemId::for_ideas("search", 0, 1, 1, &spec);
        assert_eq!(former.name(&item, &spec), None);
    }
}
