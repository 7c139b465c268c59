//! Settings of one environment: those of the job over the operator's defaults.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rollout_environment::descriptor::provider_settings;
use rollout_environment::{Failure, FailureKind};
use rollout_protocol::spec::environment::{KubernetesNetwork, KubernetesSettings, ProviderSpec};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::options::{GUARDED_SETTINGS, KubernetesOptions};

/// Seconds after which the cluster ends a pod, unless a setting says otherwise: a week. Nothing that
/// a live worker needs may be ended by it.
const ACTIVE_DEADLINE_SEC: u64 = 7 * 24 * 3600;

/// Settings of a pod, checked.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PodSettings {
    /// Whether the job denies every network.
    pub(super) network_denied: bool,
    /// The namespace, if it is not the worker's own.
    pub(super) namespace: Option<String>,
    pub(super) service_account: Option<String>,
    pub(super) runtime_class: Option<String>,
    pub(super) priority_class: Option<String>,
    pub(super) node_selector: BTreeMap<String, String>,
    pub(super) tolerations: Vec<Toleration>,
    pub(super) affinity: Option<Affinity>,
    pub(super) image_pull_secrets: Vec<String>,
    pub(super) cpu_request: Option<Quantity>,
    pub(super) memory_request: Option<Quantity>,
    pub(super) run_as_non_root: bool,
    pub(super) run_as_user: Option<i64>,
    pub(super) active_deadline_sec: i64,
}

impl PodSettings {
    /// The settings of a job's pods.
    pub(super) fn resolve(
        spec: &ProviderSpec,
        options: &KubernetesOptions,
    ) -> Result<Self, Failure> {
        let ProviderSpec::Kubernetes(job) = spec else {
            let text = format!("the kubernetes provider got the settings of `{}`", spec.kind());
            return Err(Failure::new(FailureKind::Bug, text));
        };
        check_allowed(spec, options)?;
        merge(job, options)
    }
}

/// Refuses guarded settings that the operator does not leave to jobs.
fn check_allowed(spec: &ProviderSpec, options: &KubernetesOptions) -> Result<(), Failure> {
    let given = provider_settings(spec);
    let may_set = |key: &&&str| !options.jobs_may_set.contains(**key);
    let refused = GUARDED_SETTINGS.iter().filter(|key| given.contains_key(**key)).find(may_set);
    match refused {
        None => Ok(()),
        Some(key) => Err(refuse(
            key,
            "the operator of the cluster's workers does not let jobs set it (`jobs_may_set`)",
        )),
    }
}

fn merge(job: &KubernetesSettings, options: &KubernetesOptions) -> Result<PodSettings, Failure> {
    let defaults = &options.defaults;
    let text = |job: &Option<String>, default: &Option<String>| job.clone().or(default.clone());
    if let Some(namespace) = &job.namespace
        && options.namespace.as_ref() != Some(namespace)
        && !options.namespaces.contains(namespace)
    {
        let text = format!("`{namespace}` is not among the operator's `namespaces`");
        return Err(refuse("namespace", &text));
    }
    let tolerations = job.tolerations.as_ref().or(defaults.tolerations.as_ref());
    let tolerations = tolerations.into_iter().flatten();
    let tolerations = tolerations.map(|table| typed("tolerations", table.clone()));
    let affinity = job.affinity.clone().or_else(|| defaults.affinity.clone());
    let deadline = job.active_deadline_sec.or(defaults.active_deadline_sec);
    let user = job.run_as_user.or(defaults.run_as_user);
    Ok(PodSettings {
        network_denied: [job.network, defaults.network].contains(&KubernetesNetwork::None),
        namespace: job.namespace.clone(),
        service_account: text(&job.service_account, &defaults.service_account),
        runtime_class: text(&job.runtime_class, &defaults.runtime_class),
        priority_class: text(&job.priority_class, &defaults.priority_class),
        node_selector: job
            .node_selector
            .clone()
            .or_else(|| defaults.node_selector.clone())
            .unwrap_or_default(),
        tolerations: tolerations.collect::<Result<_, _>>()?,
        affinity: affinity.map(|table| typed("affinity", table)).transpose()?,
        image_pull_secrets: job
            .image_pull_secrets
            .clone()
            .or_else(|| defaults.image_pull_secrets.clone())
            .unwrap_or_default(),
        cpu_request: quantity("cpu_request", text(&job.cpu_request, &defaults.cpu_request))?,
        memory_request: quantity(
            "memory_request",
            text(&job.memory_request, &defaults.memory_request),
        )?,
        // A job can be stricter than the operator, never laxer.
        run_as_non_root: job.run_as_non_root == Some(true)
            || defaults.run_as_non_root == Some(true),
        run_as_user: user.and_then(|user| i64::try_from(user).ok()),
        active_deadline_sec: i64::try_from(deadline.unwrap_or(ACTIVE_DEADLINE_SEC))
            .unwrap_or(i64::MAX),
    })
}

/// Reads a part of a manifest. The form of the types ignores unknown keys, so each key must come
/// back.
fn typed<T: DeserializeOwned + serde::Serialize>(
    key: &str,
    table: Map<String, Value>,
) -> Result<T, Failure> {
    let given = Value::Object(table);
    let typed: T =
        serde_json::from_value(given.clone()).map_err(|error| refuse(key, &error.to_string()))?;
    let back = serde_json::to_value(&typed).map_err(|error| refuse(key, &error.to_string()))?;
    match unknown_key(&given, &back) {
        Some(unknown) => Err(refuse(key, &format!("Kubernetes has no key `{unknown}` there"))),
        None => Ok(typed),
    }
}

/// A key of `given` that is not in `back`.
fn unknown_key(given: &Value, back: &Value) -> Option<String> {
    match (given, back) {
        (Value::Object(given), Value::Object(back)) => given.iter().find_map(|(key, value)| {
            match back.get(key) {
                Some(found) => unknown_key(value, found),
                // An empty list or table may be left out.
                None if value.is_null() || value.as_array().is_some_and(Vec::is_empty) => None,
                None => Some(key.clone()),
            }
        }),
        (Value::Array(given), Value::Array(back)) => {
            given.iter().zip(back).find_map(|(given, back)| unknown_key(given, back))
        }
        _ => None,
    }
}

/// Checks the form of a quantity, so that a mistake is named before a pod is created.
fn quantity(key: &str, text: Option<String>) -> Result<Option<Quantity>, Failure> {
    const SUFFIXES: [&str; 14] =
        ["", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let Some(text) = text else { return Ok(None) };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number = digits.parse::<f64>().is_ok_and(|number| number.is_finite() && number > 0.0);
    if number && SUFFIXES.contains(&&text[digits.len()..]) {
        return Ok(Some(Quantity(text)));
    }
    Err(refuse(key, &format!("`{text}` is not a quantity such as 500m or 512Mi")))
}

/// The amount of a quantity whose form was checked.
pub(super) fn amount(quantity: &Quantity) -> Option<f64> {
    const UNITS: [(&str, f64); 14] = [
        ("", 1.0),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
    ];
    let text = &quantity.0;
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (_, unit) = UNITS.iter().find(|(suffix, _)| *suffix == &text[digits.len()..])?;
    Some(digits.parse::<f64>().ok()? * unit)
}

fn refuse(key: &str, why: &str) -> Failure {
    let text = format!("cannot use `environment.provider_config.{key}`: {why}");
    Failure::new(FailureKind::Refused, text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(settings: Value) -> ProviderSpec {
        let settings = serde_json::from_value(settings).expect("settings");
        ProviderSpec::Kubernetes(Box::new(settings))
    }

    fn options(text: &str) -> KubernetesOptions {
        KubernetesOptions::parse(text).expect("options")
    }

    fn refused(settings: Value, options: &KubernetesOptions) -> String {
        let failure = PodSettings::resolve(&job(settings), options).expect_err("refused");
        assert_eq!(failure.kind, FailureKind::Refused);
        failure.message
    }

    #[test]
    fn guarded_setting_needs_permission_of_operator() {
        for key in GUARDED_SETTINGS {
            let value = match key {
                "node_selector" | "affinity" => json!({}),
                "tolerations" | "image_pull_secrets" => json!([]),
                _ => json!("x"),
            };
            let message = refused(json!({key: value}), &KubernetesOptions::default());
            assert!(message.contains(key) && message.contains("jobs_may_set"), "{message}");
        }
        let options = options("jobs_may_set: [runtime_class]\ndefaults: {runtime_class: runc}");
        let own = job(json!({"runtime_class": "gvisor"}));
        let settings = PodSettings::resolve(&own, &options).expect("allowed");
        assert_eq!(settings.runtime_class.as_deref(), Some("gvisor"));
        let settings = PodSettings::resolve(&job(json!({})), &options).expect("defaults");
        assert_eq!(settings.runtime_class.as_deref(), Some("runc"));
    }

    #[test]
    fn namespace_of_job_must_be_listed() {
        let options = options("jobs_may_set: [namespace]\nnamespaces: [team-a]");
        let settings = PodSettings::resolve(&job(json!({"namespace": "team-a"})), &options);
        assert_eq!(settings.expect("listed").namespace.as_deref(), Some("team-a"));
        assert!(refused(json!({"namespace": "kube-system"}), &options).contains("kube-system"));
    }

    #[test]
    fn job_cannot_lift_restrictions_of_operator() {
        let options = options("defaults: {run_as_non_root: true, network: none}");
        let lax = job(json!({"run_as_non_root": false, "network": "cluster"}));
        let settings = PodSettings::resolve(&lax, &options).expect("valid");
        assert!(settings.run_as_non_root && settings.network_denied);
    }

    #[test]
    fn part_of_manifest_with_unknown_key_is_refused() {
        let options = options("jobs_may_set: [tolerations, affinity]");
        let good = json!({"tolerations": [{"key": "trials", "operator": "Exists"}]});
        let settings = PodSettings::resolve(&job(good), &options).expect("valid");
        assert_eq!(settings.tolerations[0].key.as_deref(), Some("trials"));
        let message = refused(json!({"tolerations": [{"kye": "trials"}]}), &options);
        assert!(message.contains("kye"), "{message}");
        let nested = json!({"affinity": {"nodeAffinity": {"required": 1}}});
        assert!(refused(nested, &options).contains("required"));
    }

    #[test]
    fn quantity_of_request_is_checked() {
        let options = KubernetesOptions::default();
        for good in ["2", "500m", "0.5", "512Mi", "1G"] {
            let found = PodSettings::resolve(&job(json!({"cpu_request": good})), &options);
            assert_eq!(found.expect(good).cpu_request, Some(Quantity(good.to_owned())));
        }
        for wrong in ["", "-1", "0", "half", "1 Gi", "1MiB"] {
            assert!(refused(json!({"memory_request": wrong}), &options).contains("quantity"));
        }
    }
}
