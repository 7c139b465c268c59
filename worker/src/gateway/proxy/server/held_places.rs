//! Calls to model servers by the execution that makes them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::spec::gateway::UpstreamSpec;
use tokio::time::Instant;

use super::ModelServer;

/// A minute, of which limits speak.
const MINUTE: Duration = Duration::from_secs(60);

/// Calls to a server.
#[derive(Debug, Default)]
pub(super) struct ServerCalls {
    /// Those that wait for the limits, or that the server is answering.
    present: usize,
    /// Those that the server is answering.
    pub(super) answering: usize,
    /// How many were sent so far.
    total_sent: u64,
    /// When those of the last minute were sent, if there is a limit on them.
    sent: VecDeque<Instant>,
}

impl ServerCalls {
    /// Numbers of those that are present, and of the last minute.
    fn counts(&mut self) -> [usize; 2] {
        self.forget_old(Instant::now());
        [self.present, self.sent.len()]
    }

    fn add_sent(&mut self, spec: &UpstreamSpec) {
        self.answering += 1;
        self.total_sent += 1;
        if spec.requests_per_minute.is_some() {
            let now = Instant::now();
            self.forget_old(now);
            self.sent.push_back(now);
        }
    }

    fn forget_old(&mut self, now: Instant) {
        while self.sent.front().is_some_and(|sent| now.duration_since(*sent) >= MINUTE) {
            self.sent.pop_front();
        }
    }
}

/// The calls of an execution by the name of their server.
#[derive(Debug, Default)]
pub(in super::super) struct HeldPlaces(Mutex<HashMap<String, ServerCalls>>);

impl HeldPlaces {
    fn servers(&self) -> MutexGuard<'_, HashMap<String, ServerCalls>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this execution uses most of the rate of a server, for which another call of it waited.
    /// With leased limits only the calls of this worker are known.
    pub(super) fn use_most_of_rate(&self, server: &ModelServer) -> bool {
        let own = self.servers().get_mut(server.name()).map(ServerCalls::counts);
        let [own, own_sent] = own.unwrap_or_default();
        let [all, sent] = server.calls().counts();
        let is_most = |own: usize, all: usize| own.saturating_mul(2) > all;
        // The call that waited counts, too: short ones may use up a rate one after the other.
        is_most(own + 1, all + 1) && is_most(own_sent, sent)
    }

    /// How many calls of this execution a server is answering, and how many it was sent so far.
    fn taken(&self, server: &ModelServer) -> (usize, u64) {
        let servers = self.servers();
        let own = servers.get(server.name());
        own.map(|calls| (calls.answering, calls.total_sent)).unwrap_or_default()
    }

    /// Counts a call that waits for the limits.
    pub(super) fn hold<'a>(&'a self, server: &'a ModelServer) -> HeldPlace<'a> {
        let (answering, sent_before) = self.taken(server);
        let has_places = answering > 0;
        let held = HeldPlace { places: self, server, is_sent: false, has_places, sent_before };
        held.change(|calls| calls.present += 1);
        held
    }
}

/// One of these calls.
#[derive(Debug)]
pub(super) struct HeldPlace<'a> {
    places: &'a HeldPlaces,
    server: &'a ModelServer,
    is_sent: bool,
    /// Whether the server was answering others of the execution when it began to wait.
    has_places: bool,
    /// How many others of the execution were sent before.
    sent_before: u64,
}

impl HeldPlace<'_> {
    /// Changes the calls of all executions, and those of its own.
    fn change(&self, change: impl Fn(&mut ServerCalls)) {
        change(&mut self.server.calls());
        change(self.places.servers().entry(self.server.name().to_owned()).or_default());
    }

    /// Whether others of the execution had what it waits for: the execution was not kept out, but
    /// asked for too many calls at once.
    pub(super) fn others_were_taken(&self) -> bool {
        let (_, sent) = self.places.taken(self.server);
        // A call that was sent earlier uses none of the present rate, however long it takes.
        sent > self.sent_before || self.has_places && self.server.lacks_places()
    }

    /// Counts it as one that the server is answering.
    pub(super) fn mark_sent(&mut self) {
        self.is_sent = true;
        self.change(|calls| calls.add_sent(self.server.spec()));
    }
}

impl Drop for HeldPlace<'_> {
    fn drop(&mut self) {
        let answering = usize::from(self.is_sent);
        self.change(|calls| {
            calls.present -= 1;
            calls.answering -= answering;
        });
    }
}
