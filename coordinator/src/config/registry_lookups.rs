//! Addresses of registries. Each name is looked up once for a run.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::mpsc;
use std::time::Duration;

use rollout_worker::supervise;

use super::fetch_access::FetchAccess;

/// Names that are looked up for a run: each look-up blocks the thread that reads its tasks.
const MAX_NAMES: usize = 64;

/// Names without an answer, after which a run looks up no others.
const MAX_UNANSWERED: usize = 3;

/// Longest time to look a name up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// A function that looks up a name; `None` if there is no answer in time.
type Resolver = fn(&str) -> Option<Vec<IpAddr>>;

/// The look-ups of a run.
pub(crate) struct RegistryLookups<'a> {
    fetch: &'a FetchAccess,
    resolver: Resolver,
    known: RefCell<HashMap<String, Vec<IpAddr>>>,
    unanswered: Cell<usize>,
}

impl<'a> RegistryLookups<'a> {
    pub(crate) fn new(fetch: &'a FetchAccess) -> Self {
        Self::with_resolver(fetch, look_up)
    }

    fn with_resolver(fetch: &'a FetchAccess, resolver: Resolver) -> Self {
        Self { fetch, resolver, known: RefCell::default(), unanswered: Cell::new(0) }
    }

    /// Whether the run's tasks are no longer read.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.fetch.is_cancelled()
    }

    /// The addresses of a name, none if it has none. Blocks.
    ///
    /// # Errors
    /// Why it is not looked up.
    pub(crate) fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, &'static str> {
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

    use tokio::sync::watch;

    use super::*;

    #[test]
    fn names_are_looked_up_once_and_up_to_a_limit() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let resolver = |_name: &str| {
            ASKED.fetch_add(1, Ordering::SeqCst);
            Some(vec![IpAddr::from(Ipv4Addr::LOCALHOST)])
        };
        let fetch = FetchAccess::default();
        let lookups = RegistryLookups::with_resolver(&fetch, resolver);
        for n in (0..MAX_NAMES).chain(0..MAX_NAMES) {
            let found = lookups.addresses(&format!("h{n}"));
            assert_eq!(found, Ok(vec![IpAddr::from(Ipv4Addr::LOCALHOST)]));
        }
        assert!(lookups.addresses("other").is_err());
        assert_eq!(ASKED.load(Ordering::SeqCst), MAX_NAMES);
    }

    #[test]
    fn names_without_an_answer_end_the_lookups() {
        let fetch = FetchAccess::default();
        let lookups = RegistryLookups::with_resolver(&fetch, |_name| None);
        for n in 0..MAX_UNANSWERED {
            assert_eq!(lookups.addresses(&format!("h{n}")), Ok(Vec::new()));
        }
        assert!(lookups.addresses("other").is_err());
        assert_eq!(lookups.addresses("h0"), Ok(Vec::new()));
    }

    #[test]
    fn run_that_has_ended_looks_nothing_up() {
        let (sender, receiver) = watch::channel(());
        let fetch = FetchAccess { cancelled: Some(receiver), ..FetchAccess::default() };
        let lookups = RegistryLookups::new(&fetch);
        assert!(lookups.addresses("localhost").is_ok());
        drop(sender);
        assert!(lookups.is_cancelled() && lookups.addresses("other").is_err());
    }
}
