//! Network access of pods: the cluster's network, or nothing by a network policy.
//!
//! One policy per namespace selects the pods that carry a label, so a change of access is a change of
//! a label. A policy is nothing where the cluster's network ignores it, so it is used only after the
//! operator has said, or a probe has shown, that it works. It works only some time after the change of
//! the label, so nothing runs in a pod before a connection from inside has failed.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::{NetworkPolicy as Policy, NetworkPolicySpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use lru::LruCache;
use rollout_environment::{Failure, FailureKind};
use rollout_protocol::spec::environment::{KubernetesSettings, ProviderSpec};
use rollout_protocol::spec::task::NetworkPolicy;
use serde_json::json;
use tokio::sync::{Mutex, OnceCell};
use tokio::time::{Instant, sleep, sleep_until};

use super::cluster::Cluster;
use super::failure::has_code;
use super::labels::{MANAGED_BY, MANAGER, NETWORK, NO_NETWORK};
use super::manifest::HELPER_SHELL;
use super::options::{KubernetesOptions, NetworkEnforcement};
use super::pod::KubePod;
use super::rights::Right;
use super::settings::PodSettings;
use super::{helper, scripts};

/// Name of the policy.
const POLICY: &str = "rollout-no-network";

/// Time between two connections of a probe.
const PROBE_PAUSE: Duration = Duration::from_millis(500);

/// Connections in a row that fail in a pod without a network: a single one can fail for another reason.
const REFUSALS: u32 = 2;

/// Limit of remembered verdicts: more than the kinds of nodes of a cluster.
const VERDICTS: NonZeroUsize = NonZeroUsize::new(1_000).expect("not zero");

/// Knowledge about network policies in a cluster.
#[derive(Debug)]
pub(super) struct NetworkPolicies {
    /// Results of probes by placement: nodes may have network plug-ins of their own.
    probed: std::sync::Mutex<LruCache<String, Arc<OnceCell<bool>>>>,
    /// Placements of pods that have connected to the API server, as programs of the operator have shown.
    connecting: std::sync::Mutex<LruCache<String, ()>>,
    /// Namespaces that have the policy.
    present: Mutex<Vec<String>>,
}

impl Default for NetworkPolicies {
    fn default() -> Self {
        let probed = std::sync::Mutex::new(LruCache::new(VERDICTS));
        let connecting = std::sync::Mutex::new(LruCache::new(VERDICTS));
        Self { probed, connecting, present: Mutex::default() }
    }
}

/// Network access of one pod.
#[derive(Debug)]
pub(super) struct PodNetwork {
    /// The job or the task denies every network.
    pub(super) is_denied: bool,
    /// Whether it is open; `None` after an interrupted change. Held during changes.
    pub(super) is_open: Mutex<Option<bool>>,
    /// A service that names networks, which it would keep elsewhere when the environment has none.
    pub(super) service_with_networks: Option<String>,
}

/// Warns before a pod is closed with a service that names networks: elsewhere the service would keep
/// them, but the containers of a pod have one network in common.
pub(super) fn warn_of_closing(service: Option<&String>) {
    if let Some(name) = service {
        tracing::warn!(
            "`services.{name}.networks`: the service has no network while its environment has none, \
             because the containers of a pod have one network in common"
        );
    }
}

/// Whether a policy allows network access. Refuses policies between all and nothing.
pub(super) fn is_open(policy: &NetworkPolicy) -> Result<bool, Failure> {
    match policy {
        NetworkPolicy::Public => Ok(true),
        NetworkPolicy::NoNetwork => Ok(false),
        NetworkPolicy::Allowlist(_) => {
            let text =
                "single hosts cannot be allowed: a network policy knows addresses, not names";
            Err(Failure::new(FailureKind::Unsupported, text))
        }
    }
}

/// The settings of a probe for pods with `settings`. Only where they run matters; everything else is
/// the operator's, so that no other setting of a job can make the probe fail.
pub(super) fn probe_settings(
    settings: &PodSettings,
    options: &KubernetesOptions,
) -> Result<PodSettings, Failure> {
    let defaults = ProviderSpec::Kubernetes(Box::<KubernetesSettings>::default());
    let defaults = PodSettings::resolve(&defaults, options).map_err(probe_failure)?;
    let place = settings.clone();
    Ok(PodSettings {
        namespace: place.namespace,
        runtime_class: place.runtime_class,
        node_selector: place.node_selector,
        tolerations: place.tolerations,
        affinity: place.affinity,
        ..defaults
    })
}

/// The name of everything that decides where pods with `settings` run.
fn placement(settings: &PodSettings) -> String {
    let PodSettings { runtime_class, node_selector, tolerations, affinity, .. } = settings;
    json!([runtime_class, node_selector, tolerations, affinity]).to_string()
}

/// The manifest of the policy: neither direction has a rule, so nothing is allowed.
pub(super) fn policy(namespace: &str) -> Policy {
    let selected = BTreeMap::from([(NETWORK.to_owned(), NO_NETWORK.to_owned())]);
    let managed = BTreeMap::from([(MANAGED_BY.to_owned(), MANAGER.to_owned())]);
    Policy {
        metadata: ObjectMeta {
            name: Some(POLICY.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(managed),
            ..ObjectMeta::default()
        },
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector {
                match_labels: Some(selected),
                ..LabelSelector::default()
            }),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ..NetworkPolicySpec::default()
        }),
    }
}

impl NetworkPolicies {
    /// Makes sure that a pod with the label and `settings` has no network in `namespace`. `probe`
    /// finds out whether policies have an effect; its result holds for the life of this process, for
    /// pods that may run on the same nodes.
    pub(super) async fn require<P>(
        &self,
        cluster: &Cluster,
        namespace: &str,
        settings: &PodSettings,
        probe: impl FnOnce() -> P,
    ) -> Result<(), Failure>
    where
        P: Future<Output = Result<bool, Failure>>,
    {
        self.ensure(cluster, namespace).await?;
        let enforced = match cluster.options.network_policy_enforced {
            NetworkEnforcement::Yes => true,
            NetworkEnforcement::No => false,
            NetworkEnforcement::Probe => {
                let verdict = Arc::clone(
                    self.probed
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .get_or_insert(placement(settings), Arc::default),
                );
                let enforced = *verdict.get_or_try_init(probe).await?;
                if enforced {
                    self.note_connected(settings);
                }
                enforced
            }
        };
        if enforced {
            return Ok(());
        }
        let why = match cluster.options.network_policy_enforced {
            NetworkEnforcement::Probe => {
                "a probe showed that this cluster ignores network policies"
            }
            _ => {
                "whether this cluster enforces network policies is not known: the operator can set \
                  `network_policy_enforced`"
            }
        };
        let text = format!("a pod without network: {why}");
        Err(Failure::new(FailureKind::Unsupported, text))
    }

    /// Whether pods with `settings` have connected to the API server when they had a network.
    pub(super) fn have_connected(&self, settings: &PodSettings) -> bool {
        let mut connecting = self.connecting.lock().unwrap_or_else(PoisonError::into_inner);
        connecting.get(&placement(settings)).is_some()
    }

    /// Notes that a pod with `settings` has connected.
    pub(super) fn note_connected(&self, settings: &PodSettings) {
        let mut connecting = self.connecting.lock().unwrap_or_else(PoisonError::into_inner);
        connecting.put(placement(settings), ());
    }

    async fn ensure(&self, cluster: &Cluster, namespace: &str) -> Result<(), Failure> {
        if cluster.options.network_policy_enforced == NetworkEnforcement::No {
            return Ok(());
        }
        let mut present = self.present.lock().await;
        if present.iter().any(|name| name == namespace) {
            return Ok(());
        }
        let what = format!("cannot create the network policy {POLICY}");
        let policies = cluster.api::<Policy>(namespace);
        let made = policy(namespace);
        let (right, params) = (Right::to("create", &policies), PostParams::default());
        match cluster.answer(right, &what, || policies.create(&params, &made)).await? {
            Ok(_) => {}
            Err(error) if has_code(&error, 409) => {
                let right = Right::to("get", &policies);
                let found = cluster.call(right, &what, || policies.get(POLICY)).await?;
                if found.spec != made.spec {
                    let text = format!(
                        "the network policy {POLICY} of the namespace {namespace} was changed: \
                         delete it"
                    );
                    return Err(Failure::new(FailureKind::NotPermitted, text));
                }
            }
            Err(error) => return Err(cluster.failure(&what, error)),
        }
        present.push(namespace.to_owned());
        drop(present);
        Ok(())
    }
}

/// Whether the policy takes the network of a running pod away while its label is set. A pod that has
/// lost its network for another reason shows nothing, so the network must come back.
pub(super) async fn probe_in(pod: &KubePod) -> Result<bool, Failure> {
    if !reaches(pod, true).await? {
        let text = "the probe's pod cannot reach the API server without any policy; set \
                    `network_policy_enforced` to true or false";
        return Err(Failure::new(FailureKind::NotPermitted, text));
    }
    pod.set_network_label(false).await?;
    if !reaches(pod, false).await? {
        return Ok(false);
    }
    pod.set_network_label(true).await?;
    if reaches(pod, true).await? {
        return Ok(true);
    }
    let text = "the probe's pod could not reach the API server again after the policy no longer \
                selected it";
    Err(Failure::new(FailureKind::Service, text))
}

/// The failure of a probe that gave no verdict. A pod that cannot run is no fault of a task.
pub(super) fn probe_failure(mut failure: Failure) -> Failure {
    use FailureKind::{NotStarted, Refused, Resources, Unsupported};
    if matches!(failure.kind, Refused | Unsupported | NotStarted | Resources) {
        failure.kind = FailureKind::Service;
    }
    failure.message = format!("cannot probe network policies: {}", failure.message);
    failure
}

/// Whether a pod can connect, or no longer can, within the time for a change to take effect.
async fn reaches(pod: &KubePod, open: bool) -> Result<bool, Failure> {
    let deadline = Instant::now() + effect_limit(pod);
    loop {
        if pod.can_connect().await.map_err(untold_by_probe)? == Some(open) {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        sleep(PROBE_PAUSE).await;
    }
}

/// The failure of a probe in whose pod no program tells of its network: the image is the operator's.
fn untold_by_probe(failure: Failure) -> Failure {
    match failure.kind {
        FailureKind::Unsupported => {
            let text = "the image of `probe_image` has none of bash, python3, and nc that takes `-w`; \
                        name one such as `docker.io/library/busybox:1.37`";
            Failure::new(FailureKind::NotPermitted, text)
        }
        _ => failure,
    }
}

/// The time in which a change of a policy's selection takes effect.
fn effect_limit(pod: &KubePod) -> Duration {
    Duration::from_secs(pod.cluster.options.network_probe_timeout_sec)
}

impl KubePod {
    /// Whether the operator's programs are in it. What runs in it cannot change them.
    pub(super) fn has_helper(&self) -> bool {
        self.shell == HELPER_SHELL
    }

    /// Whether its programs tell of its network what they told before anything ran in it. Those of an
    /// image may still say anything, to its own harm only.
    pub(super) fn tells_network(&self) -> bool {
        self.has_helper() || !self.has_run.load(Ordering::Relaxed)
    }

    /// Whether a connection to the API server can be made from inside. `None` if the pod was too slow
    /// to show it.
    pub(super) async fn can_connect(&self) -> Result<Option<bool>, Failure> {
        let is_own = self.has_helper();
        let tried = self.run_script(|mark| scripts::connect(self.shell, is_own, mark)).await?;
        match tried.frame.as_str() {
            "open" => Ok(Some(true)),
            "closed" => Ok(Some(false)),
            "again" => Ok(None),
            _ => Err(self.cannot_tell()),
        }
    }

    /// The failure of a pod in which no program tells of its network.
    fn cannot_tell(&self) -> Failure {
        let (kind, why) = if self.has_helper() {
            let why = "the `busybox` of `helper_image` has no `nc` that takes `-w`; the operator can \
                       name an image such as `docker.io/library/busybox:1.37-musl`";
            (FailureKind::NotPermitted, why)
        } else if !self.tells_network() && self.can_show_network.load(Ordering::Relaxed) {
            let why = "what ran in it has removed or changed bash, python3 and nc of its image; the \
                       operator can set `helper_image`";
            (FailureKind::Unusable, why)
        } else {
            let why = "its image has none of bash, python3 and nc; the operator can set \
                       `helper_image`";
            (FailureKind::Unsupported, why)
        };
        let text = format!("cannot find out whether the pod {} has a network: {why}", self.name);
        Failure::new(kind, text)
    }

    /// Waits until the policy has taken its network away. Nothing may run in it before. A connection
    /// that fails shows nothing in a pod that could never connect, and in one whose programs are no longer
    /// those of its image: unless `has_connected`, or a connection is made at first, the whole time for
    /// a change is waited. Returns whether it could connect before, as far as is known.
    pub(super) async fn until_isolated(&self, mut has_connected: bool) -> Result<bool, Failure> {
        let mut deadline = Instant::now() + effect_limit(self);
        let has_waited = !self.tells_network();
        if has_waited {
            helper::warn_of_wait(effect_limit(self));
            sleep_until(deadline).await;
            deadline += effect_limit(self);
        }
        let mut refusals = 0;
        loop {
            let connects = self.can_connect().await?;
            has_connected |= connects == Some(true);
            refusals = if connects == Some(false) { refusals + 1 } else { 0 };
            let is_late = Instant::now() >= deadline;
            if refusals >= REFUSALS && (has_connected || has_waited || is_late) {
                if !has_connected && !self.has_helper() {
                    helper::warn_of_wait(effect_limit(self));
                }
                return Ok(has_connected);
            }
            if is_late && refusals == 0 {
                break;
            }
            sleep(PROBE_PAUSE).await;
        }
        let text = format!(
            "the pod {} still had a network {:?} after the policy {POLICY} had selected it",
            self.name,
            effect_limit(self)
        );
        Err(Failure::new(FailureKind::Service, text))
    }

    /// Sets or removes the label that the policy selects.
    pub(super) async fn set_network_label(&self, open: bool) -> Result<(), Failure> {
        let what = format!("cannot change the network of the pod {}", self.name);
        let value = (!open).then_some(NO_NETWORK);
        let patch = json!({"metadata": {"uid": self.uid, "labels": {NETWORK: value}}});
        let pods = self.cluster.pods(&self.namespace);
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patching = || pods.patch(&self.name, &params, &patch);
        let patched: Pod = self.cluster.call(Right::to("patch", &pods), &what, patching).await?;
        let labels = patched.metadata.labels.unwrap_or_default();
        if labels.get(NETWORK).map(String::as_str) == value {
            Ok(())
        } else {
            Err(Failure::new(FailureKind::Service, format!("{what}: the label did not change")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_policy_allows_nothing_to_labelled_pods() {
        let policy = serde_json::to_value(policy("trials")).expect("JSON");
        let spec = json!({
            "podSelector": {"matchLabels": {"rollout.dev/network": "none"}},
            "policyTypes": ["Ingress", "Egress"],
        });
        assert_eq!(policy["spec"], spec);
    }

    #[test]
    fn probe_runs_where_the_pods_of_a_job_run() {
        let options = KubernetesOptions::parse("{}").expect("valid");
        let spec = ProviderSpec::Kubernetes(Box::<KubernetesSettings>::default());
        let default = PodSettings::resolve(&spec, &options).expect("settings");
        let job = PodSettings {
            node_selector: [("pool".to_owned(), "gpu".to_owned())].into(),
            run_as_non_root: true,
            priority_class: Some("absent".to_owned()),
            ..default.clone()
        };
        let probe = probe_settings(&job, &options).expect("settings");
        assert_eq!(
            probe,
            PodSettings { node_selector: job.node_selector.clone(), ..default.clone() }
        );
        assert_eq!(placement(&probe), placement(&job));
        assert_ne!(placement(&default), placement(&job));
        let other = PodSettings { run_as_non_root: true, ..default.clone() };
        assert_eq!(placement(&default), placement(&other));
    }

    #[test]
    fn allowlist_of_hosts_is_unsupported() {
        let hosts = NetworkPolicy::Allowlist(vec!["example.org".to_owned()]);
        assert_eq!(is_open(&hosts).expect_err("refused").kind, FailureKind::Unsupported);
        assert!(is_open(&NetworkPolicy::Public).expect("open"));
        assert!(!is_open(&NetworkPolicy::NoNetwork).expect("closed"));
    }
}
