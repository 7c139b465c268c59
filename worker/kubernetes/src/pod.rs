//! One pod: its calls, their repetition after broken connections, its removal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rollout_environment::service_hosts::ServiceHosts;
use rollout_environment::{Failure, FailureKind};
use tokio::sync::RwLock;
use tokio::time::{Instant, sleep};

use super::admission::CountedPod;
use super::cluster::Cluster;
use super::frames::new_mark;
use super::pod_state::PodState;
use super::rights::Right;
use super::services::ServiceContainer;
use super::stream::{self, CutStream, ScriptResult, Target};
use super::watch::{LostPod, WatchedPod, gone};

/// How long calls to a pod are repeated after broken connections without any progress.
const RECONNECT_WITHIN: Duration = Duration::from_secs(10 * 60);

/// The same while the API server answers: its node may be restarting.
const ANSWERED_RECONNECT_WITHIN: Duration = Duration::from_secs(2 * 60);

/// Shortest and longest pause between two attempts.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// A pod that was created.
#[derive(Debug)]
pub(super) struct KubePod {
    pub(super) cluster: Arc<Cluster>,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// The container in which its calls run.
    pub(super) container: String,
    /// The services beside the environment.
    pub(super) services: Arc<[ServiceContainer]>,
    /// Hosts that its commands reach without a proxy.
    pub(super) service_hosts: Arc<ServiceHosts>,
    /// Whether the container's first process has one of the task below it.
    pub(super) has_own_process: bool,
    /// Whether something of the task runs in the container before any command does.
    pub(super) runs_by_itself: bool,
    pub(super) watched: Arc<WatchedPod>,
    /// Counts it.
    pub(super) counted: Arc<CountedPod>,
    /// Variables of all commands.
    pub(super) env: BTreeMap<String, String>,
    /// Path of the shell of the provider's scripts.
    pub(super) shell: &'static str,
    /// Whether its image has a program that can show whether it has a network, as its preparation found.
    pub(super) can_show_network: AtomicBool,
    /// Whether a command was run in it: it may have changed the programs of the image.
    pub(super) has_run: AtomicBool,
    /// Held by calls that start a command, until it has started: a kill waits for them.
    pub(super) launching: RwLock<()>,
    /// Whether it was stopped: no command runs any more.
    pub(super) is_stopped: AtomicBool,
    /// Memory kills that the kernel counted when the container started, and last.
    pub(super) oom_before: AtomicU64,
    pub(super) oom_now: AtomicU64,
}

impl KubePod {
    /// Where its calls run.
    pub(super) fn target(&self) -> Target<'_> {
        let Self { cluster, namespace, name: pod, container, .. } = self;
        Target { cluster, namespace, pod, container }
    }

    /// Whether the memory limit has killed a process.
    pub(super) fn is_oom_killed(&self) -> bool {
        self.oom_now.load(Ordering::Relaxed) > self.oom_before.load(Ordering::Relaxed)
            || self.watched.state().is_some_and(|state| state.is_oom_killed())
    }

    /// Records the kernel's count of memory kills.
    pub(super) fn record_oom(&self, count: u64) {
        self.oom_now.fetch_max(count, Ordering::Relaxed);
    }

    /// Waits until it can no longer be used.
    pub(super) async fn lost(&self) -> LostPod {
        self.watched.until_lost().await
    }

    /// Asks for its state.
    pub(super) async fn refresh(&self) -> Result<Option<PodState>, Failure> {
        let what = format!("cannot ask for the state of the pod {}", self.name);
        let pods = self.cluster.pods(&self.namespace);
        let right = Right::to("get", &pods);
        let found = self.cluster.call(right, &what, || pods.get_opt(&self.name)).await?;
        self.watched.update(found.as_ref());
        Ok(found.as_ref().map(PodState::of).filter(|state| state.uid == self.uid))
    }

    /// Checks that it exists and can be used.
    pub(super) async fn check(&self) -> Result<(), LostPod> {
        match self.refresh().await {
            Ok(Some(state)) if state.lost().is_some() => Err(self.lost().await),
            Ok(Some(state)) => match self.ended_service(&state) {
                Some(failure) => Err(LostPod { failure, is_oom_killed: false }),
                None => Ok(()),
            },
            Ok(None) => Err(LostPod { failure: gone(&self.name), is_oom_killed: false }),
            // The next attempt shows whether the server answers again.
            Err(failure)
                if matches!(failure.kind, FailureKind::Unreachable | FailureKind::Service) =>
            {
                Ok(())
            }
            Err(failure) => Err(LostPod { failure, is_oom_killed: false }),
        }
    }

    /// Runs a script that may be repeated to its last frame.
    pub(super) async fn run_script(
        &self,
        argv: impl Fn(&str) -> Vec<String>,
    ) -> Result<ScriptResult, Failure> {
        let mut attempts = Attempts::default();
        loop {
            let mark = new_mark();
            let running = stream::run_script(self.target(), argv(&mark), &mark);
            let result = tokio::select! {
                result = running => result,
                lost = self.lost() => return Err(lost.failure),
            };
            match result {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(cut)) => attempts.pause(self, Broken::Cut(cut)).await?,
                Err(failure) => attempts.pause(self, Broken::Call(failure)).await?,
            }
        }
    }
}

/// Why an attempt ended early.
#[derive(Debug)]
pub(super) enum Broken {
    /// The stream ended before its last frame.
    Cut(CutStream),
    /// The call was not started.
    Call(Failure),
}

/// The attempts of one operation since its last progress.
#[derive(Debug)]
pub(super) struct Attempts {
    since: Option<Instant>,
    pause: Duration,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { since: None, pause: MIN_PAUSE }
    }
}

impl Attempts {
    /// Forgets the failures so far.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// When no attempt can succeed, or too many failed.
    pub(super) async fn pause(&mut self, pod: &KubePod, broken: Broken) -> Result<(), Failure> {
        if let Err(lost) = pod.check().await {
            return Err(lost.failure);
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let (failure, limit) = match broken {
            Broken::Cut(CutStream(why)) => {
                let text = format!("cannot read from the pod {}: {why}", pod.name);
                (Failure::new(FailureKind::Unreachable, text), ANSWERED_RECONNECT_WITHIN)
            }
            Broken::Call(failure) => match failure.kind {
                // The pod exists; the container may be between two states.
                FailureKind::Gone | FailureKind::Service => (failure, ANSWERED_RECONNECT_WITHIN),
                FailureKind::Unreachable => (failure, RECONNECT_WITHIN),
                _ => return Err(failure),
            },
        };
        if since.elapsed() >= limit {
            return Err(failure);
        }
        tracing::debug!(pod = pod.name, "repeating a call: {}", failure.chain());
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        Ok(())
    }
}
