//! Open requests for work and the offers that arrived. Requests stay open from pull to pull, and
//! arrived offers wait for the next pull.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Message, Subscriber};
use futures_util::StreamExt as _;
use rollout_protocol::wire::delivery::{Delivery, FreeCapacity, MessageToken};
use rollout_protocol::wire::offer::{Offer, SizeClass};
use rollout_protocol::wire::position::Incarnation;
use serde_json::json;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::acks::{AckKind, DeliveryAcks};
use super::slot_division::{self, ClassDemand, PullRequest};
use crate::nats::client::NatsClient;
use crate::nats::delivery_metadata::DeliveryMetadata;
use crate::nats::error::NatsError;
use crate::nats::names::{self, NatsName};
use crate::nats::setup::MAX_OFFER_BYTES;

/// An offer that no pull took for this long is returned.
const STALE_AFTER: Duration = Duration::from_millis(500);
/// A request whose end the server did not announce is given up this long after its expiry.
const REQUEST_GRACE: Duration = Duration::from_millis(500);

/// The header with the number of messages that an ended request did not deliver.
const UNUSED_HEADER: &str = "Nats-Pending-Messages";

#[derive(Debug)]
pub(super) struct PullBuffer {
    pool: NatsName,
    inbox: String,
    state: Mutex<PullBufferState>,
    changed: Notify,
    end: watch::Sender<PullsEnd>,
}

/// How far the end of all pulls is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PullsEnd {
    /// Pulls are made.
    No,
    /// No more offers are wanted.
    Asked,
    /// No more offers arrive, and those that arrived are returned.
    Done,
}

#[derive(Debug, Default)]
struct PullBufferState {
    /// The incarnation and the connection that requests and arrived offers belong to.
    incarnation: Option<Incarnation>,
    connection: u64,
    /// The largest first.
    classes: Vec<PullClassState>,
    last_request: u64,
    arrived: VecDeque<ArrivedOffer>,
    turn: usize,
}

/// A class and its open requests. A message does not name its request, so `open` counts the missing
/// messages of all requests.
#[derive(Debug)]
struct PullClassState {
    class: SizeClass,
    waiting: u64,
    missing: usize,
    requests: HashMap<u64, OpenRequest>,
}

#[derive(Debug)]
struct OpenRequest {
    count: usize,
    until: Instant,
}

#[derive(Debug)]
struct ArrivedOffer {
    class: SizeClass,
    at: Instant,
    sequence: u64,
    delivered: u32,
    offer: Offer,
}

/// One step of a pull: its deliveries, the requests to send, and when to check again.
#[derive(Debug)]
pub(super) struct PullStep {
    pub(super) deliveries: Vec<Delivery>,
    pub(super) requests: Vec<(u64, PullRequest)>,
    pub(super) check_again: Instant,
}

impl PullBuffer {
    pub(super) fn new(pool: NatsName, inbox: String) -> Self {
        let end = watch::Sender::new(PullsEnd::No);
        Self { pool, inbox, state: Mutex::default(), changed: Notify::new(), end }
    }

    /// Ends all requests, and returns the offers that arrived and those that are under way. The
    /// server gives offers to a request as long as somebody subscribes to its replies; an offer that
    /// it gave to a client that is gone comes again after its lease only.
    pub(super) async fn end(&self) {
        self.end.send_if_modified(|end| {
            let is_first = *end == PullsEnd::No;
            if is_first {
                *end = PullsEnd::Asked;
            }
            is_first
        });
        let mut end = self.end.subscribe();
        let done = end.wait_for(|end| *end == PullsEnd::Done).await;
        drop(done.expect("the buffer holds the sender"));
    }

    /// Resolves when an offer arrives or a request ends.
    pub(super) fn notified(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Whether offers that have arrived wait to be taken.
    pub(super) fn has_arrived(&self) -> bool {
        !self.state().arrived.is_empty()
    }

    /// Sets the classes of the pool with the number of waiting offers in each.
    pub(super) fn set_classes(&self, classes: Vec<(SizeClass, u64)>) {
        let mut state = self.state();
        let mut known = std::mem::take(&mut state.classes);
        for (class, waiting) in classes {
            let former = known.iter().position(|k| k.class == class).map(|n| known.swap_remove(n));
            state.classes.push(match former {
                Some(former) => PullClassState { waiting, ..former },
                None => PullClassState { class, waiting, missing: 0, requests: HashMap::new() },
            });
        }
        state.classes.sort_unstable_by_key(|class| std::cmp::Reverse(class.class));
    }

    /// Takes the offers that fit, and opens requests for the remaining capacity.
    pub(super) fn next_step(
        &self,
        incarnation: Incarnation,
        connection: u64,
        capacity: FreeCapacity,
    ) -> PullStep {
        let mut state = self.state();
        state.enter_connection(incarnation, connection);
        let now = Instant::now();
        for class in &mut state.classes {
            class.requests.retain(|_, request| request.until > now);
            class.close_finished();
        }
        let (deliveries, left) = state.take_fitting(incarnation, capacity);
        let requests = state.open_requests(left, now);
        let open = state.classes.iter().flat_map(|class| class.requests.values());
        let first_end = open.map(|request| request.until).min();
        let check_again = first_end.unwrap_or(now + STALE_AFTER);
        PullStep { deliveries, requests, check_again }
    }

    pub(super) async fn send_request(
        &self,
        client: &NatsClient,
        (id, request): (u64, PullRequest),
    ) -> Result<(), NatsError> {
        let stream = &client.names.work;
        let consumer = names::consumer_name(&self.pool, request.class);
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        let expires = u64::try_from(request.expires.as_nanos()).unwrap_or(u64::MAX);
        let payload = json!({ "batch": request.count, "expires": expires }).to_string();
        let reply = format!("{}.{id:x}", self.inbox);
        let sent = client.inner.publish_with_reply(subject, reply, payload.into()).await;
        sent.map_err(|error| NatsError::Unreachable(error.to_string()))
    }

    /// Receives for as long as the client lives, or until the end of all pulls.
    pub(super) async fn receive_messages(
        self: Arc<Self>,
        client: Arc<NatsClient>,
        acks: Arc<DeliveryAcks>,
        subscriber: Subscriber,
    ) {
        let mut arriving = subscriber.ready_chunks(256);
        let mut end = self.end.subscribe();
        let mut is_ending = false;
        loop {
            tokio::select! {
                messages = arriving.next() => {
                    let Some(messages) = messages else { break };
                    for message in messages {
                        self.handle_message(&client, &acks, message);
                    }
                    acks.send_pending(&client).await;
                    self.changed.notify_waiters();
                }
                () = wait_until(self.stale_at()) => {
                    let stale = self.take_arrived(STALE_AFTER);
                    if !stale.is_empty() {
                        acks.send(&client, AckKind::Nak, &stale).await;
                    }
                }
                // Also if it was asked before this loop began.
                () = wait_until_asked(&mut end), if !is_ending => {
                    is_ending = true;
                    // Offers under way still arrive, then the subscription ends.
                    if let Err(error) = arriving.get_mut().drain().await {
                        tracing::debug!("cannot end the subscription to offers: {error}");
                    }
                }
            }
        }
        acks.send(&client, AckKind::Nak, &self.take_arrived(Duration::ZERO)).await;
        let _cut_off = client.inner.flush().await;
        self.end.send_replace(PullsEnd::Done);
    }

    fn handle_message(&self, client: &NatsClient, acks: &DeliveryAcks, message: Message) {
        if message.status.is_some() {
            self.handle_request_end(&message);
            return;
        }
        let Some(reply_subject) = message.reply else { return };
        let Some(meta) = DeliveryMetadata::parse(&reply_subject) else { return };
        let Some(class) = names::class_of_consumer(&self.pool, meta.consumer) else { return };
        let DeliveryMetadata { delivered, sequence, pending, .. } = meta;
        // A count of 2 makes it suspicious: the worker claims it before running it.
        let delivered = if client.incarnation.may_be_redelivered(sequence) {
            delivered.max(2)
        } else {
            delivered
        };
        client.incarnation.observe_offer(sequence);
        let mut state = self.state();
        if let Some(class) = state.classes.iter_mut().find(|known| known.class == class) {
            class.waiting = pending;
            class.missing = class.missing.saturating_sub(1);
            class.close_finished();
        }
        match parse_offer(&message.payload) {
            Ok(offer) => {
                if acks.register(sequence, reply_subject, (offer.item, offer.try_id)) {
                    let at = Instant::now();
                    state.arrived.push_back(ArrivedOffer { class, at, sequence, delivered, offer });
                }
            }
            // It is not returned, because it would be redelivered at once.
            Err(what) => tracing::warn!(
                "cannot read the offer on {}, which is left to other workers: {what}; if its \
                 coordinator is newer than this worker, upgrade the worker",
                message.subject
            ),
        }
    }

    /// Handles the end of a request that did not get all its messages.
    fn handle_request_end(&self, message: &Message) {
        let id = message.subject.rsplit_once('.').map(|(_, id)| u64::from_str_radix(id, 16));
        let Some(Ok(id)) = id else { return };
        let header = message.headers.as_ref().and_then(|headers| headers.get(UNUSED_HEADER));
        let unused = header.and_then(|text| text.as_str().parse().ok());
        let mut state = self.state();
        for class in &mut state.classes {
            let Some(ended) = class.requests.remove(&id) else { continue };
            class.missing = class.missing.saturating_sub(unused.unwrap_or(ended.count));
            // The request had capacity left, so no offer of its class waits.
            class.waiting = 0;
            class.close_finished();
        }
    }

    /// When an offer that arrived has to be returned, unless a pull takes it.
    fn stale_at(&self) -> Option<Instant> {
        let state = self.state();
        let oldest = state.arrived.front().filter(|_| state.incarnation.is_some());
        oldest.map(|arrived| arrived.at + STALE_AFTER)
    }

    /// Removes the offers that no pull took for this long.
    fn take_arrived(&self, age: Duration) -> Vec<MessageToken> {
        let mut state = self.state();
        let Some(incarnation) = state.incarnation else { return Vec::new() };
        let fresh = state.arrived.iter().position(|arrived| arrived.at.elapsed() < age);
        let count = fresh.unwrap_or(state.arrived.len());
        let token =
            |arrived: ArrivedOffer| MessageToken { incarnation, sequence: arrived.sequence };
        state.arrived.drain(..count).map(token).collect()
    }

    fn state(&self) -> MutexGuard<'_, PullBufferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PullBufferState {
    fn enter_connection(&mut self, incarnation: Incarnation, connection: u64) {
        if self.incarnation != Some(incarnation) {
            self.incarnation = Some(incarnation);
            self.connection = 0;
            self.arrived.clear();
        }
        if self.connection != connection {
            self.connection = connection;
            for class in &mut self.classes {
                class.requests.clear();
                class.close_finished();
            }
        }
    }

    /// Takes the offers that fit, the largest class first, in the order of arrival. Returns them
    /// and the remaining capacity.
    fn take_fitting(
        &mut self,
        incarnation: Incarnation,
        mut capacity: FreeCapacity,
    ) -> (Vec<Delivery>, FreeCapacity) {
        let mut deliveries = Vec::new();
        let classes: Vec<SizeClass> = self.classes.iter().map(|class| class.class).collect();
        for class in classes {
            let mut at = 0;
            while at < self.arrived.len() && capacity.count_for(class) > 0 {
                if self.arrived[at].class != class {
                    at += 1;
                    continue;
                }
                let Some(arrived) = self.arrived.remove(at) else { break };
                let ArrivedOffer { offer, delivered, sequence, .. } = arrived;
                let token = MessageToken { incarnation, sequence };
                deliveries.push(Delivery { offer, token, delivered });
                capacity = capacity.without(class, 1);
            }
        }
        (deliveries, capacity)
    }

    fn open_requests(&mut self, capacity: FreeCapacity, now: Instant) -> Vec<(u64, PullRequest)> {
        let with_open = |known: &PullClassState| {
            let PullClassState { class, waiting, missing, .. } = *known;
            let here = self.arrived.iter().filter(|a| a.class == class).count();
            ClassDemand { class, waiting, open: missing + here }
        };
        let classes: Vec<ClassDemand> = self.classes.iter().map(with_open).collect();
        let requests = slot_division::divide_slots(capacity, &classes, &mut self.turn);
        let mut numbered = Vec::with_capacity(requests.len());
        for ask in requests {
            self.last_request += 1;
            numbered.push((self.last_request, ask));
            if let Some(class) = self.classes.iter_mut().find(|known| known.class == ask.class) {
                let open =
                    OpenRequest { count: ask.count, until: now + ask.expires + REQUEST_GRACE };
                class.requests.insert(self.last_request, open);
                class.missing += ask.count;
            }
        }
        numbered
    }
}

impl PullClassState {
    /// Resets the count without requests, and removes the requests when all their messages arrived.
    fn close_finished(&mut self) {
        if self.missing == 0 || self.requests.is_empty() {
            self.missing = 0;
            self.requests.clear();
        }
    }
}

/// Waits until a time; forever without one.
async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Waits until all pulls are to end.
async fn wait_until_asked(end: &mut watch::Receiver<PullsEnd>) {
    let asked = end.wait_for(|end| *end != PullsEnd::No).await;
    drop(asked.expect("the buffer holds the sender"));
}

fn parse_offer(payload: &[u8]) -> Result<Offer, String> {
    if payload.len() > MAX_OFFER_BYTES {
        return Err(format!("{} bytes are too large", payload.len()));
    }
    serde_json::from_slice(payload).map_err(|error| error.to_string())
}
