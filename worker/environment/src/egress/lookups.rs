//! Look-ups of the names that one environment asks for. It has a share of those of this process, so that
//! names whose servers do not answer hold up no other environment.

use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lru::LruCache;
use rollout_base::supervise;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::shortages::{is_shortage, lookup_error};

/// Longest wait for a place among the look-ups.
const TURN_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest time to look a name up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Names that this process looks up at a time, each in a thread that other work needs, too.
const MAX_LOOKUPS: usize = 64;
static LOOKUPS: Semaphore = Semaphore::const_new(MAX_LOOKUPS);

/// Those of them for one environment.
const MAX_OF_ENVIRONMENT: usize = 4;

/// Time for which the addresses of a name are used again, and for which a name without an address is
/// not looked up again. The resolver of the host tells no time of its own.
const KNOWN_FOR: Duration = Duration::from_secs(10);
const UNKNOWN_FOR: Duration = Duration::from_secs(2);

/// Most results of one environment that are kept.
const KEPT_RESULTS: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// The look-ups of one environment.
#[derive(Debug)]
pub(super) struct NameLookups {
    of_process: &'static Semaphore,
    own: Arc<Semaphore>,
    results: Arc<Mutex<LruCache<String, LookupResult>>>,
}

/// The result of a look-up.
#[derive(Debug, Clone)]
struct LookupResult {
    found: Result<Vec<IpAddr>, (io::ErrorKind, String)>,
    expires_at: Instant,
}

impl Default for NameLookups {
    fn default() -> Self {
        Self::among(&LOOKUPS)
    }
}

impl NameLookups {
    /// Look-ups that share places with others.
    fn among(of_process: &'static Semaphore) -> Self {
        Self {
            of_process,
            own: Arc::new(Semaphore::new(MAX_OF_ENVIRONMENT)),
            results: Arc::new(Mutex::new(LruCache::new(KEPT_RESULTS))),
        }
    }

    /// The addresses of a name, by the resolver of this host.
    pub(super) async fn find(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.find_by(name, resolve).await
    }

    async fn find_by(
        &self,
        name: &str,
        resolve: impl FnOnce(&str) -> io::Result<Vec<IpAddr>> + Send + 'static,
    ) -> io::Result<Vec<IpAddr>> {
        if let Some(known) = self.known(name) {
            return known;
        }
        let turn = async {
            let own = Arc::clone(&self.own).acquire_owned().await.expect("it is never closed");
            let of_process = self.of_process.acquire().await.expect("it is never closed");
            Ok((own, of_process))
        };
        let turn = within(TURN_TIMEOUT, turn).await?;
        // Another request for the name may have had the turn before.
        if let Some(known) = self.known(name) {
            return known;
        }
        let (name, results) = (name.to_owned(), Arc::clone(&self.results));
        let looking = supervise::blocking(move || {
            // A look-up whose caller is gone takes its places until it ends.
            let _turn = turn;
            let found = resolve(&name);
            // A shortage of this host says nothing about the name.
            if !found.as_ref().is_err_and(is_shortage) {
                keep(&results, name, &found);
            }
            found
        });
        within(LOOKUP_TIMEOUT, looking).await
    }

    /// The result of an earlier look-up that holds still.
    fn known(&self, name: &str) -> Option<io::Result<Vec<IpAddr>>> {
        let result = lock(&self.results).get(name).cloned()?;
        let holds = result.expires_at > Instant::now();
        holds.then(|| result.found.map_err(|(kind, text)| io::Error::new(kind, text)))
    }
}

fn lock(
    results: &Mutex<LruCache<String, LookupResult>>,
) -> MutexGuard<'_, LruCache<String, LookupResult>> {
    results.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a result for later requests.
fn keep(
    results: &Mutex<LruCache<String, LookupResult>>,
    name: String,
    found: &io::Result<Vec<IpAddr>>,
) {
    let is_known = found.as_ref().is_ok_and(|addresses| !addresses.is_empty());
    let time = if is_known { KNOWN_FOR } else { UNKNOWN_FOR };
    let found = match found {
        Ok(addresses) => Ok(addresses.clone()),
        Err(error) => Err((error.kind(), error.to_string())),
    };
    lock(results).put(name, LookupResult { found, expires_at: Instant::now() + time });
}

fn resolve(name: &str) -> io::Result<Vec<IpAddr>> {
    // The port is that of no connection.
    let found = (name, 0).to_socket_addrs().map_err(lookup_error)?;
    Ok(found.map(|address| address.ip()).collect())
}

/// The result of work that has a time limit.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {limit:?}"));
    tokio::time::timeout(limit, work).await.map_err(timed_out)?
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    /// The look-ups of an environment of a process with this number of places.
    fn lookups_of_process(places: usize) -> Arc<NameLookups> {
        Arc::new(NameLookups::among(Box::leak(Box::new(Semaphore::new(places)))))
    }

    #[tokio::test(start_paused = true)]
    async fn look_up_waits_for_earlier_ones() {
        let lookups = lookups_of_process(MAX_LOOKUPS);
        let places = u32::try_from(MAX_LOOKUPS).expect("few");
        let earlier = lookups.of_process.acquire_many(places).await.expect("open");
        let error = lookups.find("127.0.0.1").await.expect_err("no place");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(earlier);
        let found = lookups.find("127.0.0.1").await.expect("found");
        assert_eq!(found, [IpAddr::from([127, 0, 0, 1])]);
    }

    #[tokio::test]
    async fn slow_names_of_an_environment_leave_places_to_others() {
        let slow = lookups_of_process(MAX_OF_ENVIRONMENT + 1);
        let other = NameLookups::among(slow.of_process);
        let begin = |number: usize| {
            let (ending, until) = mpsc::channel::<()>();
            let slow = Arc::clone(&slow);
            let looking = supervise::spawn("a slow look-up", async move {
                let wait = move |_name: &str| {
                    let _ended = until.recv();
                    Ok(Vec::new())
                };
                slow.find_by(&format!("{number}.example"), wait).await
            });
            (ending, looking)
        };
        let begun: Vec<_> = (0..=MAX_OF_ENVIRONMENT).map(begin).collect();
        let deadline = Duration::from_secs(60);
        let all_begun = async {
            while slow.own.available_permits() > 0 || slow.of_process.available_permits() > 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(deadline, all_begun).await.expect("they begin");
        let address = IpAddr::from(Ipv4Addr::new(8, 8, 8, 8));
        let found = other.find_by("fast.example", move |_| Ok(vec![address]));
        let found = tokio::time::timeout(deadline, found).await.expect("it has a place");
        assert_eq!(found.expect("found"), [address]);
        for (ending, looking) in begun {
            drop(ending);
            let ended = looking.await.expect("no panic");
            assert_eq!(ended.expect("ended"), [] as [IpAddr; 0]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn result_is_used_again_for_a_short_time() {
        let lookups = lookups_of_process(1);
        let calls = Arc::new(AtomicUsize::new(0));
        let find = |is_known: bool| {
            let calls = Arc::clone(&calls);
            let resolve = move |_name: &str| {
                calls.fetch_add(1, Ordering::Relaxed);
                let unknown = || io::Error::new(io::ErrorKind::NotFound, "no such name");
                let address = IpAddr::from(Ipv4Addr::new(8, 8, 8, 8));
                is_known.then(|| vec![address]).ok_or_else(unknown)
            };
            let name = if is_known { "known.example" } else { "unknown.example" };
            let found = lookups.find_by(name, resolve);
            async { found.await.map_err(|error| (error.kind(), error.to_string())) }
        };
        for (is_known, time) in [(true, KNOWN_FOR), (false, UNKNOWN_FOR)] {
            calls.store(0, Ordering::Relaxed);
            let first = find(is_known).await;
            assert_eq!(first.is_ok(), is_known, "{first:?}");
            assert_eq!((find(is_known).await, calls.load(Ordering::Relaxed)), (first, 1));
            tokio::time::advance(time).await;
            assert_eq!(find(is_known).await.is_ok(), is_known);
            assert_eq!(calls.load(Ordering::Relaxed), 2, "after {time:?}");
        }
    }

    #[tokio::test]
    async fn shortage_of_this_host_is_no_result_that_is_kept() {
        let lookups = lookups_of_process(1);
        let full = |_name: &str| Err(rustix::io::Errno::MFILE.into());
        let error = lookups.find_by("a.example", full).await.expect_err("no files");
        assert!(is_shortage(&error), "{error}");
        let address = IpAddr::from(Ipv4Addr::new(8, 8, 8, 8));
        let found = lookups.find_by("a.example", move |_| Ok(vec![address])).await;
        assert_eq!(found.expect("found"), [address]);
    }

    #[tokio::test]
    async fn results_that_are_kept_are_limited() {
        let lookups = lookups_of_process(1);
        for number in 0..KEPT_RESULTS.get() + 3 {
            let found = lookups.find_by(&format!("{number}.example"), |_| Ok(Vec::new())).await;
            assert_eq!(found.expect("none"), [] as [IpAddr; 0]);
        }
        assert_eq!(lock(&lookups.results).len(), KEPT_RESULTS.get());
    }
}
