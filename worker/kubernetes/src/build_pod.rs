//! The pod of a build and its command, as pure functions, and the meaning of its output.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::SystemTime;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, EnvVar, KeyToPath, Pod, ResourceRequirements, SeccompProfile,
    SecretVolumeSource, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use regex::Regex;
use rollout_environment::dockerfile::{
    CA_BUNDLE_SECRET, CACHE_NAMESPACE_ARGUMENT, FRONTEND_ARGUMENT,
};
use rollout_environment::{
    BuildProxies, EnvironmentLabels, Failure, FailureKind, ProxyKey, registry_failure,
};

use super::build_files::{DOCKERFILE_DIR, SentDockerfile};
use super::build_log::BuildLog;
use super::cluster::Cluster;
use super::labels::{PodRole, ROLE};
use super::manifest;
use super::options::BuilderOptions;
use super::settings::PodSettings;

/// Directory of the context in a build's pod.
pub(super) const CONTEXT_DIR: &str = "/.rollout/context";

/// The CA bundle in a build's pod.
pub(super) const BUNDLE_FILE: &str = "/.rollout/ca-bundle.pem";

/// Directory of the registry's credentials in a build's pod.
const CONFIG_DIR: &str = "/rollout-registry";

/// Directory of a rootless daemon's data. On a volume, because a file system of layers may not be
/// able to hold layers.
const DATA_DIR: &str = "/home/user/.local/share/buildkit";

/// Names of volumes.
const REGISTRY_VOLUME: &str = "registry";
const DATA_VOLUME: &str = "buildkit";

/// Start of every error that BuildKit blames on a build.
const SOLVE_ERROR: &str = "failed to solve";

/// The end of the error of a failed command, whose text comes before it.
static EXIT_CODE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"exit code: \d+$").expect("a pattern"));

/// The pod of a build. A rootless daemon makes user namespaces itself, which the default seccomp
/// and AppArmor profiles forbid; a client of another daemon needs nothing.
pub(super) fn build_pod(
    cluster: &Cluster,
    builder: &BuilderOptions,
    labels: &EnvironmentLabels,
    name: String,
    settings: &PodSettings,
    now: SystemTime,
) -> Result<Pod, Failure> {
    let options = &cluster.options;
    let namespace = &cluster.namespace;
    let mut metadata = manifest::metadata(labels, name, options, &cluster.creator, namespace, now)?;
    let role = PodRole::Build.as_str().to_owned();
    metadata.labels.get_or_insert_default().insert(ROLE.to_owned(), role);
    let mut pod = manifest::bare_pod(metadata, container(cluster, builder), settings);
    if let Some(spec) = pod.spec.as_mut() {
        let volumes = spec.volumes.get_or_insert_default();
        volumes.extend(builder.push_secret.as_deref().map(registry_volume));
        if builder.buildkit.is_none() {
            volumes.push(Volume {
                name: DATA_VOLUME.to_owned(),
                empty_dir: Some(Default::default()),
                ..Volume::default()
            });
        }
    }
    Ok(pod)
}

fn container(cluster: &Cluster, builder: &BuilderOptions) -> Container {
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    let variable = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        ..EnvVar::default()
    };
    let (mut mounts, mut env) = (vec![manifest::base_mount()], Vec::new());
    let own_daemon = builder.buildkit.is_none();
    if own_daemon {
        mounts.push(mount(DATA_VOLUME, DATA_DIR, false));
        env.push(variable("BUILDKITD_FLAGS", "--oci-worker-no-process-sandbox"));
    }
    if builder.push_secret.is_some() {
        mounts.push(mount(REGISTRY_VOLUME, CONFIG_DIR, true));
        env.push(variable("DOCKER_CONFIG", CONFIG_DIR));
    }
    let amounts = builder.resources.iter();
    let amounts = amounts.map(|(name, amount)| (name.clone(), Quantity(amount.clone())));
    let amounts = Some(amounts.collect()).filter(|_| !builder.resources.is_empty());
    let unconfined = own_daemon.then(|| "Unconfined".to_owned());
    Container {
        name: manifest::MAIN.to_owned(),
        image: Some(cluster.options.mirrored(&builder.image)),
        command: Some(["/bin/sh", "-c", manifest::KEEP_ALIVE].map(str::to_owned).to_vec()),
        env: Some(env),
        resources: Some(ResourceRequirements {
            limits: amounts.clone(),
            requests: amounts,
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(own_daemon),
            privileged: Some(false),
            run_as_user: Some(1000),
            run_as_group: Some(1000),
            seccomp_profile: unconfined
                .clone()
                .map(|type_| SeccompProfile { type_, localhost_profile: None }),
            app_armor_profile: unconfined
                .map(|type_| AppArmorProfile { type_, localhost_profile: None }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

fn registry_volume(secret: &str) -> Volume {
    Volume {
        name: REGISTRY_VOLUME.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            items: Some(vec![KeyToPath {
                key: ".dockerconfigjson".to_owned(),
                path: "config.json".to_owned(),
                mode: None,
            }]),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// The inputs of a build beside its context.
#[derive(Debug, Clone, Copy)]
pub(super) struct BuildInputs<'a> {
    /// Name of the image.
    pub(super) reference: &'a str,
    pub(super) no_cache: bool,
    /// Proxies of its commands.
    pub(super) proxies: &'a BuildProxies,
    /// The key of their digest.
    pub(super) proxy_key: &'a ProxyKey,
    /// Whether its commands have a CA bundle.
    pub(super) has_bundle: bool,
    /// The Dockerfile.
    pub(super) dockerfile: &'a SentDockerfile,
}

/// The command that builds and pushes.
pub(super) fn build_command(builder: &BuilderOptions, inputs: BuildInputs<'_>) -> Vec<String> {
    let BuildInputs { reference, no_cache, proxies, proxy_key, has_bundle, dockerfile: sent } =
        inputs;
    let mut argv: Vec<String> = match &builder.buildkit {
        Some(address) => ["buildctl", "--addr", address].map(str::to_owned).to_vec(),
        None => vec!["buildctl-daemonless.sh".to_owned()],
    };
    let insecure = if builder.insecure { ",registry.insecure=true" } else { "" };
    let dockerfile = if sent.uploads.is_empty() { CONTEXT_DIR } else { DOCKERFILE_DIR };
    let (context, dockerfile) =
        (format!("context={CONTEXT_DIR}"), format!("dockerfile={dockerfile}"));
    let output = format!("type=image,name={reference},push=true{insecure}");
    let rest = ["build", "--progress=plain", "--frontend=dockerfile.v0", "--local"];
    argv.extend(rest.map(str::to_owned));
    argv.extend([context, "--local".to_owned(), dockerfile]);
    let frontend = sent.frontend.iter().map(|image| (FRONTEND_ARGUMENT.to_owned(), image.clone()));
    for (name, value) in proxies.with(&BTreeMap::new()).into_iter().chain(frontend) {
        argv.extend(["--opt".to_owned(), format!("build-arg:{name}={value}")]);
    }
    // A daemon of its own has no layers of other builds.
    if let Some(host) = proxies.layer_host(proxy_key).filter(|_| builder.buildkit.is_some()) {
        argv.extend(["--opt".to_owned(), format!("add-hosts={host}=127.0.0.1")]);
    }
    // A daemon that others use, too, has cache mounts of their builds.
    if builder.buildkit.is_some() {
        let namespace = format!("build-arg:{CACHE_NAMESPACE_ARGUMENT}={reference}");
        argv.extend(["--opt".to_owned(), namespace]);
    }
    if has_bundle {
        argv.extend(["--secret".to_owned(), format!("id={CA_BUNDLE_SECRET},src={BUNDLE_FILE}")]);
    }
    argv.extend(["--output".to_owned(), output]);
    if no_cache {
        argv.push("--no-cache".to_owned());
    }
    argv
}

/// The failure of a build command with an exit code. The verdict is looked for in the whole log: the
/// error of a failed step repeats its command, which may be longer than a message.
pub(super) fn command_failure(code: i32, log: &BuildLog) -> Failure {
    let (text, tail) = (log.text(), log.tail());
    // Lines of steps begin with the step's number.
    let is_verdict = |line: &&str| line.contains(SOLVE_ERROR) && !line.starts_with('#');
    let kind = match text.lines().rev().find(is_verdict) {
        // A failed step: its message repeats the step's own text, which may contain anything.
        Some(line) if EXIT_CODE.is_match(line.trim_end()) => FailureKind::Refused,
        // The daemon reports a registry's refusal in the log.
        Some(line) => registry_failure::kind_for_registry(line).unwrap_or(FailureKind::Refused),
        // Without a verdict on the build, the builder is at fault.
        None => registry_failure::kind_for_registry(tail.lines().last().unwrap_or_default())
            .filter(|kind| *kind == FailureKind::Unreachable)
            .unwrap_or(FailureKind::Service),
    };
    let end = if tail.is_empty() { String::new() } else { format!(":\n{tail}") };
    Failure::new(kind, format!("the build of the image ended with code {code}{end}"))
}

#[cfg(test)]
mod tests {
    use rollout_environment::{OutputSink as _, OutputStream};

    use super::super::options::KubernetesOptions;
    use super::*;

    fn builder(text: &str) -> BuilderOptions {
        let options = KubernetesOptions::parse(&format!("builder: {text}")).expect("valid");
        options.builder.expect("set")
    }

    #[test]
    fn build_command_names_daemon_and_image() {
        let own = builder("{registry: r.local/x}");
        let (no_proxies, of_context) = (BuildProxies::default(), SentDockerfile::default());
        let proxy_key = ProxyKey::default();
        let plain = BuildInputs {
            reference: "r.local/x/task:1",
            no_cache: false,
            proxies: &no_proxies,
            proxy_key: &proxy_key,
            has_bundle: false,
            dockerfile: &of_context,
        };
        let argv = build_command(&own, plain).join(" ");
        assert!(argv.starts_with("buildctl-daemonless.sh build "), "{argv}");
        assert!(argv.ends_with("--output type=image,name=r.local/x/task:1,push=true"), "{argv}");
        let remote =
            builder("{registry: r.local, buildkit: 'tcp://buildkitd:1234', insecure: true}");
        let proxy = ("HTTP_PROXY".to_owned(), "http://u:p@h:1".to_owned());
        let proxies = BuildProxies::of(&[proxy].into());
        let inputs =
            BuildInputs { reference: "r.local/task:1", no_cache: true, proxies: &proxies, ..plain };
        let argv = build_command(&remote, inputs).join(" ");
        assert!(argv.starts_with("buildctl --addr tcp://buildkitd:1234 build "), "{argv}");
        assert!(argv.contains(" --opt build-arg:HTTP_PROXY=http://u:p@h:1 --opt "), "{argv}");
        let host = proxies.layer_host(&proxy_key).expect("a mark");
        let mark = format!(" --opt add-hosts={host}=127.0.0.1 ");
        assert!(argv.contains(&mark), "the daemon has layers of others: {argv}");
        let namespace = " --opt build-arg:BUILDKIT_CACHE_MOUNT_NS=r.local/task:1 ";
        assert!(argv.contains(namespace), "the daemon has cache mounts of others: {argv}");
        assert!(argv.ends_with("push=true,registry.insecure=true --no-cache"), "{argv}");
        assert!(
            !build_command(&own, inputs).join(" ").contains("add-hosts"),
            "a daemon of its own"
        );
        let mirrored = SentDockerfile {
            uploads: vec![rollout_environment::Upload::FreshDir { path: "/x".to_owned() }],
            frontend: Some("m.test/dockerfile:1".to_owned()),
        };
        let inputs = BuildInputs { has_bundle: true, dockerfile: &mirrored, ..plain };
        let argv = build_command(&own, inputs).join(" ");
        for text in [
            " --local dockerfile=/.rollout/dockerfile ",
            " --opt build-arg:BUILDKIT_SYNTAX=m.test/dockerfile:1 ",
            " --secret id=rollout-ca-bundle,src=/.rollout/ca-bundle.pem ",
        ] {
            assert!(argv.contains(text), "{argv}");
        }
    }

    #[test]
    fn build_failure_blames_step_registry_or_builder() {
        use FailureKind::*;
        for (tail, kind) in [
            (
                "#5 ERROR\nerror: failed to solve: process \"/bin/sh -c echo connection refused\" \
                 did not complete successfully: exit code: 7",
                Refused,
            ),
            ("error: failed to solve: dockerfile parse error on line 1: unknown", Refused),
            ("error: failed to solve: debian:99: not found", Refused),
            ("error: failed to solve: failed to push r/x: dial tcp: i/o timeout", Unreachable),
            ("error: failed to solve: failed to push r/x: unexpected status: 503", Unreachable),
            ("could not connect to unix:///run/user/1000/buildkit/buildkitd.sock", Service),
            ("error: failed to dial: connect: connection refused", Unreachable),
            ("", Service),
        ] {
            assert_eq!(command_failure(1, &log(tail)).kind, kind, "{tail}");
        }
    }

    #[test]
    fn failed_step_with_long_command_is_the_fault_of_the_build() {
        let command = "echo 1; ".repeat(8 * 1024);
        let step = format!(
            "#5 RUN {command}\nerror: failed to solve: process \"/bin/sh -c {command}\" did not \
             complete successfully: exit code: 1\n"
        );
        let failure = command_failure(1, &log(&step));
        assert_eq!(failure.kind, FailureKind::Refused);
        assert!(failure.message.ends_with("exit code: 1"), "{failure}");
        assert!(failure.message.len() < 8 * 1024, "the message is short");
        // Output of a step is no verdict.
        let step = "#5 0.1 error: failed to solve: x\nerror: failed to dial: connection refused";
        assert_eq!(command_failure(1, &log(step)).kind, FailureKind::Unreachable);
    }

    fn log(text: &str) -> BuildLog {
        let log = BuildLog::default();
        log.write(OutputStream::Stdout, text.as_bytes());
        log
    }
}
