//! The work that a search requests from its run, and the settlements.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollout_engine::core::ItemSettlement;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::ItemId;
use rollout_protocol::item_name::ItemName;
use tokio::sync::{Notify, mpsc, watch};

/// Kinds of work of a search. The number of a kind is its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkKind {
    /// One try of an eval.
    Eval,
    /// The command that writes ideas for a node.
    Ideas,
}

/// One request, with the key that identifies it in the run.
#[derive(Debug, Clone)]
pub(super) struct WorkRequest {
    /// Kind of the work.
    pub(super) kind: WorkKind,
    /// Key of the item.
    pub(super) item: ItemId,
    /// Digest of its spec.
    pub(super) spec: Digest,
    /// Name of the item.
    pub(super) name: ItemName,
}

/// Requests of a search and their settlements, shared with the run.
#[derive(Debug)]
pub(crate) struct WorkRequests {
    state: Mutex<WorkRequestsState>,
    /// Notified when there are new requests or the list is closed.
    pub(super) growth_signal: Arc<Notify>,
    notifications: mpsc::UnboundedSender<RunNotification>,
    /// Whether the search waits for results, after its first requests.
    is_waiting: watch::Sender<bool>,
    /// Whether the search ended with an error: its remote executions are left running.
    abandoned: watch::Sender<bool>,
}

/// A notification from the run to the search.
#[derive(Debug)]
pub(crate) enum RunNotification {
    /// A requested try is settled.
    Settled(ItemId),
    /// The run has ended: there are no more settlements.
    Ended,
}

#[derive(Debug, Default)]
struct WorkRequestsState {
    /// In the order of requests; the index is the ordinal.
    requests: Vec<WorkRequest>,
    ordinals: HashMap<ItemId, u64>,
    dispatched: usize,
    settled: HashMap<ItemId, Arc<ItemSettlement>>,
    closed: bool,
}

impl WorkRequests {
    /// An empty list, with the receiver of settlements.
    pub(crate) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<RunNotification>) {
        let (ended, notifications) = mpsc::unbounded_channel();
        let (state, growth) = (Mutex::default(), Arc::default());
        let [waits, abandoned] = [false; 2].map(watch::Sender::new);
        (
            Arc::new(Self {
                state,
                growth_signal: growth,
                notifications: ended,
                is_waiting: waits,
                abandoned,
            }),
            notifications,
        )
    }

    /// Records that the search has made all requests for now.
    pub(super) fn set_waiting(&self) {
        self.is_waiting.send_if_modified(|waits| !std::mem::replace(waits, true));
    }

    /// Resolves when the search has repeated the requests of former sessions, or has ended: any
    /// other item of the run is not needed.
    #[cfg(feature = "nats")]
    pub(crate) async fn wait_until_asked(&self) {
        let mut waits = self.is_waiting.subscribe();
        let waits = waits.wait_for(|waits| *waits).await;
        drop(waits.expect("the sender is here"));
    }

    /// Requests a try. An existing settlement is notified at once.
    pub(super) fn request(&self, request: WorkRequest) {
        let mut state = self.state();
        let item = request.item;
        if state.settled.contains_key(&item) {
            self.notify(RunNotification::Settled(item));
        }
        let ordinal = state.requests.len() as u64;
        if state.ordinals.contains_key(&item) {
            return;
        }
        state.ordinals.insert(item, ordinal);
        state.requests.push(request);
        drop(state);
        self.growth_signal.notify_one();
    }

    /// Adds a settled try of a former session.
    pub(super) fn add_settled(&self, former: WorkRequest) {
        let mut state = self.state();
        let ordinal = state.requests.len() as u64;
        // The search may have requested it meanwhile.
        if let Entry::Vacant(entry) = state.ordinals.entry(former.item) {
            entry.insert(ordinal);
            state.requests.push(former);
        }
    }

    /// The settlement of a try.
    pub(super) fn settlement(&self, item: &ItemId) -> Option<Arc<ItemSettlement>> {
        self.state().settled.get(item).cloned()
    }

    /// Closes the list after an error of the search. Remote executions are left running: the next
    /// session requests the same.
    pub(super) fn abandon(&self) {
        self.abandoned.send_replace(true);
        self.close();
    }

    /// Whether the search ended with an error.
    #[cfg(feature = "nats")]
    pub(crate) fn is_abandoned(&self) -> bool {
        *self.abandoned.borrow()
    }

    /// Resolves when the search ends with an error.
    pub(crate) async fn wait_until_abandoned(&self) {
        let mut abandoned = self.abandoned.subscribe();
        let told = abandoned.wait_for(|abandoned| *abandoned).await;
        drop(told.expect("the sender is here"));
    }

    /// Closes the list: there are no more requests.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.set_waiting();
        self.growth_signal.notify_one();
    }

    /// Notifies the search that the run has ended.
    pub(crate) fn notify_run_ended(&self) {
        self.notify(RunNotification::Ended);
    }

    pub(super) fn is_open(&self) -> bool {
        !self.state().closed
    }

    pub(super) fn len(&self) -> u64 {
        self.state().requests.len() as u64
    }

    /// Takes the next undispatched requests, at most `max`, with their ordinals.
    pub(super) fn next(&self, max: usize) -> Vec<(u64, WorkRequest)> {
        let mut state = self.state();
        let begin = state.dispatched;
        let end = state.requests.len().min(begin.saturating_add(max));
        state.dispatched = end;
        (begin..end).map(|index| (index as u64, state.requests[index].clone())).collect()
    }

    pub(super) fn find(&self, item: &ItemId) -> Option<(u64, WorkRequest)> {
        let state = self.state();
        let ordinal = *state.ordinals.get(item)?;
        Some((ordinal, state.requests[usize::try_from(ordinal).ok()?].clone()))
    }

    pub(super) fn get(&self, ordinal: u64) -> Option<WorkRequest> {
        self.state().requests.get(usize::try_from(ordinal).ok()?).cloned()
    }

    /// Records a durable settlement.
    pub(super) fn on_settled(&self, settled: &ItemSettlement) {
        let mut state = self.state();
        state.settled.insert(settled.item, Arc::new(settled.clone()));
        if state.ordinals.contains_key(&settled.item) {
            self.notify(RunNotification::Settled(settled.item));
        }
    }

    fn notify(&self, notification: RunNotification) {
        // A search that ended has reported its own error.
        let _gone = self.notifications.send(notification);
    }

    fn state(&self) -> MutexGuard<'_, WorkRequestsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::Timestamp;
    use rollout_protocol::item_name::EvalName;
    use rollout_protocol::record::Verdict;
    use rollout_protocol::search::{EvalId, NodeId};

    use super::*;

    fn one(n: u32) -> WorkRequest {
        let spec = Digest::sha256(b"spec");
        let (search, node) = ("search".to_owned(), NodeId::default());
        let name = ItemName::Eval(EvalName { search, node, eval: EvalId(n), attempt: 1 });
        let kind = WorkKind::Eval;
        WorkRequest { kind, item: ItemId::for_eval("search", n, (0, 0), 1, &spec), spec, name }
    }

    fn settled(item: ItemId) -> ItemSettlement {
        let (verdict, at) = (Verdict::completed(1.0), Timestamp::UNIX_EPOCH);
        ItemSettlement { item, ordinal: None, by: None, verdict, superseded: Vec::new(), at }
    }

    fn next_settled(told: &mut mpsc::UnboundedReceiver<RunNotification>) -> Option<ItemId> {
        match told.try_recv() {
            Ok(RunNotification::Settled(item)) => Some(item),
            _ => None,
        }
    }

    #[test]
    fn request_for_item_settled_before_is_answered() {
        let (asked, mut told) = WorkRequests::new();
        asked.on_settled(&settled(one(1).item));
        assert_eq!(next_settled(&mut told), None, "no request was made");
        asked.request(one(1));
        assert_eq!(next_settled(&mut told), Some(one(1).item));
        assert!(asked.settlement(&one(1).item).is_some());
    }

    #[test]
    fn requests_are_handed_out_once_and_in_order() {
        let (asked, mut told) = WorkRequests::new();
        for n in [1, 2, 1, 3] {
            asked.request(one(n));
        }
        let items = |tries: Vec<(u64, WorkRequest)>| {
            tries.into_iter().map(|(n, one)| (n, one.item)).collect::<Vec<_>>()
        };
        assert_eq!(items(asked.next(2)), [(0, one(1).item), (1, one(2).item)]);
        assert_eq!(items(asked.next(9)), [(2, one(3).item)]);
        assert!(asked.next(9).is_empty() && asked.is_open());
        asked.on_settled(&settled(one(3).item));
        assert_eq!(next_settled(&mut told), Some(one(3).item));
        asked.close();
        assert!(!asked.is_open());
    }
}
