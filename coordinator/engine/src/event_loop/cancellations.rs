//! Cancellations that users ask for. Each goes through the plan in portions, at most one in a turn of
//! the loop: the memory and the time of a turn do not depend on the size of the run, and stops, reports
//! and other commands are served in between. The items that were begun come first, and nothing new is
//! begun before the last portion.
//!
//! Each portion is a record of its own. After a crash, the items of the durable portions are cancelled;
//! the sender has no receipt, and sends the command again.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use rollout_protocol::wire::command::{CommandReceipt, TrialSelection};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Engine;
use crate::SelectionStep;
use crate::core::{CoreInput, NewItem};

/// Items of one portion.
const PORTION: usize = 256;

/// Positions of the plan that one portion looks at.
const MAX_STEPS: usize = 4096;

/// Cancellations with more than one portion that are handled at a time.
const MAX_CANCELLATIONS: usize = 16;

/// How long a sender waits before it is told to ask again: less than the queue lets it wait.
const ANSWER_AFTER: Duration = Duration::from_secs(2);

/// Reason for the refusal of a cancellation that names nothing.
const NOTHING_NAMED: &str = "the run has no such trial";

/// Reason for the end of a cancellation that a stop came before.
const STOPPING: &str = "the run is stopping";

/// The cancellations of a session.
#[derive(Debug, Default)]
pub(super) struct Cancellations {
    current: VecDeque<Cancellation>,
}

/// A cancellation without a receipt.
#[derive(Debug)]
struct Cancellation {
    selection: TrialSelection,
    /// Items that were begun before, in the plan's order: they come first.
    begun: VecDeque<u64>,
    /// Those of them that came.
    came: BTreeSet<u64>,
    /// The next position of the plan; `None` at its end.
    next: Option<u64>,
    /// Id of the portion whose record is not durable yet. The next one waits for it.
    portion: Option<u64>,
    /// The numbers so far.
    receipt: CommandReceipt,
    /// Senders that wait, and until when.
    replies: Vec<(Instant, oneshot::Sender<CommandReceipt>)>,
}

impl Cancellation {
    fn new(selection: TrialSelection, begun: Vec<u64>) -> Self {
        Self {
            selection,
            begun: begun.into(),
            came: BTreeSet::new(),
            next: Some(0),
            portion: None,
            receipt: CommandReceipt::default(),
            replies: Vec::new(),
        }
    }

    /// Whether every item was named.
    fn is_named(&self) -> bool {
        self.begun.is_empty() && self.next.is_none()
    }

    /// The items of the next portion, after a bounded number of steps.
    fn next_items(
        &mut self,
        select: impl Fn(&TrialSelection, u64) -> SelectionStep,
    ) -> Vec<NewItem> {
        let mut items = Vec::new();
        for _ in 0..MAX_STEPS {
            if items.len() >= PORTION {
                break;
            }
            if let Some(ordinal) = self.begun.pop_front() {
                if let SelectionStep::Named(new) = select(&self.selection, ordinal) {
                    self.came.insert(ordinal);
                    items.push(new);
                }
                continue;
            }
            let Some(ordinal) = self.next else { break };
            self.next = match select(&self.selection, ordinal) {
                SelectionStep::Named(new) => {
                    items.extend((!self.came.remove(&ordinal)).then_some(new));
                    ordinal.checked_add(1)
                }
                SelectionStep::Skip(later) => Some(later),
                SelectionStep::End => None,
            };
        }
        items
    }

    fn answer(self, receipt: &CommandReceipt) {
        for (_, reply) in self.replies {
            // A sender that no longer waits asks again.
            let _gone = reply.send(receipt.clone());
        }
    }
}

impl Cancellations {
    /// Whether a cancellation has named only a part of its items.
    pub(super) fn is_busy(&self) -> bool {
        self.unfinished() > 0
    }

    fn unfinished(&self) -> usize {
        self.current.iter().filter(|current| !current.is_named()).count()
    }

    /// Whether the next turn can cancel another portion.
    pub(super) fn is_ready(&self) -> bool {
        self.current.iter().any(|current| current.portion.is_none())
    }

    /// When the first sender has waited for long.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.current.iter().flat_map(|current| &current.replies).map(|(due, _)| *due).min()
    }

    /// Tells senders that have waited for long to ask again.
    pub(super) fn answer_overdue(&mut self, now: Instant) {
        for current in &mut self.current {
            for (_, reply) in current.replies.extract_if(.., |(due, _)| *due <= now) {
                let in_progress = CommandReceipt { in_progress: true, ..current.receipt.clone() };
                let _gone = reply.send(in_progress);
            }
        }
    }

    /// Takes the receipt of a portion; whether the command is one.
    pub(super) fn answer(&mut self, id: u64, receipt: &CommandReceipt) -> bool {
        let of = |current: &Cancellation| current.portion == Some(id);
        let Some(index) = self.current.iter().position(of) else { return false };
        let current = &mut self.current[index];
        current.portion = None;
        current.receipt.named += receipt.named;
        current.receipt.settled += receipt.settled;
        current.receipt.ended += receipt.ended;
        if current.is_named()
            && let Some(ended) = self.current.remove(index)
        {
            let receipt = match ended.receipt.named {
                0 => CommandReceipt::refused(NOTHING_NAMED),
                _ => ended.receipt.clone(),
            };
            ended.answer(&receipt);
        }
        true
    }

    /// Ends every cancellation because the session stops: the rest of its items stays for the next
    /// one.
    pub(super) fn refuse(&mut self) {
        for current in self.current.drain(..) {
            let refused = Some(STOPPING.to_owned());
            let receipt = CommandReceipt { refused, ..current.receipt.clone() };
            current.answer(&receipt);
        }
    }
}

impl Engine {
    /// A user cancels items. The first portion is cancelled at once. A cancellation of the same items
    /// that is being handled has its receipt for both.
    pub(super) fn on_cancel(
        &mut self,
        selection: TrialSelection,
        reply: oneshot::Sender<CommandReceipt>,
    ) {
        let waits = (Instant::now() + ANSWER_AFTER, reply);
        let cancellations = &mut self.cancellations.current;
        if let Some(same) = cancellations.iter_mut().find(|known| known.selection == selection) {
            same.replies.retain(|(_, reply)| !reply.is_closed());
            same.replies.push(waits);
            return;
        }
        if self.cancellations.unfinished() >= MAX_CANCELLATIONS {
            let reason = "too many other cancellations wait; try again later";
            let _gone = waits.1.send(CommandReceipt::refused(reason));
            return;
        }
        let mut new = Cancellation::new(selection, self.run.core.begun());
        new.replies.push(waits);
        self.cancel_portion(new);
        if self.run.core.stopping().is_some() && self.cancellations.is_busy() {
            self.cancellations.refuse();
        }
    }

    /// Cancels the next portion of one of the cancellations, each in its turn.
    pub(super) fn cancel_next(&mut self) {
        let is_ready = |current: &Cancellation| current.portion.is_none();
        let ready = self.cancellations.current.iter().position(is_ready);
        if let Some(next) = ready.and_then(|index| self.cancellations.current.remove(index)) {
            self.cancel_portion(next);
        }
    }

    fn cancel_portion(&mut self, mut current: Cancellation) {
        let planner = &self.planner;
        let items = current.next_items(|selection, at| planner.select(selection, at));
        let id = self.next_request_id();
        current.portion = Some(id);
        self.cancellations.current.push_back(current);
        // One without items has a receipt, too.
        self.handle(CoreInput::Cancel { id, items });
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::digest::Digest;
    use rollout_protocol::id::ItemId;
    use rollout_protocol::wire::offer::SizeClass;

    use super::*;

    fn item(ordinal: u64) -> NewItem {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&ordinal.to_be_bytes());
        let (item, spec) = (ItemId::from_bytes(bytes), Digest::from_bytes([0; 32]));
        NewItem { item, ordinal, spec, class: SizeClass(0), lane: 0 }
    }

    /// The step of a plan of this many items, all of which are named.
    fn all_of(total: u64) -> impl Fn(&TrialSelection, u64) -> SelectionStep {
        move |_, ordinal| match ordinal < total {
            true => SelectionStep::Named(item(ordinal)),
            false => SelectionStep::End,
        }
    }

    fn counted(items: &[NewItem]) -> CommandReceipt {
        let named = items.len() as u64;
        CommandReceipt { named, ended: named, ..CommandReceipt::default() }
    }

    /// A session with a cancellation of everything, and the receiver of its receipt.
    fn cancelling(begun: Vec<u64>) -> (Cancellations, oneshot::Receiver<CommandReceipt>) {
        let (reply, receipt) = oneshot::channel();
        let mut new = Cancellation::new(TrialSelection::default(), begun);
        new.replies.push((Instant::now() + ANSWER_AFTER, reply));
        (Cancellations { current: [new].into() }, receipt)
    }

    /// Makes the next portion under an id.
    fn portion(cancellations: &mut Cancellations, id: u64, total: u64) -> Vec<NewItem> {
        let current = &mut cancellations.current[0];
        assert_eq!(current.portion, None, "one portion at a time");
        current.portion = Some(id);
        current.next_items(all_of(total))
    }

    #[tokio::test]
    async fn cancellation_names_every_item_once_in_bounded_portions() {
        let (total, begun) = (10_000, vec![3, 700, 9_999]);
        let (mut cancellations, mut receipt) = cancelling(begun.clone());
        let (mut named, mut id) = (Vec::new(), 0);
        while cancellations.is_busy() {
            assert!(cancellations.is_ready() && receipt.try_recv().is_err());
            let items = portion(&mut cancellations, id, total);
            assert!(items.len() <= PORTION && !cancellations.is_ready(), "{}", items.len());
            named.extend(items.iter().map(|new| new.ordinal));
            assert!(cancellations.answer(id, &counted(&items)), "it is a portion");
            id += 1;
        }
        assert_eq!(named[..3], begun, "items that were begun come first");
        named.sort_unstable();
        assert_eq!(named, (0..total).collect::<Vec<_>>());
        assert_eq!(id, 40, "{total} items in portions of {PORTION}");
        let receipt = receipt.await.expect("an answer");
        assert_eq!((receipt.named, receipt.ended, receipt.in_progress), (total, total, false));
    }

    #[test]
    fn portion_without_named_items_ends_after_bounded_steps() {
        let asked = std::cell::Cell::new(0);
        let (mut cancellations, _receipt) = cancelling(Vec::new());
        let items = cancellations.current[0].next_items(|_, ordinal| {
            asked.set(asked.get() + 1);
            SelectionStep::Skip(ordinal + 1)
        });
        assert!(items.is_empty());
        assert_eq!(asked.get(), MAX_STEPS);
        assert!(cancellations.is_busy());
    }

    #[tokio::test]
    async fn cancellation_that_names_nothing_is_refused() {
        let (mut cancellations, receipt) = cancelling(Vec::new());
        assert!(portion(&mut cancellations, 1, 0).is_empty());
        assert!(cancellations.answer(1, &CommandReceipt::default()));
        let refused = receipt.await.expect("an answer").refused;
        assert_eq!(refused.as_deref(), Some(NOTHING_NAMED));
    }

    #[tokio::test(start_paused = true)]
    async fn sender_that_waits_long_is_told_the_numbers_so_far() {
        let (mut cancellations, receipt) = cancelling(Vec::new());
        let items = portion(&mut cancellations, 1, 1000);
        assert!(cancellations.answer(1, &counted(&items)));
        let due = cancellations.next_due().expect("a sender waits");
        cancellations.answer_overdue(due - Duration::from_millis(1));
        cancellations.answer_overdue(due);
        let told = receipt.await.expect("an answer");
        assert_eq!((told.in_progress, told.named, told.refused), (true, PORTION as u64, None));
        assert!(cancellations.is_busy() && cancellations.next_due().is_none());
    }

    #[tokio::test]
    async fn stop_ends_cancellations_with_the_numbers_so_far() {
        let (mut cancellations, receipt) = cancelling(Vec::new());
        let items = portion(&mut cancellations, 1, 1000);
        assert!(cancellations.answer(1, &counted(&items)));
        cancellations.refuse();
        let told = receipt.await.expect("an answer");
        assert_eq!((told.ended, told.refused.as_deref()), (PORTION as u64, Some(STOPPING)));
        assert!(!cancellations.is_busy());
        assert!(!cancellations.answer(1, &CommandReceipt::default()), "it is known no more");
    }
}
