//! Addresses of registries. Each name is looked up once for a run.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::mpsc;
use std::time::Duration;

use rollout_base::supervise;

/// Names that are looked up for a run: each look-up blocks the thread that reads its tasks.
const MAX_NAMES: usize = 64;

/// Names without an answer, after which a run looks up no others.
const MAX_UNANSWERED: usize = 3;

/// Longest time to look a name up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// A function that looks up a name; `None` if there is no answer in time.
type Resolver = fn(&str) -> Option<Vec<IpAddr>>;

/// The look-ups of a run.
pub struct RegistryLookups<'a> {
    is_cancelled: Box<dyn Fn() -> bool + 'a>,
    resolver: Resolver,
    known: RefCell<HashMap<String, Vec<IpAddr>>>,
    unanswered: Cell<usize>,
}

impl<'a> RegistryLookups<'a> {
    /// Look-ups that end once the run's tasks are no longer read, as `is_cancelled` tells.
    pub fn new(is_cancelled: impl Fn() -> bool + 'a) -> Self {
        Self::with_resolver(is_cancelled, look_up)
    }

    fn with_resolver(is_cancelled: impl Fn() -> bool + 'a, resolver: Resolver) -> Self {
        let (is_cancelled, known) = (Box::new(is_cancelled), RefCell::default());
        Self { is_cancelled, resolver, known, unanswered: Cell::new(0) }
    }

    /// Whether the run's tasks are no longer read.
    pub fn is_cancelled(&self) -> bool {
        (self.is_cancelled)()
    }

    /// The addresses of a name, none if it has none. Blocks.
    ///
    /// # Errors
    /// Why it is not looked up.
    pub fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, &'static str> {
        if let Some(found) = self.known.borrow().get(name) {
            return Ok(found.clone());
        }
        if self.is_cancelled() {
            return Err("which is not looked up: the run has ended");
        }
        if self.known.borrow().len() >= MAX_NAMES {
            return Err("which is not looked up: the tasks of the run name too many registries");
        }
        if self.unanswered.get() >= MAX_UNANSWERED {
            return Err("which is not looked up: other registries have no answer");
        }
        let answer = (self.resolver)(name);
        if answer.is_none() {
            self.unanswered.set(self.unanswered.get() + 1);
        }
        let found = answer.unwrap_or_default();
        self.known.borrow_mut().insert(name.to_owned(), found.clone());
        Ok(found)
    }
}

fn look_up(name: &str) -> Option<Vec<IpAddr>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let asked = name.to_owned();
    let work = move || {
        let found = (asked.as_str(), 0).to_socket_addrs();
        let found = found.into_iter().flatten().map(|address| address.ip()).collect::<Vec<_>>();
        // After the time limit there is no receiver.
        let _late = sender.send(found);
    };
    // Without an answer, the thread ends with the time limit of the system's resolver.
    let _thread = supervise::thread("registry-lookup", work).ok()?;
    receiver.recv_timeout(LOOKUP_TIMEOUT).ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn names_are_looked_up_once_and_up_to_a_limit() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let resolver = |_name: &str| {
            ASKED.fetch_add(1, Ordering::SeqCst);
            Some(vec![IpAddr::from(Ipv4Addr::LOCALHOST)])
        };
        let lookups = RegistryLookups::with_resolver(|| false, resolver);
        for n in (0..MAX_NAMES).chain(0..MAX_NAMES) {
            let found = lookups.addresses(&format!("h{n}"));
            assert_eq!(found, Ok(vec![IpAddr::from(Ipv4Addr::LOCALHOST)]));
        }
        assert!(lookups.addresses("other").is_err());
        assert_eq!(ASKED.load(Ordering::SeqCst), MAX_NAMES);
    }

    #[test]
    fn names_without_an_answer_end_the_lookups() {
        let lookups = RegistryLookups::with_resolver(|| false, |_name| None);
        for n in 0..MAX_UNANSWERED {
            assert_eq!(lookups.addresses(&format!("h{n}")), Ok(Vec::new()));
        }
        assert!(lookups.addresses("other").is_err());
        assert_eq!(lookups.addresses("h0"), Ok(Vec::new()));
    }

    #[test]
    fn run_that_has_ended_looks_nothing_up() {
        let has_ended = Cell::new(false);
        let lookups = RegistryLookups::new(|| has_ended.get());
        assert!(lookups.addresses("localhost").is_ok());
        has_ended.set(true);
        assert!(lookups.is_cancelled() && lookups.addresses("other").is_err());
    }
}
