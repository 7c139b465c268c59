//! Rules on the objects of the chart: users, rights, secrets, and time to drain.

use rollout_protocol::digest::Digest;
use serde_json::Value;

use crate::chart::render::{Case, Rendered, cases, render_text};

/// The pods that an object makes: its own, or those of its template.
fn pod_spec(object: &Value) -> Option<&Value> {
    match object["kind"].as_str() {
        Some("Pod") => Some(&object["spec"]),
        Some("Deployment" | "StatefulSet" | "Job") => Some(&object["spec"]["template"]["spec"]),
        _ => None,
    }
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let of = |key: &str| pod[key].as_array().into_iter().flatten();
    of("initContainers").chain(of("containers"))
}

/// Every text in a document.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(items) => items.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

fn list(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[test]
fn pods_run_without_root_and_privileges() {
    for case in cases() {
        let mut seen = 0;
        for object in case.objects() {
            let Some(pod) = pod_spec(&object) else { continue };
            let name = format!("{}: {}", case.name, object["metadata"]["name"]);
            let context = &pod["securityContext"];
            assert_eq!(context["runAsNonRoot"], true, "{name}");
            assert!(context["runAsUser"].as_u64() > Some(0), "{name}");
            assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault", "{name}");
            for key in ["hostNetwork", "hostPID", "hostIPC"] {
                assert!(pod[key].is_null(), "{name}: {key}");
            }
            let volumes = pod["volumes"].as_array().into_iter().flatten();
            assert!(volumes.into_iter().all(|volume| volume["hostPath"].is_null()), "{name}");
            for container in containers(pod) {
                let context = &container["securityContext"];
                assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
                assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
                assert_eq!(list(&context["capabilities"]["drop"]), ["ALL"], "{name}");
                assert!(context["runAsUser"].is_null() && context["privileged"].is_null());
                assert!(!container["resources"]["limits"]["memory"].is_null(), "{name}");
                seen += 1;
            }
        }
        assert!(seen >= 3, "{}: {seen} containers", case.name);
    }
}

#[test]
fn roles_grant_workers_pods_of_trials_only() {
    for case in cases() {
        assert!(
            case.of_kind("ClusterRole").is_empty() && case.of_kind("ClusterRoleBinding").is_empty()
        );
        let roles = case.of_kind("Role");
        assert_eq!(roles.len(), 1, "{}", case.name);
        let namespace = if case.name == "nats" { "trials" } else { "rollout" };
        assert_eq!(roles[0]["metadata"]["namespace"], namespace);
        let mut resources = Vec::new();
        for rule in roles[0]["rules"].as_array().expect("rules") {
            let all = [list(&rule["apiGroups"]), list(&rule["resources"]), list(&rule["verbs"])];
            assert!(!all.concat().iter().any(|text| text.contains('*')), "{rule}");
            resources.extend(list(&rule["resources"]));
        }
        let mut expected = vec!["pods", "pods/exec", "pods/log", "events", "networkpolicies"];
        expected.extend((case.name == "nats").then_some("configmaps"));
        assert_eq!(resources, expected, "{}", case.name);
        let binding = case.object("RoleBinding", "demo-rollout-trials");
        assert_eq!(binding["subjects"][0]["name"], "demo-rollout-worker");
        assert_eq!(binding["subjects"].as_array().map(Vec::len), Some(1));
    }
}

#[test]
fn tokens_of_service_accounts_are_mounted_for_workers_only() {
    for case in cases() {
        for object in case.objects() {
            let Some(pod) = pod_spec(&object) else { continue };
            let expected = object["kind"] == "Deployment";
            assert_eq!(pod["automountServiceAccountToken"], expected, "{}", object["metadata"]);
        }
    }
}

#[test]
fn secrets_are_in_no_config_map_argument_or_variable() {
    let Some(Rendered::Manifests { manifests, .. }) =
        render_text("store: {url: 's3://b/p', existingSecret: s3}\nnats: {replicas: 3}\n")
    else {
        return;
    };
    // With real passwords: those of the cases are masked.
    let case = Case { name: "passwords", manifests, findings: Vec::new() };
    let secrets = case.of_kind("Secret");
    let passwords: Vec<&str> =
        secrets.iter().filter_map(|secret| secret["stringData"]["password"].as_str()).collect();
    assert_eq!(passwords.len(), 3, "coordinator, worker, cluster");
    assert!(passwords.iter().all(|p| p.len() == 40), "{passwords:?}");
    let apart: std::collections::BTreeSet<_> = passwords.iter().collect();
    assert_eq!(apart.len(), 3, "a password for each role");
    for object in case.objects().iter().filter(|object| object["kind"] != "Secret") {
        let leaked = |text: &&str| passwords.iter().any(|password| text.contains(password));
        assert_eq!(texts(object).into_iter().find(leaked), None, "{}", object["metadata"]);
    }
    let roles = case.object("Secret", "demo-rollout-nats-server");
    assert!(passwords[..2].iter().all(|p| texts(&roles["stringData"]).join("").contains(p)));
    for object in case.objects() {
        for container in pod_spec(&object).into_iter().flat_map(containers) {
            for variable in container["env"].as_array().into_iter().flatten() {
                let name = variable["name"].as_str().unwrap_or_default();
                let secret =
                    ["PASSWORD", "TOKEN", "SECRET", "KEY"].iter().any(|p| name.contains(p));
                assert!(!secret || variable["value"].is_null(), "{name}");
            }
        }
    }
}

#[test]
fn workers_and_coordinators_read_only_the_secret_of_their_role() {
    for case in cases() {
        for object in case.objects() {
            let Some(pod) = pod_spec(&object) else { continue };
            let component = &object["metadata"]["labels"]["app.kubernetes.io/component"];
            let foreign = match component.as_str() {
                Some("worker") => ["nats-coordinator", "nats-server"],
                Some("nats") => ["nats-coordinator", "nats-worker"],
                _ => ["nats-worker", "nats-server"],
            };
            let named =
                texts(pod).into_iter().find(|text| foreign.iter().any(|f| text.ends_with(f)));
            assert_eq!(named, None, "{}: {component}", case.name);
        }
    }
}

#[test]
fn server_has_users_a_volume_and_a_service() {
    for case in cases().iter().filter(|case| case.name == "server") {
        let server = case.object("StatefulSet", "demo-rollout-server");
        let pod = pod_spec(&server).expect("pods");
        let container = &pod["containers"][0];
        let arguments = list(&container["args"]);
        assert_eq!(arguments[0], "serve");
        for argument in [
            "--dir=/var/lib/rollout/server",
            "--listen=0.0.0.0:4280",
            "--tokens=/etc/rollout/tokens/tokens.toml",
            "--tls-cert=/etc/rollout/tls/tls.crt",
            "--allow-pool=shared",
            "--allow-git-host=git.example.org",
        ] {
            assert!(arguments.contains(&argument), "{argument}: {arguments:?}");
        }
        let volume = |name: &str| {
            let volumes = pod["volumes"].as_array().into_iter().flatten();
            volumes.into_iter().find(|volume| volume["name"] == name).cloned().expect("a volume")
        };
        assert_eq!(volume("tokens")["secret"]["secretName"], "rollout-users");
        assert_eq!(volume("tls")["secret"]["secretName"], "rollout-tls");
        let state = volume("state");
        let claim = state["persistentVolumeClaim"]["claimName"].as_str().expect("a name");
        let claim = case.object("PersistentVolumeClaim", claim);
        assert_eq!(claim["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
        let service = case.object("Service", "demo-rollout-server");
        assert_eq!(service["spec"]["selector"], server["spec"]["selector"]["matchLabels"]);
        assert_eq!(service["spec"]["ports"][0]["targetPort"], container["ports"][0]["name"]);
        assert_eq!(container["readinessProbe"]["httpGet"]["scheme"], "HTTPS");
        let policy = case.object("NetworkPolicy", "demo-rollout-server");
        assert_eq!(policy["spec"]["podSelector"], server["spec"]["selector"]);
    }
}

#[test]
fn server_without_users_has_an_administrator() {
    let values = "store: {url: 's3://b/p'}\nserver: {enabled: true}\n";
    let Some(Rendered::Manifests { manifests, .. }) = render_text(values) else { return };
    let case = Case { name: "administrator", manifests, findings: Vec::new() };
    let secret = case.object("Secret", "demo-rollout-server-tokens");
    let text = |key: &str| secret["stringData"][key].as_str().unwrap_or_default().to_owned();
    let token = text("token");
    assert_eq!(token.len(), 40, "{token}");
    let users: toml::Table = text("tokens.toml").parse().expect("TOML");
    let user = &users["tokens"][0];
    assert_eq!(user["role"].as_str(), Some("admin"));
    let digest = Digest::sha256(token.as_bytes()).hex();
    assert_eq!(user["sha256"].as_str(), Some(digest.as_str()));
    let leaked = |object: &Value| texts(object).iter().any(|text| text.contains(&token));
    for object in case.objects().iter().filter(|object| object["kind"] != "Secret") {
        assert!(!leaked(object), "{}", object["metadata"]);
    }
    let policy = case.object("NetworkPolicy", "demo-rollout-server");
    let peer = &policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchExpressions"][0];
    assert_eq!(
        (peer["operator"].as_str(), list(&peer["values"])),
        (Some("NotIn"), vec!["rollout"])
    );
}

#[test]
fn workers_have_time_to_drain() {
    for case in cases() {
        let worker = case.object("Deployment", "demo-rollout-worker");
        let pod = pod_spec(&worker).expect("pods");
        let arguments = list(&pod["containers"][0]["args"]);
        let drain = arguments.iter().find_map(|a| a.strip_prefix("--drain-timeout="));
        let drain: u64 = drain.and_then(|d| d.trim_end_matches('s').parse().ok()).expect("seconds");
        let grace = pod["terminationGracePeriodSeconds"].as_u64().expect("a number");
        assert!(grace > drain + 30, "{}: {grace} s to drain for {drain} s", case.name);
        // The autoscaler decides.
        assert_eq!(worker["spec"]["replicas"].is_null(), case.name == "external");
    }
}

#[test]
fn policies_refuse_connections_to_trials() {
    for case in cases() {
        let policies = case.of_kind("NetworkPolicy");
        let trials = case.object("NetworkPolicy", "demo-rollout-trials");
        assert_eq!(trials["spec"]["policyTypes"], serde_json::json!(["Ingress"]));
        assert!(trials["spec"]["ingress"].is_null());
        // Policies add up: one that allows connections of trials would undo those of tasks without
        // network.
        for policy in policies.iter().filter(|policy| !policy["spec"]["egress"].is_null()) {
            let labels = &policy["spec"]["podSelector"]["matchLabels"];
            assert_eq!(labels["app.kubernetes.io/component"], "worker", "{}", policy["metadata"]);
        }
    }
}

#[test]
fn changed_job_gets_another_name() {
    let name = |values: &str| {
        let values = format!("store: {{url: 's3://b/p'}}\n{values}");
        match render_text(&values)? {
            Rendered::Manifests { manifests, .. } => {
                let case = Case { name: "job", manifests, findings: Vec::new() };
                let jobs = case.of_kind("Job");
                let names = jobs.iter().filter_map(|job| job["metadata"]["name"].as_str());
                names.map(str::to_owned).find(|name| name.contains("-run-"))
            }
            Rendered::Refused { error } => panic!("{values}: {error}"),
        }
    };
    let job = "coordinator: {job: {enabled: true, files: {job.yaml: 'name: a'}}}\n";
    let Some(first) = name(job) else { return };
    // Workers of an earlier version: upgrades begin with the coordinator.
    assert_eq!(name(&format!("{job}worker: {{tag: '0.0.9'}}")), Some(first.clone()));
    for changed in [job.replace("name: a", "name: b"), format!("{job}image: {{tag: '0.0.9'}}")] {
        assert_ne!(name(&changed), Some(first.clone()), "{changed}");
    }
}
