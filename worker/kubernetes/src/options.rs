//! Settings of the operator of a cluster's workers, apart from those of jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_base::regular_file;
use rollout_environment::{Failure, FailureKind};
use rollout_protocol::limits::CONFIG_FILE_BYTES;
use rollout_protocol::spec::environment::KubernetesSettings;
use serde::Deserialize;

use super::start::StartLimits;

/// Settings that decide where pods run and with which rights. Jobs may set them only if the
/// operator lists them.
pub(super) const GUARDED_SETTINGS: [&str; 8] = [
    "namespace",
    "service_account",
    "runtime_class",
    "priority_class",
    "node_selector",
    "tolerations",
    "affinity",
    "image_pull_secrets",
];

/// Capabilities of the pods' processes: those with which package managers, `su` and `chown` work as
/// root. The default set of container engines without raw sockets, device nodes and audit records.
const DEFAULT_CAPABILITIES: [&str; 8] =
    ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SYS_CHROOT"];

/// Where the operator's options come from.
#[derive(Debug, Clone)]
pub enum OptionsSource {
    /// Given options.
    Given(Box<KubernetesOptions>),
    /// A YAML file, read at the first use.
    File(PathBuf),
}

/// Options of the operator. Every field has a default.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KubernetesOptions {
    /// Path of the kubeconfig. If absent, `KUBECONFIG`, `~/.kube/config`, or the service account of
    /// the worker's own pod.
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig; its current one when absent.
    pub context: Option<String>,
    /// Namespace of the pods; that of the context or of the service account when absent.
    pub namespace: Option<String>,
    /// Other namespaces that jobs may name, if `namespace` is in `jobs_may_set`.
    pub namespaces: BTreeSet<String>,
    /// Values of settings that a job does not set.
    pub defaults: KubernetesSettings,
    /// Guarded settings that jobs may set.
    pub jobs_may_set: BTreeSet<String>,
    /// Pods of this worker that may wait for their start at the same time.
    pub max_pending_pods: u32,
    /// Pods that this worker creates per minute; no limit when absent.
    pub starts_per_minute: Option<u32>,
    /// Whether the cluster enforces network policies.
    pub network_policy_enforced: NetworkEnforcement,
    /// Image of the probe of network policies; it has `sh`, and `nc`, `bash` or `python3`.
    pub probe_image: String,
    /// Seconds in which a change of a network policy's selection takes effect.
    pub network_probe_timeout_sec: u64,
    /// Image with a static `busybox`, for task images without `sh`, `tar` or `sha256sum`.
    pub helper_image: Option<String>,
    /// Prefixes of image names, each with its replacement.
    pub registry_mirrors: BTreeMap<String, String>,
    /// Resource of a graphics processor.
    pub gpu_resource: String,
    /// Linux capabilities of the pods' processes; all others are dropped.
    pub capabilities: Vec<String>,
    /// Seconds that a pod may wait for a node.
    pub schedule_timeout_sec: u64,
    /// Seconds from a node's choice to the start of the container: the image is pulled in them.
    pub start_timeout_sec: u64,
    /// Seconds that a pod outlives the last sign of life of its worker. Longer than the time that a
    /// run waits for a worker that is offline.
    pub abandoned_after_sec: u64,
    /// Difference in seconds that is allowed for between the clocks of two API servers, and of a host
    /// that could not read them.
    pub clock_skew_sec: u64,
    /// Seconds without output or a sign of life after which a call to a pod counts as cut off. Pods
    /// send a sign of life every 15 seconds.
    pub silence_timeout_sec: u64,
    /// Seconds in which a node confirms the end of a removed pod. After them the node may be lost, and
    /// the pod's object is removed without it.
    pub removal_timeout_sec: u64,
    /// Whether services may have variables of trials, which are then in the manifests of pods.
    pub trial_variables_in_manifests: bool,
    /// Address at which this worker listens for model calls of pods, which reach it there; if absent,
    /// that of the worker's own pod.
    pub gateway_address: Option<SocketAddr>,
    /// Builder of images for tasks with a Dockerfile.
    pub builder: Option<BuilderOptions>,
}

/// Whether network policies are enforced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NetworkEnforcement {
    /// Not, or not known.
    #[default]
    No,
    /// By the word of the operator.
    Yes,
    /// A probe pod shows it.
    Probe,
}

impl<'de> Deserialize<'de> for NetworkEnforcement {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Value {
            Flag(bool),
            Word(String),
        }
        match Value::deserialize(deserializer)? {
            Value::Flag(true) => Ok(Self::Yes),
            Value::Flag(false) => Ok(Self::No),
            Value::Word(word) if word == "probe" => Ok(Self::Probe),
            Value::Word(word) => {
                let expected = "expected true, false or probe";
                Err(serde::de::Error::custom(format!("found `{word}`, {expected}")))
            }
        }
    }
}

/// The builder of images: a pod with a BuildKit client, and its daemon.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuilderOptions {
    /// Registry and prefix of the names of built images.
    pub registry: String,
    /// Address of a BuildKit daemon. If absent, the pod of each build has its own daemon.
    #[serde(default)]
    pub buildkit: Option<String>,
    /// Image with `buildctl` and, unless `buildkit` is set, a rootless daemon.
    #[serde(default = "default_builder_image")]
    pub image: String,
    /// Secret of the type `kubernetes.io/dockerconfigjson` with which images are pushed.
    #[serde(default)]
    pub push_secret: Option<String>,
    /// Whether the registry speaks plain HTTP.
    #[serde(default)]
    pub insecure: bool,
    /// Prefixes of names of images that the builder fetches, each with its replacement. The mirrors of the
    /// cluster's nodes are not used: the builder may not reach them.
    #[serde(default)]
    pub registry_mirrors: BTreeMap<String, String>,
    /// Requests and limits of a build's pod, such as `cpu` and `memory`.
    #[serde(default)]
    pub resources: BTreeMap<String, String>,
    /// Seconds without a sign of life from the worker that builds an image after which another
    /// worker builds it.
    #[serde(default = "default_takeover_after_sec")]
    pub takeover_after_sec: u64,
}

const fn default_takeover_after_sec() -> u64 {
    60
}

fn default_builder_image() -> String {
    "docker.io/moby/buildkit:rootless".to_owned()
}

impl Default for KubernetesOptions {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            namespace: None,
            namespaces: BTreeSet::new(),
            defaults: KubernetesSettings::default(),
            jobs_may_set: BTreeSet::new(),
            max_pending_pods: 50,
            starts_per_minute: None,
            network_policy_enforced: NetworkEnforcement::No,
            probe_image: "docker.io/library/busybox:1.37".to_owned(),
            network_probe_timeout_sec: 30,
            helper_image: None,
            registry_mirrors: BTreeMap::new(),
            gpu_resource: "nvidia.com/gpu".to_owned(),
            capabilities: DEFAULT_CAPABILITIES.map(str::to_owned).to_vec(),
            schedule_timeout_sec: 10 * 60,
            start_timeout_sec: 20 * 60,
            abandoned_after_sec: 6 * 3600,
            clock_skew_sec: 10 * 60,
            silence_timeout_sec: 90,
            removal_timeout_sec: 45,
            trial_variables_in_manifests: false,
            gateway_address: None,
            builder: None,
        }
    }
}

impl KubernetesOptions {
    /// Limits of the start of a pod.
    pub(super) fn start_limits(&self) -> StartLimits {
        StartLimits {
            schedule: Duration::from_secs(self.schedule_timeout_sec),
            start: Duration::from_secs(self.start_timeout_sec),
        }
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// The reason, with its place in the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        // An empty document is no mapping.
        let is_blank = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
        if text.lines().all(is_blank) {
            return Ok(Self::default());
        }
        let options: Self = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), String> {
        let known = |name: &&String| GUARDED_SETTINGS.contains(&name.as_str());
        if let Some(name) = self.jobs_may_set.iter().find(|name| !known(name)) {
            let names = GUARDED_SETTINGS.join(", ");
            return Err(format!("jobs_may_set: `{name}` is not one of {names}"));
        }
        if self.max_pending_pods == 0 {
            return Err("max_pending_pods: expected at least 1".to_owned());
        }
        if self.starts_per_minute == Some(0) {
            return Err("starts_per_minute: expected at least 1".to_owned());
        }
        if self.builder.as_ref().is_some_and(|builder| builder.takeover_after_sec < 15) {
            return Err("builder.takeover_after_sec: expected at least 15".to_owned());
        }
        if self.silence_timeout_sec < 30 {
            return Err("silence_timeout_sec: expected at least 30".to_owned());
        }
        if !(5..=3600).contains(&self.removal_timeout_sec) {
            return Err("removal_timeout_sec: expected 5 to 3600".to_owned());
        }
        for (key, seconds, least) in [
            ("schedule_timeout_sec", self.schedule_timeout_sec, 5),
            ("start_timeout_sec", self.start_timeout_sec, 60),
            ("abandoned_after_sec", self.abandoned_after_sec, 60),
            ("network_probe_timeout_sec", self.network_probe_timeout_sec, 1),
        ] {
            if seconds < least {
                return Err(format!("{key}: expected at least {least}"));
            }
        }
        Ok(())
    }

    /// The name of an image after the replacement of its longest matching prefix.
    pub(super) fn mirrored(&self, image: &str) -> String {
        mirror(&self.registry_mirrors, image).unwrap_or_else(|| image.to_owned())
    }
}

impl BuilderOptions {
    /// The name of an image that the builder fetches, if a mirror has it. Dockerfiles leave out `docker.io`
    /// and `library`, which prefixes name.
    pub(super) fn mirror(&self, image: &str) -> Option<String> {
        let mirrors = &self.registry_mirrors;
        mirror(mirrors, image).or_else(|| mirror(mirrors, &full_name(image)))
    }
}

/// The name of an image after the replacement of its longest matching prefix, if one matches.
fn mirror(mirrors: &BTreeMap<String, String>, image: &str) -> Option<String> {
    let matching = mirrors.iter().filter_map(|(from, to)| {
        let rest = image.strip_prefix(from.as_str())?;
        let whole = from.ends_with('/') || rest.is_empty() || rest.starts_with(['/', ':', '@']);
        whole.then(|| (from.len(), format!("{to}{rest}")))
    });
    matching.max_by_key(|(length, _)| *length).map(|(_, name)| name)
}

/// The name of an image with its registry and, of Docker Hub, its namespace.
fn full_name(image: &str) -> String {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => image.to_owned(),
        Some(_) => format!("docker.io/{image}"),
        None => format!("docker.io/library/{image}"),
    }
}

impl OptionsSource {
    /// A file, or the defaults without one.
    pub fn of_file(path: Option<&Path>) -> Self {
        match path {
            Some(path) => Self::File(path.to_owned()),
            None => Self::Given(Box::default()),
        }
    }

    /// The options.
    pub(super) fn load(&self) -> Result<KubernetesOptions, Failure> {
        match self {
            Self::Given(options) => Ok(options.as_ref().clone()),
            Self::File(path) => read(path),
        }
    }
}

fn read(path: &Path) -> Result<KubernetesOptions, Failure> {
    let refused = |why: String| {
        let text =
            format!("cannot use `{}`, the file of `--kubernetes-config`: {why}", path.display());
        Failure::new(FailureKind::Refused, text)
    };
    let text = regular_file::read_text(path, CONFIG_FILE_BYTES);
    let text = text.map_err(|error| refused(error.to_string()))?;
    KubernetesOptions::parse(&text).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_file_sets_what_it_names() {
        let text = "namespace: trials\nnamespaces: [other]\njobs_may_set: [namespace]\n\
                    network_policy_enforced: probe\nstarts_per_minute: 120\n\
                    defaults: {runtime_class: gvisor, node_selector: {pool: trials}}\n\
                    builder: {registry: registry.local/rollout, push_secret: push}\n";
        let options = KubernetesOptions::parse(text).expect("valid");
        assert_eq!(options.namespace.as_deref(), Some("trials"));
        assert_eq!(options.network_policy_enforced, NetworkEnforcement::Probe);
        assert_eq!(options.defaults.runtime_class.as_deref(), Some("gvisor"));
        let builder = options.builder.expect("set");
        assert_eq!(builder.image, default_builder_image());
        assert_eq!((builder.buildkit, builder.insecure), (None, false));
        assert_eq!(KubernetesOptions::parse("# nothing\n"), Ok(KubernetesOptions::default()));
    }

    #[test]
    fn options_file_of_documentation_is_valid() {
        let text = include_str!("../../../docs/kubernetes.md");
        let section = text.split_once("## Settings of the operator").expect("the section").1;
        let file = section.split("```").nth(1).and_then(|block| block.strip_prefix("yaml\n"));
        let options = KubernetesOptions::parse(file.expect("the example")).expect("valid");
        assert_eq!(options.network_policy_enforced, NetworkEnforcement::Probe);
        assert!(options.builder.is_some() && options.helper_image.is_some());
    }

    #[test]
    fn options_file_with_mistake_names_it() {
        for (text, named) in [
            ("namespce: x", "namespce"),
            ("jobs_may_set: [privileged]", "privileged"),
            ("max_pending_pods: 0", "max_pending_pods"),
            ("starts_per_minute: 0", "starts_per_minute"),
            ("schedule_timeout_sec: 4", "schedule_timeout_sec: expected at least 5"),
            ("start_timeout_sec: 1", "start_timeout_sec: expected at least 60"),
            ("network_probe_timeout_sec: 0", "network_probe_timeout_sec"),
            ("silence_timeout_sec: 20", "silence_timeout_sec"),
            ("removal_timeout_sec: 4", "removal_timeout_sec"),
            ("removal_timeout_sec: 3601", "removal_timeout_sec"),
            ("network_policy_enforced: maybe", "maybe"),
            ("builder: {}", "registry"),
            ("builder: {registry: r, takeover_after_sec: 1}", "takeover_after_sec"),
        ] {
            let error = KubernetesOptions::parse(text).expect_err(text);
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn options_file_missing_is_refused_with_its_path() {
        let source = OptionsSource::File("/no/such/file.yaml".into());
        let failure = source.load().expect_err("missing");
        assert_eq!(failure.kind, FailureKind::Refused);
        assert!(failure.message.contains("/no/such/file.yaml"), "{failure}");
    }

    #[test]
    fn image_prefix_is_replaced_by_longest_match() {
        let mirrors = [("docker.io", "mirror/hub"), ("docker.io/library", "mirror/lib")];
        let registry_mirrors: BTreeMap<_, _> =
            mirrors.map(|(from, to)| (from.to_owned(), to.to_owned())).into_iter().collect();
        let builder = "builder: {registry: r.test, registry_mirrors: {docker.io: mirror/hub, \
                       docker.io/library: mirror/lib}}";
        let of_builder = KubernetesOptions::parse(builder).expect("valid");
        assert_eq!(of_builder.mirrored("docker.io/me/x"), "docker.io/me/x", "not of pods");
        let builder = of_builder.builder.expect("set");
        let options = KubernetesOptions { registry_mirrors, ..KubernetesOptions::default() };
        assert_eq!(options.mirrored("docker.io/library/debian:12"), "mirror/lib/debian:12");
        assert_eq!(options.mirrored("docker.io/me/x@sha256:1"), "mirror/hub/me/x@sha256:1");
        assert_eq!(options.mirrored("docker.io.example/x"), "docker.io.example/x");
        for (image, mirror) in [
            ("debian:12", Some("mirror/lib/debian:12")),
            ("me/x@sha256:1", Some("mirror/hub/me/x@sha256:1")),
            ("docker.io/library/debian", Some("mirror/lib/debian")),
            ("localhost/x", None),
            ("quay.io/x/y:1", None),
            ("registry:5000/x", None),
        ] {
            assert_eq!(builder.mirror(image).as_deref(), mirror, "{image}");
        }
    }
}
