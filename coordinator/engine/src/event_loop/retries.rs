//! Retries that users ask for while the run goes on. The journal has the settlements that they
//! select; one retry at a time reads it, beside the loop.

use std::collections::VecDeque;
use std::time::Duration;

use rollout_base::backoff::error_chain;
use rollout_base::supervise::{self, Task};
use rollout_protocol::wire::command::{CommandReceipt, ReopenSelection};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Engine;
use crate::RunError;
use crate::core::{CoreInput, ItemToReopen};
use crate::manifest::RunState;
use crate::records::RecordsFileSet;
use crate::reopen::{self, FoundSettlements};

/// Reason for the refusal of a retry of items that cannot run again.
const NOT_REOPENED: &str = "only trials of jobs can run again";

/// Retries that wait for another one to end.
const MAX_WAITING: usize = 16;

/// Receipts that are kept for commands that are sent again.
const MAX_RECEIPTS: usize = 64;

/// How long a sender waits before it is told to ask again: less than the queue lets it wait.
const ANSWER_AFTER: Duration = Duration::from_secs(2);

/// The retries of a session.
#[derive(Debug, Default)]
pub(super) struct Retries {
    waiting: VecDeque<Retry>,
    current: Option<CurrentRetry>,
    /// The last receipts, by the number of the request.
    receipts: VecDeque<(u64, CommandReceipt)>,
}

/// A retry without a receipt.
#[derive(Debug)]
struct Retry {
    request: u64,
    selection: ReopenSelection,
    /// Senders that wait, and until when.
    replies: Vec<(Instant, oneshot::Sender<CommandReceipt>)>,
}

/// The retry that is being handled.
#[derive(Debug)]
struct CurrentRetry {
    retry: Retry,
    /// Id of its command in the core.
    id: u64,
    /// The settlements in the journal; `None` once the core decides.
    reading: Option<Task<Result<FoundSettlements, String>>>,
}

impl Retries {
    /// Whether a retry has no receipt yet.
    pub(super) fn is_busy(&self) -> bool {
        self.current.is_some()
    }

    /// The settlements that the current retry read; waits forever without one. Cancel-safe.
    pub(super) async fn next_found(&mut self) -> Result<FoundSettlements, String> {
        let current = self.current.as_mut().and_then(|current| current.reading.as_mut());
        let Some(reading) = current else { return std::future::pending().await };
        reading.await.unwrap_or_else(|panic| Err(panic.to_string()))
    }

    /// When the first sender has waited for long.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let current = self.current.iter().map(|current| &current.retry);
        current.chain(&self.waiting).flat_map(|retry| &retry.replies).map(|(due, _)| *due).min()
    }

    /// Tells senders that have waited for long to ask again.
    pub(super) fn answer_overdue(&mut self, now: Instant) {
        let current = self.current.iter_mut().map(|current| &mut current.retry);
        for retry in current.chain(&mut self.waiting) {
            for (_, reply) in retry.replies.extract_if(.., |(due, _)| *due <= now) {
                let in_progress = CommandReceipt { in_progress: true, ..CommandReceipt::default() };
                let _gone = reply.send(in_progress);
            }
        }
    }

    /// Ends the current retry if the command has this id.
    pub(super) fn answer(&mut self, id: u64, receipt: &CommandReceipt) {
        let Some(CurrentRetry { retry, .. }) = self.current.take_if(|current| current.id == id)
        else {
            return;
        };
        if self.receipts.len() >= MAX_RECEIPTS {
            self.receipts.pop_front();
        }
        self.receipts.push_back((retry.request, receipt.clone()));
        for (_, reply) in retry.replies {
            // A sender that no longer waits asks again.
            let _gone = reply.send(receipt.clone());
        }
    }

    /// Adds the sender of a request that is known; returns the sender of one that is not. A new
    /// request whose sender no longer waits is dropped: the sender may have done something else
    /// instead, such as start a session.
    fn join(
        &mut self,
        request: u64,
        reply: oneshot::Sender<CommandReceipt>,
    ) -> Option<oneshot::Sender<CommandReceipt>> {
        if let Some((_, receipt)) = self.receipts.iter().find(|(of, _)| *of == request) {
            let _gone = reply.send(receipt.clone());
            return None;
        }
        let current = self.current.as_mut().map(|current| &mut current.retry);
        match self.waiting.iter_mut().chain(current).find(|known| known.request == request) {
            Some(known) => {
                known.replies.retain(|(_, reply)| !reply.is_closed());
                known.replies.push((Instant::now() + ANSWER_AFTER, reply));
                None
            }
            None => Some(reply).filter(|reply| !reply.is_closed()),
        }
    }
}

impl Engine {
    /// A user retries settled trials.
    pub(super) fn on_retry(
        &mut self,
        request: u64,
        selection: ReopenSelection,
        reply: oneshot::Sender<CommandReceipt>,
    ) {
        let Some(reply) = self.retries.join(request, reply) else { return };
        let refused = match () {
            () if self.planner.item_lookup().is_none() => Some(NOT_REOPENED),
            () if self.retries.waiting.len() >= MAX_WAITING => {
                Some("too many other retries wait; try again later")
            }
            () => None,
        };
        if let Some(reason) = refused {
            let _gone = reply.send(CommandReceipt::refused(reason));
            return;
        }
        let replies = vec![(Instant::now() + ANSWER_AFTER, reply)];
        self.retries.waiting.push_back(Retry { request, selection, replies });
        self.begin_retry();
    }

    /// Begins the next retry unless there is one.
    pub(super) fn begin_retry(&mut self) {
        if self.retries.current.is_some() {
            return;
        }
        let Some(retry) = self.retries.waiting.pop_front() else { return };
        let (layout, durable) = (self.run.layout.clone(), self.run.writer.durable_prefix());
        let (selection, lookup) = (retry.selection.clone(), self.planner.item_lookup());
        let read = move || {
            let lookup = lookup.ok_or(NOT_REOPENED)?;
            let read = reopen::find_settlements(&layout, durable, &selection, &*lookup);
            read.map_err(|error| format!("cannot read the journal: {}", error_chain(&error)))
        };
        let reading = Some(supervise::spawn("retry", supervise::blocking(read)));
        let id = self.next_request_id();
        self.retries.current = Some(CurrentRetry { retry, id, reading });
    }

    /// The current retry read the journal.
    pub(super) fn on_settlements_found(
        &mut self,
        found: Result<FoundSettlements, String>,
    ) -> Result<(), RunError> {
        let Some(current) = &mut self.retries.current else { return Ok(()) };
        current.reading = None;
        let id = current.id;
        let refused = match &found {
            Err(reason) => Some(reason.clone()),
            Ok(FoundSettlements { unsettled, .. }) => {
                (!unsettled.is_empty()).then(|| format!("the run has no settled trial {unsettled}"))
            }
        };
        let found = match (refused, found) {
            (None, Ok(found)) => found,
            (reason, _) => {
                self.refuse_retry(id, reason.unwrap_or_default());
                return Ok(());
            }
        };
        let named = found.settled.len().max(found.named) as u64;
        let items = found.settled.into_iter().filter_map(|(item, (tries, former))| {
            let new = self.planner.find(&item)?;
            Some(ItemToReopen { new, tries, former: Box::new(former) })
        });
        let mut items: Vec<ItemToReopen> = items.collect();
        items.sort_unstable_by_key(|item| item.new.ordinal);
        match if items.is_empty() { Ok(()) } else { self.disown_record_files() } {
            Ok(()) => self.handle(CoreInput::Reopen { id, named, items }),
            Err(error @ RunError::LockLost(_)) => return Err(error),
            Err(error) => self.refuse_retry(id, error_chain(&error)),
        }
        Ok(())
    }

    fn refuse_retry(&mut self, id: u64, reason: String) {
        self.retries.answer(id, &CommandReceipt::refused(reason));
        self.begin_retry();
    }

    /// Makes the manifest name no record files until the end of the session: they must not hold
    /// superseded records.
    fn disown_record_files(&mut self) -> Result<(), RunError> {
        if self.run.reopenings.contains(&self.run.epoch) && self.run.record_files.is_empty() {
            return Ok(());
        }
        self.run.record_files = RecordsFileSet::default();
        self.run.reopenings.insert(self.run.epoch);
        self.write_manifest(RunState::Running).inspect_err(|_| {
            self.run.reopenings.remove(&self.run.epoch);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(request: u64, reply: oneshot::Sender<CommandReceipt>) -> Retry {
        let replies = vec![(Instant::now() + ANSWER_AFTER, reply)];
        Retry { request, selection: ReopenSelection::Failed, replies }
    }

    /// A retry that waits for the core, and another one after it.
    fn busy() -> (Retries, [oneshot::Receiver<CommandReceipt>; 2]) {
        let ((first, of_first), (second, of_second)) = (oneshot::channel(), oneshot::channel());
        let current = Some(CurrentRetry { retry: retry(1, first), id: 10, reading: None });
        let waiting = VecDeque::from([retry(2, second)]);
        (Retries { waiting, current, receipts: VecDeque::new() }, [of_first, of_second])
    }

    #[tokio::test]
    async fn request_sent_again_gets_the_receipt_of_the_first() {
        let (mut retries, [first, _second]) = busy();
        let (again, of_again) = oneshot::channel();
        assert!(retries.join(1, again).is_none(), "it is known");
        let receipt = CommandReceipt { named: 3, reopened: Some(2), ..CommandReceipt::default() };
        retries.answer(9, &CommandReceipt::default());
        assert!(retries.is_busy(), "another command was answered");
        retries.answer(10, &receipt);
        assert_eq!((first.await, of_again.await), (Ok(receipt.clone()), Ok(receipt.clone())));
        let (later, of_later) = oneshot::channel();
        assert!(retries.join(1, later).is_none());
        assert_eq!(of_later.await, Ok(receipt));
        let (new, _of_new) = oneshot::channel();
        assert!(retries.join(3, new).is_some(), "it is new");
    }

    #[test]
    fn new_request_whose_sender_left_is_dropped() {
        let mut retries = Retries::default();
        let (reply, receipt) = oneshot::channel();
        drop(receipt);
        assert!(retries.join(1, reply).is_none());
        let (reply, _receipt) = oneshot::channel();
        assert!(retries.join(1, reply).is_some(), "it comes again");
    }

    #[tokio::test(start_paused = true)]
    async fn sender_that_waits_long_is_told_to_ask_again() {
        let (mut retries, senders) = busy();
        let due = retries.next_due().expect("two senders wait");
        retries.answer_overdue(due - Duration::from_millis(1));
        assert!(retries.next_due().is_some());
        retries.answer_overdue(due + Duration::from_millis(1));
        for sender in senders {
            assert!(sender.await.expect("an answer").in_progress);
        }
        assert_eq!((retries.next_due(), retries.is_busy()), (None, true));
    }
}
