//! Tests of manifests.

use std::path::PathBuf;

use rollout_environment::{EnvironmentLabels, EnvironmentPurpose, Image, ImageSource, Owner};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::spec::environment::ProviderSpec;
use rollout_protocol::spec::resources::ResourceCeilings;
use rollout_protocol::spec::task::NetworkPolicy;
use serde_json::{Value, json};

use super::*;

fn request(settings: Value) -> CreateRequest {
    let settings = serde_json::from_value(settings).expect("settings");
    CreateRequest {
        image: Image::found("registry.example/task:1"),
        source: ImageSource::Context { digest: Digest::sha256(b""), dir: PathBuf::new() },
        resources: Resources { cpus: 2, memory_mb: 1024, storage_mb: 2048, ..Resources::default() },
        env: [("API_KEY".to_owned(), "secret-value".to_owned())].into(),
        workdir: None,
        network: NetworkPolicy::Public,
        compose: None,
        uploads: Vec::new(),
        settings: ProviderSpec::Kubernetes(Box::new(settings)),
        labels: EnvironmentLabels {
            run: RunId::from_bytes([1; 16]),
            item: ItemId::for_trial("agent", "dataset", "task", 1),
            try_id: TryId::first(1),
            exec: ExecId::from_bytes([7; 16]),
            worker: "w1".parse().expect("a token"),
            owner: Owner::current(PathBuf::from("/nowhere")),
        },
        purpose: EnvironmentPurpose::Agent,
    }
}

fn creator(own_pod: Option<OwnPod>) -> PodCreator {
    PodCreator { instance: "i1".to_owned(), own_pod }
}

fn made(request: &CreateRequest, options: &str, own_pod: Option<OwnPod>) -> Value {
    let options = KubernetesOptions::parse(options).expect("options");
    let settings = PodSettings::resolve(&request.settings, &options).expect("settings");
    let creator = creator(own_pod);
    let pod = pod(request, &settings, &options, &creator, "trials", SystemTime::UNIX_EPOCH, None);
    serde_json::to_value(pod.expect("a pod")).expect("JSON")
}

#[test]
fn pod_of_plain_request_has_hardened_defaults() {
    let pod = made(&request(json!({})), "", None);
    let expected = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 2,
        "enableServiceLinks": false,
        "activeDeadlineSeconds": 604_800,
        "automountServiceAccountToken": false,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "rollout", "emptyDir": {}}],
        "containers": [{
            "name": "main",
            "image": "registry.example/task:1",
            "command": ["/bin/sh", "-c", KEEP_ALIVE],
            "resources": {
                "limits": {"cpu": "2", "memory": "1024Mi", "ephemeral-storage": "2048Mi"},
                "requests": {"cpu": "2", "memory": "1024Mi", "ephemeral-storage": "2048Mi"},
            },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "privileged": false,
                "capabilities": {
                    "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID",
                            "SETUID", "SYS_CHROOT"],
                    "drop": ["ALL"],
                },
            },
            "volumeMounts": [{"name": "rollout", "mountPath": "/.rollout"}],
        }],
    });
    assert_eq!(pod["spec"], expected);
    assert_eq!(pod["metadata"]["namespace"], "trials");
    let labels = &pod["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/managed-by"], "rollout");
    assert_eq!(labels["rollout.dev/role"], "environment");
    assert_eq!(labels["rollout.dev/instance"], "i1");
    assert_eq!(labels["rollout.dev/worker"], "w1");
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["rollout.dev/alive-until"], "21600");
    assert!(Owner::from_label(annotations["rollout.dev/owner"].as_str().expect("text")).is_some());
    assert!(pod["metadata"].get("ownerReferences").is_none());
}

#[test]
fn pod_manifest_has_no_variables_of_the_trial() {
    let pod = made(&request(json!({})), "", None).to_string();
    assert!(!pod.contains("secret-value") && !pod.contains("API_KEY"), "{pod}");
}

#[test]
fn pod_settings_reach_the_manifest() {
    let options = "jobs_may_set: [service_account, runtime_class, priority_class, node_selector, \
                   tolerations, affinity, image_pull_secrets]\ncapabilities: [CHOWN]\n\
                   gpu_resource: amd.com/gpu";
    let mut request = request(json!({
        "service_account": "trial",
        "runtime_class": "gvisor",
        "priority_class": "low",
        "node_selector": {"pool": "trials"},
        "tolerations": [{"key": "trials", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"podAntiAffinity": {}},
        "image_pull_secrets": ["registry"],
        "cpu_request": "500m",
        "memory_request": "256Mi",
        "run_as_user": 1000,
        "active_deadline_sec": 7200,
    }));
    request.resources.gpus = 2;
    request.workdir = Some("/app".to_owned());
    let spec = &made(&request, options, None)["spec"];
    assert_eq!(spec["serviceAccountName"], "trial");
    assert_eq!(spec["automountServiceAccountToken"], true);
    assert_eq!(spec["runtimeClassName"], "gvisor");
    assert_eq!(spec["priorityClassName"], "low");
    assert_eq!(spec["nodeSelector"], json!({"pool": "trials"}));
    let toleration = json!([{"key": "trials", "operator": "Exists", "effect": "NoSchedule"}]);
    assert_eq!(spec["tolerations"], toleration);
    assert_eq!(spec["affinity"], json!({"podAntiAffinity": {}}));
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "registry"}]));
    assert_eq!(spec["activeDeadlineSeconds"], 7200);
    assert_eq!(spec["securityContext"]["runAsUser"], 1000);
    let main = &spec["containers"][0];
    assert_eq!(main["workingDir"], "/app");
    let requests = json!({"cpu": "500m", "memory": "256Mi", "ephemeral-storage": "2048Mi"});
    assert_eq!(main["resources"]["requests"], requests);
    assert_eq!(main["resources"]["limits"]["amd.com/gpu"], "2");
    assert_eq!(main["resources"]["limits"]["memory"], "1024Mi");
    assert_eq!(main["securityContext"]["capabilities"]["add"], json!(["CHOWN"]));
}

#[test]
fn pod_without_root_has_no_capabilities() {
    let spec = &made(&request(json!({"run_as_non_root": true})), "", None)["spec"];
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    let capabilities = &spec["containers"][0]["securityContext"]["capabilities"];
    assert_eq!(*capabilities, json!({"drop": ["ALL"]}));
}

#[test]
fn pod_without_ceilings_has_only_requests() {
    let mut request = request(json!({}));
    request.resources.ceilings = ResourceCeilings::NONE;
    let resources = &made(&request, "", None)["spec"]["containers"][0]["resources"];
    assert_eq!(*resources, json!({"requests": {"cpu": "2", "memory": "1024Mi"}}));
    let limits = enforced_limits(&request.resources);
    assert_eq!(limits, EnforcedLimits::default());
}

#[test]
fn pod_belongs_to_pod_of_worker_in_same_namespace() {
    let own = |namespace: &str| OwnPod {
        name: "worker-0".to_owned(),
        uid: "u-1".to_owned(),
        namespace: namespace.to_owned(),
    };
    let pod = made(&request(json!({})), "", Some(own("trials")));
    let reference = &pod["metadata"]["ownerReferences"][0];
    assert_eq!(
        *reference,
        json!({"apiVersion": "v1", "kind": "Pod", "name": "worker-0", "uid": "u-1"})
    );
    let pod = made(&request(json!({})), "", Some(own("system")));
    assert!(pod["metadata"].get("ownerReferences").is_none());
}

#[test]
fn pod_of_worker_is_known_from_variables() {
    let set = |name: &str| match name {
        "ROLLOUT_POD_NAME" => Some("w".to_owned()),
        "ROLLOUT_POD_UID" => Some("u".to_owned()),
        "ROLLOUT_POD_NAMESPACE" => Some("n".to_owned()),
        _ => None,
    };
    let own = OwnPod { name: "w".to_owned(), uid: "u".to_owned(), namespace: "n".to_owned() };
    assert_eq!(OwnPod::from_env(set), Some(own));
    assert_eq!(OwnPod::from_env(|name| (name != "ROLLOUT_POD_UID").then(String::new)), None);
}

#[test]
fn pod_with_helper_runs_its_shell() {
    let options = "helper_image: busybox:musl\nregistry_mirrors: {busybox: mirror/busybox}";
    let spec = &made(&request(json!({})), options, None)["spec"];
    assert_eq!(spec["containers"][0]["command"][0], "/.rollout/bin/sh");
    assert_eq!(spec["initContainers"][0]["image"], "mirror/busybox:musl");
    assert_eq!(spec["initContainers"][0]["securityContext"]["privileged"], false);
    let base = json!({"name": "rollout", "mountPath": "/.rollout"});
    let programs = |more: Value| {
        let mut mount = json!({"name": "rollout-programs", "mountPath": "/.rollout/bin"});
        mount.as_object_mut().expect("a mount").extend(more.as_object().expect("keys").clone());
        mount
    };
    let read_only = programs(json!({"readOnly": true}));
    assert_eq!(spec["containers"][0]["volumeMounts"], json!([base, read_only]));
    assert_eq!(spec["initContainers"][0]["volumeMounts"], json!([base, programs(json!({}))]));
    let volumes = json!([
        {"name": "rollout", "emptyDir": {}},
        {"name": "rollout-programs", "emptyDir": {}},
    ]);
    assert_eq!(spec["volumes"], volumes);
}

#[test]
fn pod_request_that_cannot_be_met_is_refused() {
    let options = KubernetesOptions::default();
    let kind = |request: &CreateRequest| {
        let settings = PodSettings::resolve(&request.settings, &options).expect("settings");
        let made =
            pod(request, &settings, &options, &creator(None), "n", SystemTime::UNIX_EPOCH, None);
        made.expect_err("refused").kind
    };
    let relative = CreateRequest { workdir: Some("work".to_owned()), ..request(json!({})) };
    assert_eq!(kind(&relative), FailureKind::Refused);
}
