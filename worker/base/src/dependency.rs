//! A service that executions need: whether it responds, and timeouts that pause while it does not.
//!
//! There is no task that watches it. Executions that use it call [`Dependency::watch`] beside their
//! own work, and those that wait for it call [`Dependency::check`]. Concurrent calls share one
//! probe.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

/// Time between two probes while the service responds.
const PROBE_INTERVAL: Duration = Duration::from_secs(3);

/// Time between two probes while the service does not respond.
const PROBE_INTERVAL_DOWN: Duration = Duration::from_secs(1);

/// Timeout of one probe. Even a busy engine responds to it at once.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// A probe of a service.
#[async_trait]
pub trait Probe: Send + Sync + fmt::Debug {
    /// Probes the service once.
    ///
    /// # Errors
    /// Why there was no response.
    async fn probe(&self) -> Result<(), String>;
}

/// A service, and whether it responds.
#[derive(Debug)]
pub struct Dependency {
    name: String,
    probe: Box<dyn Probe>,
    state: watch::Sender<DependencyState>,
    probe_lock: Mutex<()>,
}

#[derive(Debug, Clone, Copy)]
struct DependencyState {
    /// When it responded last.
    last_response: Instant,
    /// When it was probed last.
    last_probe: Instant,
    /// Number of probes.
    probes: u64,
    /// Since when it does not respond: since its last response.
    down_since: Option<Instant>,
    /// Total length of its former outages.
    past_downtime: Duration,
    /// Number of outages.
    outages: u64,
}

impl DependencyState {
    /// Total time without a response until `now`.
    fn down_until(&self, now: Instant) -> Duration {
        let present = self.down_since.map(|since| now.saturating_duration_since(since));
        self.past_downtime + present.unwrap_or_default()
    }
}

impl Dependency {
    /// A service that counts as up until it fails to respond.
    pub fn new(name: impl Into<String>, probe: Box<dyn Probe>) -> Self {
        let now = Instant::now();
        let state = DependencyState {
            last_response: now,
            last_probe: now,
            probes: 0,
            down_since: None,
            past_downtime: Duration::ZERO,
            outages: 0,
        };
        Self {
            name: name.into(),
            probe,
            state: watch::Sender::new(state),
            probe_lock: Mutex::default(),
        }
    }

    /// Whether the last call or probe got no response.
    pub fn is_down(&self) -> bool {
        self.state.borrow().down_since.is_some()
    }

    /// Number of outages so far.
    pub fn outages(&self) -> u64 {
        self.state.borrow().outages
    }

    /// Total time without a response so far, over all outages.
    pub fn downtime(&self) -> Duration {
        self.state.borrow().down_until(Instant::now())
    }

    /// Records that a call got no response.
    pub fn mark_failed(&self, why: &str) {
        let began = self.state.send_if_modified(|state| {
            let began = state.down_since.is_none();
            if began {
                state.down_since = Some(state.last_response.min(Instant::now()));
                state.outages += 1;
            }
            began
        });
        if began {
            tracing::warn!("{}", self.outage_text(why));
        }
    }

    /// Records a response.
    fn mark_answered(&self) {
        let mut lasted = None;
        self.state.send_modify(|state| {
            let now = Instant::now();
            if let Some(since) = state.down_since.take() {
                let outage = now.saturating_duration_since(since);
                state.past_downtime += outage;
                lasted = Some(outage);
            }
            state.last_response = now;
        });
        if let Some(outage) = lasted {
            tracing::info!("{} answers again after {outage:.0?}", self.name);
        }
    }

    /// Probes the service and returns whether it responded.
    pub async fn check(&self) -> bool {
        let probes = self.state.borrow().probes;
        let _probe_lock = self.probe_lock.lock().await;
        if self.state.borrow().probes != probes {
            return !self.is_down();
        }
        let probed_at = Instant::now();
        match tokio::time::timeout(PROBE_TIMEOUT, self.probe.probe()).await {
            Ok(Ok(())) => self.mark_answered(),
            Ok(Err(why)) => self.mark_failed(&why),
            Err(_) => self.mark_failed(&timeout_text(PROBE_TIMEOUT)),
        }
        self.state.send_modify(|state| {
            state.last_probe = probed_at;
            state.probes += 1;
        });
        !self.is_down()
    }

    /// Waits for the end of the outage that lasts or comes next.
    pub async fn wait_for_recovery(&self) {
        let mut states = self.state.subscribe();
        for is_down in [true, false] {
            // The sender lives as long as this borrow of it.
            drop(states.wait_for(|state| state.down_since.is_some() == is_down).await);
        }
    }

    /// Probes the service once without recording or logging an outage, for a caller that reports
    /// it.
    ///
    /// # Errors
    /// The service and why it did not answer within `limit`.
    pub async fn probe_once(&self, limit: Duration) -> Result<(), String> {
        let why = match tokio::time::timeout(limit, self.probe.probe()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => why,
            Err(_) => timeout_text(limit),
        };
        Err(self.outage_text(&why))
    }

    fn outage_text(&self, why: &str) -> String {
        format!("{} does not answer: {why}", self.name)
    }

    /// Probes the service repeatedly and calls `tell` with whether it is down when that changes.
    /// Never ends.
    pub async fn watch(&self, on_change: impl Fn(bool)) -> Infallible {
        let mut states = self.state.subscribe();
        let mut reported = false;
        loop {
            let state = *states.borrow_and_update();
            let down = state.down_since.is_some();
            if down != reported {
                reported = down;
                on_change(down);
            }
            let interval = if down { PROBE_INTERVAL_DOWN } else { PROBE_INTERVAL };
            tokio::select! {
                _ = states.changed() => {}
                () = tokio::time::sleep_until(state.last_probe + interval) => {
                    self.check().await;
                }
            }
        }
    }

    /// Does `work` within `limit`, not counting the time in which the service did not respond;
    /// `None` when the limit passed. Probes the service before it returns `None`.
    pub async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        let mut states = self.state.subscribe();
        let began = Instant::now();
        let before = states.borrow().down_until(began);
        let mut confirmed = false;
        loop {
            let (state, now) = (*states.borrow_and_update(), Instant::now());
            let down = state.down_until(now).saturating_sub(before);
            let end = limit.checked_add(down).and_then(|limit| began.checked_add(limit));
            let (runs, due) = (state.down_since.is_none(), end.is_some_and(|end| end <= now));
            confirmed &= runs && due;
            tokio::select! {
                biased;
                done = &mut work => return Some(done),
                () = std::future::ready(()), if confirmed => return None,
                () = sleep_until_deadline(end), if runs => confirmed = self.check().await,
                _ = states.changed() => {}
            }
        }
    }
}

fn timeout_text(limit: Duration) -> String {
    format!("timeout after {limit:?}")
}

async fn sleep_until_deadline(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

/// Does `work` within `limit`, which pauses during outages of the service, if there is one.
pub async fn within<T>(
    dependency: Option<&Dependency>,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Option<T> {
    match dependency {
        Some(dependency) => dependency.within(limit, work).await,
        None => tokio::time::timeout(limit, work).await.ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct SwitchedProbe {
        down: AtomicBool,
        hangs: AtomicBool,
        asked: AtomicU64,
    }

    #[async_trait]
    impl Probe for Arc<SwitchedProbe> {
        async fn probe(&self) -> Result<(), String> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            if self.hangs.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if self.down.load(Ordering::Relaxed) { Err("it is down".into()) } else { Ok(()) }
        }
    }

    fn switched_dependency() -> (Arc<SwitchedProbe>, Arc<Dependency>) {
        let switch = Arc::new(SwitchedProbe::default());
        (switch.clone(), Arc::new(Dependency::new("the service", Box::new(switch))))
    }

    async fn with_watch<T>(dependency: &Dependency, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            never = dependency.watch(|_| ()) => match never {},
        }
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_during_service_outage_is_paused() {
        let (switch, dependency) = switched_dependency();
        let work = async {
            tokio::time::sleep(Duration::from_secs(4)).await;
            switch.hangs.store(true, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(300)).await;
            switch.hangs.store(false, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(20)).await;
        };
        let limited = dependency.within(Duration::from_secs(60), work);
        assert!(with_watch(&dependency, limited).await.is_some());
        assert_eq!(dependency.outages(), 1);
        assert!(!dependency.is_down());
        assert!(dependency.downtime() >= Duration::from_secs(300), "{:?}", dependency.downtime());
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_without_outage_expires() {
        let (_, dependency) = switched_dependency();
        let began = Instant::now();
        let limited = dependency.within(Duration::from_secs(60), std::future::pending::<()>());
        assert!(with_watch(&dependency, limited).await.is_none());
        assert_eq!(began.elapsed(), Duration::from_secs(60));
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_during_undetected_outage_does_not_expire() {
        let (switch, dependency) = switched_dependency();
        let work = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            switch.hangs.store(true, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(60)).await;
            switch.hangs.store(false, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(500)).await;
        };
        let limited = dependency.within(Duration::from_secs(3), work);
        assert!(with_watch(&dependency, limited).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn outage_found_by_single_probe_is_named_but_not_recorded() {
        let (switch, dependency) = switched_dependency();
        let limit = Duration::from_secs(10);
        assert_eq!(dependency.probe_once(limit).await, Ok(()));
        switch.down.store(true, Ordering::Relaxed);
        let refused = dependency.probe_once(limit).await;
        assert_eq!(refused, Err("the service does not answer: it is down".to_owned()));
        switch.hangs.store(true, Ordering::Relaxed);
        let silent = dependency.probe_once(limit).await;
        assert_eq!(silent, Err("the service does not answer: timeout after 10s".to_owned()));
        assert!(!dependency.is_down());
        assert_eq!(dependency.outages(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn dependency_checks_concurrent_probe_once() {
        let (switch, dependency) = switched_dependency();
        switch.down.store(true, Ordering::Relaxed);
        let answers = tokio::join!(dependency.check(), dependency.check(), dependency.check());
        assert_eq!(answers, (false, false, false));
        assert_eq!(switch.asked.load(Ordering::Relaxed), 1);
        assert_eq!(dependency.outages(), 1);
    }
}
