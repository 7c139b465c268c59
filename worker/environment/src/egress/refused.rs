//! The hosts that a proxy refused, for the record of a trial.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::hosts::HostRefusal;

/// Hosts that are kept by name; requests for further ones are only counted.
const MAX_HOSTS: usize = 500;

/// Longest name that is kept, bytes.
const MAX_HOST_BYTES: usize = 300;

/// Refused hosts, shared by the proxies of an execution.
#[derive(Debug, Default)]
pub struct RefusedHosts(Mutex<RefusedCounts>);

#[derive(Debug, Default)]
struct RefusedCounts {
    by_host: BTreeMap<(String, HostRefusal), u64>,
    others: u64,
}

/// All refused hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedSummary {
    /// Refused requests.
    pub requests: u64,
    /// The hosts, by name.
    pub hosts: Vec<RefusedHost>,
    /// Requests for hosts that are not among them, because there are too many.
    pub others: u64,
}

/// A refused host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedHost {
    /// Host and port.
    pub host: String,
    /// Why it was refused.
    pub reason: &'static str,
    /// Refused requests.
    pub requests: u64,
}

impl RefusedHosts {
    fn counts(&self) -> MutexGuard<'_, RefusedCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a refused request for `host`, with its port.
    pub fn add(&self, host: &str, refusal: HostRefusal) {
        tracing::debug!(host, "refused a host: {refusal}");
        let end = host.floor_char_boundary(MAX_HOST_BYTES);
        let key = (host[..end].to_owned(), refusal);
        let mut counts = self.counts();
        let has_room = counts.by_host.len() < MAX_HOSTS;
        match counts.by_host.get_mut(&key) {
            Some(requests) => *requests += 1,
            None if has_room => drop(counts.by_host.insert(key, 1)),
            None => counts.others += 1,
        }
    }

    /// The refused hosts so far; `None` if there are none.
    pub fn summary(&self) -> Option<RefusedSummary> {
        let counts = self.counts();
        let host = |((host, refusal), requests): (&(String, HostRefusal), &u64)| RefusedHost {
            host: host.clone(),
            reason: refusal.as_str(),
            requests: *requests,
        };
        let hosts: Vec<_> = counts.by_host.iter().map(host).collect();
        let others = counts.others;
        drop(counts);
        let requests = hosts.iter().map(|host| host.requests).sum::<u64>() + others;
        (requests > 0).then_some(RefusedSummary { requests, hosts, others })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_requests_are_counted_by_host() {
        let refused = RefusedHosts::default();
        assert_eq!(refused.summary(), None);
        for host in ["b:443", "a:80", "b:443"] {
            refused.add(host, HostRefusal::NotListed);
        }
        let summary = refused.summary().expect("some");
        let hosts: Vec<_> = summary.hosts.iter().map(|h| (h.host.as_str(), h.requests)).collect();
        assert_eq!((summary.requests, hosts), (3, vec![("a:80", 1), ("b:443", 2)]));
    }

    #[test]
    fn hosts_and_names_that_are_kept_are_limited() {
        let refused = RefusedHosts::default();
        for number in 0..MAX_HOSTS + 7 {
            refused.add(&format!("{number}{}:1", "é".repeat(400)), HostRefusal::NotListed);
        }
        let summary = refused.summary().expect("some");
        assert_eq!((summary.hosts.len(), summary.others), (MAX_HOSTS, 7));
        assert!(summary.hosts.iter().all(|host| host.host.len() <= MAX_HOST_BYTES));
    }
}
