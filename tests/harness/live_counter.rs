//! Counter of real executions: every agent of a [`crate::load::Load`] connects here while it works.
//!
//! It is independent of the program under test, so it also counts executions that the program
//! forgot or hid. A connection sends the task's name, stays open while the agent lives (the kernel
//! closes it when the agent is killed), and sends `done` before the agent exits normally.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rollout_base::supervise;

/// Ends and starts this close together may be seen in the wrong order.
const ORDER_TOLERANCE: Duration = Duration::from_millis(150);

/// One execution of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedExecution {
    /// Name of the task.
    pub task: String,
    /// Start time.
    pub began: Instant,
    /// End time; `None` while it runs.
    pub ended: Option<Instant>,
    /// It exited normally and was not killed.
    pub done: bool,
}

/// A listener for agents.
#[derive(Debug)]
pub struct LiveCounter {
    address: SocketAddr,
    observed: Arc<Mutex<Vec<ObservedExecution>>>,
    stopped: Arc<AtomicBool>,
}

impl LiveCounter {
    /// Listens on a free port, for sandboxes and containers of this host. Threads end with their
    /// connections.
    ///
    /// # Panics
    /// When no port is free.
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (observed, stopped) = (Arc::default(), Arc::<AtomicBool>::default());
        let (sightings, ends) = (Arc::clone(&observed), Arc::clone(&stopped));
        let serve = move || {
            for agent in listener.incoming().take_while(|_| !ends.load(Ordering::Relaxed)) {
                let (agent, sightings) = (agent?, Arc::clone(&sightings));
                supervise::thread("agent connection", move || watch(agent, &sightings))?;
            }
            Ok::<(), io::Error>(())
        };
        supervise::thread("live counter", serve).expect("a thread");
        Self { address, observed, stopped }
    }

    /// The listening port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Everything seen so far, in start order.
    pub fn observed(&self) -> Vec<ObservedExecution> {
        lock(&self.observed).clone()
    }

    /// How many agents run now.
    pub fn running(&self) -> usize {
        lock(&self.observed).iter().filter(|sighting| sighting.ended.is_none()).count()
    }

    /// The most that ran at once. An end within `ORDER_TOLERANCE` before a start counts as before
    /// it, because this process sees the two at different delays.
    pub fn peak(&self) -> usize {
        let seen = self.observed();
        let runs = |one: &ObservedExecution, at: Instant| {
            one.began <= at && one.ended.is_none_or(|ended| ended > at + ORDER_TOLERANCE)
        };
        let beside =
            |one: &ObservedExecution| seen.iter().filter(|other| runs(other, one.began)).count();
        seen.iter().map(beside).max().unwrap_or_default()
    }

    /// Number of executions of each task.
    pub fn executions(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for sighting in lock(&self.observed).iter() {
            *counts.entry(sighting.task.clone()).or_default() += 1;
        }
        counts
    }

    /// Executions beyond the first of each task.
    pub fn repeated(&self) -> usize {
        self.executions().values().map(|count| count - 1).sum()
    }

    /// Executions that did not exit normally.
    pub fn killed(&self) -> usize {
        lock(&self.observed).iter().filter(|s| s.ended.is_some() && !s.done).count()
    }
}

impl Drop for LiveCounter {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Wakes the listener; fails harmlessly if it has already ended.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port())));
    }
}

fn lock(seen: &Mutex<Vec<ObservedExecution>>) -> MutexGuard<'_, Vec<ObservedExecution>> {
    seen.lock().expect("not poisoned")
}

fn watch(agent: TcpStream, seen: &Mutex<Vec<ObservedExecution>>) {
    let began = Instant::now();
    let mut lines = BufReader::new(agent).lines().map_while(Result::ok);
    let Some(task) = lines.next() else { return };
    let number = {
        let mut seen = lock(seen);
        seen.push(ObservedExecution { task, began, ended: None, done: false });
        seen.len() - 1
    };
    let done = lines.any(|line| line == "done");
    let mut seen = lock(seen);
    seen[number].done = done;
    seen[number].ended = Some(Instant::now());
}
