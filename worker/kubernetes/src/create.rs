//! Creation and start of pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Event, Pod};
use kube::ResourceExt as _;
use kube::api::{ListParams, PostParams};
use rollout_environment::{Failure, FailureKind};
use tokio::sync::RwLock;
use tokio::time::{Instant, sleep};

use super::admission::CountedPod;
use super::cluster::Cluster;
use super::failure::{has_code, is_quota_exceeded};
use super::manifest::MAIN;
use super::pod::KubePod;
use super::pod_state::PodState;
use super::remove::{PodId, remove};
use super::rights::Right;
use super::start::{self, StartProgress, StartStep};
use super::watch::ExpectedPod;
use super::{helper, labels, scripts};

/// How long an earlier attempt's pod of the same name is waited for.
const NAME_FREE_WITHIN: Duration = Duration::from_secs(60);

/// Time between two looks at a pod that reports nothing, and at its events.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long the services of a pod run before it counts as started. One that is broken ends sooner.
const SETTLED_AFTER: Duration = Duration::from_millis(500);
const REFRESH_INTERVAL: Duration = Duration::from_secs(10);
const EVENTS_INTERVAL: Duration = Duration::from_secs(5);

/// Events that explain a start.
const MAX_EVENTS: u32 = 20;

/// A pod that was created just now, and is observed from before its creation on.
#[derive(Debug)]
pub(super) struct CreatedPod {
    pub(super) pod: Pod,
    pub(super) expected: ExpectedPod,
}

/// Creates `pod`. A pod of the same execution that an earlier, interrupted attempt left is replaced.
pub(super) async fn create_pod(cluster: &Cluster, pod: &Pod) -> Result<Pod, Failure> {
    let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
    let what = format!("cannot create the pod {name}");
    let (pods, params) = (cluster.pods(&namespace), PostParams::default());
    let began = Instant::now();
    // A quota is like nodes: others leave it.
    let quota_within = Duration::from_secs(cluster.options.schedule_timeout_sec);
    let mut pause = Duration::from_millis(200);
    loop {
        let right = Right::to("create", &pods);
        let made = cluster.answer(right, &what, || pods.create(&params, pod)).await?;
        match made {
            Ok(made) if lost_sidecars(pod, &made) => {
                remove(cluster, &PodId::of(&made, &namespace)).await?;
                let text =
                    format!("{what}: services that others wait for need Kubernetes 1.29 or newer");
                return Err(Failure::new(FailureKind::Unsupported, text));
            }
            Ok(made) => return Ok(made),
            Err(error) if has_code(&error, 409) && began.elapsed() < NAME_FREE_WITHIN => {
                replace_own(cluster, pod, &namespace, &what).await?;
            }
            Err(error) if is_quota_exceeded(&error) && began.elapsed() < quota_within => {
                tracing::debug!(name, "waiting for room in the quota of {namespace}");
            }
            Err(error) => return Err(cluster.failure(&what, error)),
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

/// Whether the server dropped the field that makes an init container a sidecar: it does not know it.
fn lost_sidecars(asked: &Pod, made: &Pod) -> bool {
    let count = |pod: &Pod| {
        let containers = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref());
        let is_sidecar = |container: &&Container| container.restart_policy.is_some();
        containers.into_iter().flatten().filter(is_sidecar).count()
    };
    count(made) < count(asked)
}

async fn replace_own(
    cluster: &Cluster,
    pod: &Pod,
    namespace: &str,
    what: &str,
) -> Result<(), Failure> {
    let pods = cluster.pods(namespace);
    let (right, name) = (Right::to("get", &pods), pod.name_any());
    let Some(found) = cluster.call(right, what, || pods.get_opt(&name)).await? else {
        return Ok(());
    };
    if found.labels().get(labels::EXEC) == pod.labels().get(labels::EXEC) {
        return remove(cluster, &PodId::of(&found, namespace)).await;
    }
    let text = format!("{what}: another owner has a pod of this name");
    Err(Failure::new(FailureKind::Service, text))
}

/// A container that is ready for calls.
#[derive(Debug)]
pub(super) struct PreparedContainer {
    /// Its working directory.
    pub(super) workdir: String,
    /// Places that its user cannot fill.
    pub(super) closed: String,
}

impl KubePod {
    /// A pod that was created just now.
    pub(super) fn new(
        cluster: Arc<Cluster>,
        made: CreatedPod,
        env: BTreeMap<String, String>,
        shell: &'static str,
    ) -> Self {
        let CreatedPod { pod, expected } = made;
        Self {
            namespace: pod.namespace().unwrap_or_else(|| cluster.namespace.clone()),
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            container: MAIN.to_owned(),
            services: Arc::default(),
            service_hosts: Arc::default(),
            has_own_process: false,
            runs_by_itself: false,
            watched: Arc::new(expected.track(&pod)),
            counted: Arc::new(CountedPod::new(Arc::clone(&cluster))),
            cluster,
            env,
            shell,
            can_show_network: AtomicBool::new(false),
            has_run: AtomicBool::new(false),
            launching: RwLock::new(()),
            is_stopped: AtomicBool::new(false),
            oom_before: AtomicU64::new(0),
            oom_now: AtomicU64::new(0),
        }
    }

    /// The same pod, for calls to another one of its containers, with variables of its commands.
    pub(super) fn for_container(&self, container: &str, env: BTreeMap<String, String>) -> Self {
        Self {
            cluster: Arc::clone(&self.cluster),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            container: container.to_owned(),
            services: Arc::clone(&self.services),
            service_hosts: Arc::clone(&self.service_hosts),
            has_own_process: false,
            runs_by_itself: false,
            watched: Arc::clone(&self.watched),
            counted: Arc::clone(&self.counted),
            env,
            // Programs of the operator are in the environment's container only.
            shell: "/bin/sh",
            can_show_network: AtomicBool::new(false),
            has_run: AtomicBool::new(false),
            launching: RwLock::new(()),
            is_stopped: AtomicBool::new(false),
            oom_before: AtomicU64::new(0),
            oom_now: AtomicU64::new(0),
        }
    }

    /// Its identity.
    pub(super) fn id(&self) -> PodId {
        PodId { namespace: self.namespace.clone(), name: self.name.clone(), uid: self.uid.clone() }
    }

    /// Waits until its containers have started. The failure of a service quotes its output.
    pub(super) async fn wait_started(&self) -> Result<(), Failure> {
        let waited = self.wait_for_containers().await;
        let Err(mut failure) = waited else { return Ok(()) };
        if failure.kind == FailureKind::Unusable {
            failure.message.push_str(&self.output_of_failed_services().await);
        }
        Err(failure)
    }

    async fn wait_for_containers(&self) -> Result<(), Failure> {
        let limits = self.cluster.options.start_limits();
        let mut states = self.watched.subscribe();
        let began = Instant::now();
        let (mut scheduled, mut failing, mut last) = (None, None, String::new());
        let (mut refreshed, mut listed, mut running) = (began, None, None);
        let (mut events, mut is_settled) = (Vec::new(), false);
        loop {
            let state = states.borrow_and_update().clone();
            let is = |test: fn(&PodState) -> bool| state.as_ref().is_some_and(test);
            if is(|state| state.is_scheduled) {
                scheduled.get_or_insert_with(Instant::now);
            }
            let is_failing =
                state.as_ref().is_some_and(|state| start::is_failing(state, &self.services));
            failing = is_failing.then(|| failing.unwrap_or_else(Instant::now));
            let look_at_events = is_failing || began.elapsed() > REFRESH_INTERVAL;
            if look_at_events && listed.is_none_or(|at: Instant| at.elapsed() > EVENTS_INTERVAL) {
                events = self.events().await;
                listed = Some(Instant::now());
            }
            let progress = StartProgress {
                elapsed: began.elapsed(),
                scheduled_for: scheduled.map(|at| at.elapsed()),
                failing_for: failing.map(|at: Instant| at.elapsed()),
                others_hold_room: self.cluster.admission.holds_other_pods(),
                runs_by_itself: self.runs_by_itself,
                events: events.clone(),
            };
            match start::step(state.as_ref(), &self.services, &progress, limits) {
                StartStep::Running if self.has_settled(&mut running) => return Ok(()),
                StartStep::Failed(_) if !is_settled && is(PodState::is_unexplained) => {
                    self.lost().await;
                    is_settled = true;
                    continue;
                }
                StartStep::Failed(failure) => {
                    if is(|state| state.waits_for_helper) {
                        helper::warn_of_failure(&failure);
                    }
                    return Err(failure);
                }
                StartStep::Waiting(why) if why != last => {
                    tracing::debug!(pod = self.name, "waiting: {why}");
                    last = why;
                }
                StartStep::Running | StartStep::Waiting(_) => {}
            }
            tokio::select! {
                changed = states.changed() => {
                    changed.map_err(|_| super::watch::gone(&self.name))?;
                }
                () = sleep(if running.is_some() { SETTLED_AFTER } else { LOOK_INTERVAL }) => {}
            }
            // The watch may be broken.
            if refreshed.elapsed() > REFRESH_INTERVAL {
                refreshed = Instant::now();
                self.refresh().await?;
            }
        }
    }

    /// Whether it has run long enough to count as started. `since` is when that was first seen.
    fn has_settled(&self, since: &mut Option<Instant>) -> bool {
        let since = *since.get_or_insert_with(Instant::now);
        self.services.is_empty() || since.elapsed() >= SETTLED_AFTER
    }

    /// Messages of its events, oldest first. They only explain, so a failure is no failure.
    async fn events(&self) -> Vec<String> {
        let events = self.cluster.api::<Event>(&self.namespace);
        let selector = format!("involvedObject.name={}", self.name);
        let params = ListParams::default().fields(&selector).limit(MAX_EVENTS);
        let right = Right::to("list", &events);
        match self.cluster.call(right, "cannot list events", || events.list(&params)).await {
            Ok(list) => {
                let own = |event: &Event| event.involved_object.uid.as_ref() == Some(&self.uid);
                let mut found: Vec<_> = list.items.into_iter().filter(own).collect();
                found.sort_by_key(|event| event.last_timestamp.clone().map(|time| time.0));
                found.into_iter().filter_map(|event| event.message).collect()
            }
            Err(failure) => {
                tracing::debug!("{}", failure.chain());
                Vec::new()
            }
        }
    }

    /// Prepares the container for calls, and looks whether files can be placed at `places`.
    pub(super) async fn prepare(
        &self,
        workdir: Option<&str>,
        places: &[String],
    ) -> Result<PreparedContainer, Failure> {
        let script = |mark: &str| scripts::prepare(self.shell, workdir, places, mark);
        let result = self.run_script(script).await?;
        let (kind, rest) = result.frame.split_once(' ').unwrap_or((&result.frame, ""));
        let what =
            format!("cannot use the container `{}` of the pod {}", self.container, self.name);
        match kind {
            "e" => {
                let (count, rest) = rest.split_once(' ').unwrap_or((rest, ""));
                let (shows, closed) = rest.split_once(' ').unwrap_or((rest, ""));
                self.can_show_network.store(shows == "y", Ordering::Relaxed);
                let count = count.parse().unwrap_or(0);
                self.oom_before.store(count, Ordering::Relaxed);
                self.record_oom(count);
                let printed = result.stdout.trim_end_matches('\n');
                let workdir = if printed.is_empty() { "/" } else { printed };
                Ok(PreparedContainer { workdir: workdir.to_owned(), closed: closed.to_owned() })
            }
            "m" => {
                let missing = rest.trim().replace(' ', ", ");
                let mut text = format!("{what}: its image has no program {missing}");
                if self.container == MAIN {
                    text.push_str("; the operator can set `helper_image`");
                }
                Err(Failure::new(FailureKind::Unsupported, text))
            }
            _ => Err(Failure::new(FailureKind::NotStarted, format!("{what}: {rest}"))),
        }
    }
}
