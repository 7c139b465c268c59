//! Open requests for work and what they brought. Requests stay open from pull to pull, and what
//! arrived waits for the next one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Message, Subscriber};
use futures_util::StreamExt as _;
use rollout_protocol::wire::offer::{Offer, SizeClass};
use serde_json::json;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::acks::{Acks, Kind};
use super::credit::{self, Ask, Class};
use crate::port::{Delivery, Incarnation, Room, Token};
use crate::queue::nats::fault::Fault;
use crate::queue::nats::link::Link;
use crate::queue::nats::meta::Meta;
use crate::queue::nats::names::{self, Name};
use crate::queue::nats::setup::OFFER_BYTES;

/// What nobody took for so long is given back.
const MOMENT: Duration = Duration::from_millis(500);
/// A request whose end the server did not announce is given up so long after it.
const OVERDUE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Arrivals {
    pool: Name,
    inbox: String,
    state: Mutex<State>,
    told: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The life and the connection that requests and arrivals belong to.
    life: Option<Incarnation>,
    connection: u64,
    classes: Vec<(SizeClass, u64)>,
    requests: HashMap<u64, Open>,
    last_request: u64,
    arrived: VecDeque<Arrived>,
    turn: usize,
}

#[derive(Debug)]
struct Open {
    class: SizeClass,
    left: usize,
    until: Instant,
}

#[derive(Debug)]
struct Arrived {
    class: SizeClass,
    at: Instant,
    sequence: u64,
    delivered: u32,
    offer: Offer,
}

/// What a pull gets, has to ask for, and when it should look again.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) deliveries: Vec<Delivery>,
    pub(super) asks: Vec<(u64, Ask)>,
    pub(super) look_again: Instant,
}

impl Arrivals {
    pub(super) fn new(pool: Name, inbox: String) -> Self {
        Self { pool, inbox, state: Mutex::default(), told: Notify::new() }
    }

    /// Something arrives, or a request ends.
    pub(super) fn told(&self) -> Notified<'_> {
        self.told.notified()
    }

    /// The classes of the pool with the offers that wait in each.
    pub(super) fn classes_are(&self, mut classes: Vec<(SizeClass, u64)>) {
        classes.sort_unstable_by_key(|(class, _)| std::cmp::Reverse(*class));
        self.state().classes = classes;
    }

    /// Takes what fits, and opens requests for the rest of the room.
    pub(super) fn turn(&self, life: Incarnation, connection: u64, room: Room) -> Turn {
        let mut state = self.state();
        state.enter(life, connection);
        let now = Instant::now();
        state.requests.retain(|_, request| request.until > now);
        let (deliveries, left) = state.take(life, room);
        let asks = state.ask(left, now);
        let ends = state.requests.values().map(|request| request.until).min();
        let look_again = ends.unwrap_or(now + MOMENT);
        Turn { deliveries, asks, look_again }
    }

    pub(super) async fn send(&self, link: &Link, (id, ask): (u64, Ask)) -> Result<(), Fault> {
        let stream = &link.names.work;
        let consumer = names::consumer(&self.pool, ask.class);
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        let expires = u64::try_from(ask.expires.as_nanos()).unwrap_or(u64::MAX);
        let payload = json!({ "batch": ask.count, "expires": expires }).to_string();
        let reply = format!("{}.{id:x}", self.inbox);
        let sent = link.client.publish_with_reply(subject, reply, payload.into()).await;
        sent.map_err(|error| Fault::Unreachable(error.to_string()))
    }

    /// Receives for as long as the client lives.
    pub(super) async fn receive(
        self: Arc<Self>,
        link: Arc<Link>,
        acks: Arc<Acks>,
        subscriber: Subscriber,
    ) {
        let mut arriving = subscriber.ready_chunks(256);
        let mut looks = tokio::time::interval(MOMENT / 2);
        loop {
            tokio::select! {
                messages = arriving.next() => {
                    let Some(messages) = messages else { return };
                    for message in messages {
                        self.arrived(&link, &acks, message);
                    }
                    self.told.notify_waiters();
                }
                _ = looks.tick() => {
                    let stale = self.stale();
                    if !stale.is_empty() {
                        acks.say(&link, Kind::Nak, &stale).await;
                    }
                }
            }
        }
    }

    fn arrived(&self, link: &Link, acks: &Acks, message: Message) {
        let id = message.subject.rsplit_once('.').map(|(_, id)| u64::from_str_radix(id, 16));
        let Some(Ok(id)) = id else { return };
        if message.status.is_some() {
            let mut state = self.state();
            if let Some(ended) = state.requests.remove(&id) {
                // It had room left: nothing waits.
                state.waiting(ended.class, 0);
            }
            return;
        }
        let Some(way) = message.reply else { return };
        let Some(meta) = Meta::parse(&way) else { return };
        let Some(class) = names::class_of_consumer(&self.pool, meta.consumer) else { return };
        let Meta { delivered, sequence, pending, .. } = meta;
        link.life.saw_work(sequence);
        let mut state = self.state();
        state.waiting(class, pending);
        if let Some(request) = state.requests.get_mut(&id) {
            request.left -= 1;
            if request.left == 0 {
                state.requests.remove(&id);
            }
        }
        match parse(&message.payload) {
            Ok(offer) => {
                acks.know(sequence, way);
                let at = Instant::now();
                state.arrived.push_back(Arrived { class, at, sequence, delivered, offer });
            }
            // It is left alone: giving it back would bring it again at once.
            Err(what) => tracing::warn!("{} is no offer: {what}", message.subject),
        }
    }

    /// Takes out what nobody took for a moment.
    fn stale(&self) -> Vec<Token> {
        let mut state = self.state();
        let Some(incarnation) = state.life else { return Vec::new() };
        let fresh = state.arrived.iter().position(|arrived| arrived.at.elapsed() < MOMENT);
        let count = fresh.unwrap_or(state.arrived.len());
        let token = |arrived: Arrived| Token { incarnation, sequence: arrived.sequence };
        state.arrived.drain(..count).map(token).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn enter(&mut self, life: Incarnation, connection: u64) {
        if self.life != Some(life) {
            self.life = Some(life);
            self.arrived.clear();
            self.requests.clear();
        }
        if self.connection != connection {
            self.connection = connection;
            self.requests.clear();
        }
    }

    /// Takes what fits, the biggest first, in the order of arrival; the room that is left.
    fn take(&mut self, incarnation: Incarnation, mut room: Room) -> (Vec<Delivery>, Room) {
        let mut deliveries = Vec::new();
        let classes: Vec<SizeClass> = self.classes.iter().map(|(class, _)| *class).collect();
        for class in classes {
            let mut at = 0;
            while at < self.arrived.len() && room.of(class) > 0 {
                if self.arrived[at].class != class {
                    at += 1;
                    continue;
                }
                let Some(arrived) = self.arrived.remove(at) else { break };
                let Arrived { offer, delivered, sequence, .. } = arrived;
                let token = Token { incarnation, sequence };
                deliveries.push(Delivery { offer, token, delivered });
                room = room.without(class, 1);
            }
        }
        (deliveries, room)
    }

    fn ask(&mut self, room: Room, now: Instant) -> Vec<(u64, Ask)> {
        let open = |class| {
            let asked = self.requests.values().filter(|r| r.class == class).map(|r| r.left);
            asked.sum::<usize>() + self.arrived.iter().filter(|a| a.class == class).count()
        };
        let with_open = |(class, waiting): &(SizeClass, u64)| {
            let (class, waiting) = (*class, *waiting);
            Class { class, waiting, open: open(class) }
        };
        let classes: Vec<Class> = self.classes.iter().map(with_open).collect();
        let asks = credit::divide(room, &classes, &mut self.turn);
        let numbered = asks.into_iter().map(|ask| {
            self.last_request += 1;
            let until = now + ask.expires + OVERDUE;
            let open = Open { class: ask.class, left: ask.count, until };
            self.requests.insert(self.last_request, open);
            (self.last_request, ask)
        });
        numbered.collect()
    }

    fn waiting(&mut self, class: SizeClass, count: u64) {
        if let Some(known) = self.classes.iter_mut().find(|(known, _)| *known == class) {
            known.1 = count;
        }
    }
}

fn parse(payload: &[u8]) -> Result<Offer, String> {
    if payload.len() > OFFER_BYTES {
        return Err(format!("it has {} bytes", payload.len()));
    }
    serde_json::from_slice(payload).map_err(|error| error.to_string())
}
