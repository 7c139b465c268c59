//! Calls to model servers by the execution that makes them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rollout_protocol::spec::gateway::UpstreamSpec;
use tokio::time::Instant;

use super::{ModelServer, UsedLimit};

/// A minute, of which limits speak.
const MINUTE: Duration = Duration::from_secs(60);

/// Calls that were sent to a server.
#[derive(Debug, Default)]
struct SentCalls {
    /// Those that the server is answering.
    answering: u64,
    /// How many there were so far.
    total: u64,
    /// When those of the last minute were sent, if there is a limit on them.
    recent: VecDeque<Instant>,
}

/// Numbers of these calls.
#[derive(Debug, Clone, Copy, Default)]
struct SentCounts {
    answering: u64,
    total: u64,
    of_last_minute: usize,
}

impl SentCalls {
    fn counts(&mut self) -> SentCounts {
        self.forget_old(Instant::now());
        let of_last_minute = self.recent.len();
        SentCounts { answering: self.answering, total: self.total, of_last_minute }
    }

    fn add(&mut self, spec: &UpstreamSpec) {
        self.answering += 1;
        self.total += 1;
        if spec.requests_per_minute.is_some() {
            let now = Instant::now();
            self.forget_old(now);
            self.recent.push_back(now);
        }
    }

    fn forget_old(&mut self, now: Instant) {
        while self.recent.front().is_some_and(|sent| now.duration_since(*sent) >= MINUTE) {
            self.recent.pop_front();
        }
    }
}

impl SentCounts {
    /// How many calls had a place since there were `before`.
    fn had_places(self, before: Self) -> u64 {
        before.answering + (self.total - before.total)
    }
}

/// Calls to a server of all executions of this worker.
#[derive(Debug, Default)]
pub(super) struct ServerCalls {
    /// How many executions have calls that wait for the limits, or that the server is answering.
    executions: u64,
    sent: SentCalls,
}

impl ServerCalls {
    /// How many calls the server is answering.
    pub(super) fn answering(&self) -> u64 {
        self.sent.answering
    }
}

/// Calls to a server of one execution.
#[derive(Debug, Default)]
struct OwnCalls {
    /// Those that wait for the limits, or that the server is answering.
    present: usize,
    sent: SentCalls,
}

/// The calls of an execution by the name of their server.
#[derive(Debug, Default)]
pub(in super::super) struct HeldPlaces(Mutex<HashMap<String, OwnCalls>>);

impl HeldPlaces {
    /// Reads or changes the calls to a server.
    fn with<T>(&self, server: &ModelServer, change: impl FnOnce(&mut OwnCalls) -> T) -> T {
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(servers.entry(server.name().to_owned()).or_default())
    }

    /// Counts a call that waits for the limits.
    pub(super) fn hold<'a>(&'a self, server: &'a ModelServer) -> HeldPlace<'a> {
        let (own_before, is_first) = self.with(server, |own| {
            own.present += 1;
            (own.sent.counts(), own.present == 1)
        });
        let mut all = server.calls();
        all.executions += u64::from(is_first);
        let all_before = all.sent.counts();
        drop(all);
        HeldPlace { places: self, server, is_sent: false, own_before, all_before }
    }
}

/// One of these calls.
#[derive(Debug)]
pub(super) struct HeldPlace<'a> {
    places: &'a HeldPlaces,
    server: &'a ModelServer,
    is_sent: bool,
    /// The calls of the execution when this one began to wait.
    own_before: SentCounts,
    /// The calls of all executions then.
    all_before: SentCounts,
}

impl HeldPlace<'_> {
    /// Whether the execution of a call that was not sent is the cause: it had its share of what the call
    /// waited for. Otherwise other executions kept it out. With leased limits only those of this worker
    /// are known.
    pub(super) fn is_own_cause(&self) -> bool {
        let limit = self.server.used_limit();
        let own = self.places.with(self.server, |own| own.sent.counts());
        let mut calls = self.server.calls();
        let (all, executions) = (calls.sent.counts(), calls.executions);
        drop(calls);
        match limit {
            UsedLimit::Places(places) => {
                // A smaller lease lets present calls end.
                let used = places.max(all.answering);
                let own_had = own.had_places(self.own_before);
                let all_had = all.had_places(self.all_before);
                is_share(own.answering, executions, used) || is_share(own_had, executions, all_had)
            }
            // A rate has few starts: an execution that had one was not kept out.
            UsedLimit::Rate => {
                let had_start = own.of_last_minute > 0 || own.total > self.own_before.total;
                had_start || own.total > 0 && executions == 1
            }
        }
    }

    /// Counts it as one that the server is answering.
    pub(super) fn mark_sent(&mut self) {
        self.is_sent = true;
        let spec = self.server.spec();
        self.places.with(self.server, |own| own.sent.add(spec));
        self.server.calls().sent.add(spec);
    }
}

impl Drop for HeldPlace<'_> {
    fn drop(&mut self) {
        let answering = u64::from(self.is_sent);
        let is_last = self.places.with(self.server, |own| {
            own.present -= 1;
            own.sent.answering -= answering;
            own.present == 0
        });
        let mut all = self.server.calls();
        all.executions -= u64::from(is_last);
        all.sent.answering -= answering;
    }
}

/// Whether `own` of `all` is at least the even share of one of so many executions.
fn is_share(own: u64, executions: u64, all: u64) -> bool {
    own > 0 && own.saturating_mul(executions) >= all
}
