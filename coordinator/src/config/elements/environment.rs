//! `environment`: provider, provider settings, prices and cleanup policy.

use std::collections::BTreeMap;
use std::path::Path;

use rollout_environment::descriptor::{self, ProviderSetting, SettingValues};
use rollout_protocol::spec::environment::{
    EnvironmentRates, EnvironmentSpec, PreservePolicy, ProviderKind, ProviderSpec,
};
use rollout_protocol::spec::task::{McpServer, NetworkPolicy};
use serde_json::{Map, Value};

use super::super::diagnostics::ErrorKind;
use super::super::keys::KeyTableEntry;
use super::super::reader::{Field, Fields, Scalar};
use super::super::task::{McpKeys, read_host, read_mcp_servers};
use super::compose_overlays::{self, ComposeOverlays};
use super::mcp_secrets;
use super::proxies::{self, ProxyKeys};
use super::resources::{OverrideKeys, ResourceOverrides, read_overrides};
use super::timeouts;
use super::variables::{self, Variable};

keys! {
    /// The keys of `environment` in job files.
    pub(crate) table EnvironmentKeys {
        kind as "type": Value(descriptor::NAMES), descriptor::DEFAULT_KIND.as_str(),
            "Provider of the environments.";
        force_build: Value("true|false"), "false",
            "Build images without cache, even for tasks that name an image.";
        preserve_env: Value("never|always|on_failure|true|false"), "never",
            "Environments to keep after their trials.";
        preserve_env_older as "preserveEnv": Value("true|false"), "false",
            "Older spelling of `preserve_env`.";
        provider_config: Value("table"), "", "Settings of the provider, and prices.",
            "provider_config" => ProviderKeys::ALL,
            "" => OverrideKeys::ALL;
        max_starts_per_minute: Value("integer"), "no limit",
            "Environment starts per minute on each worker.";
        env: Value("table NAME = text"), "",
            "Variables of every script, which override those of tasks' environments; `${NAME:-default}`.";
        extra_allowed_hosts: Value("list of hosts"), "none",
            "Hosts that tasks without network or with an allowlist may reach, as `allowed_hosts` of tasks.";
        extra_docker_compose: HostFile("list of paths", "put a compose file into each task"), "none",
            "Docker: compose files that are merged onto those of tasks, for agents' environments; relative to the file, \
             and paths in them to the `environment/` of the task.";
        mcp_servers: Value("list"), "none",
            "MCP servers for agents, instead of those of tasks with the same names.",
            "mcp_servers[]" => McpKeys::ALL;
        proxy: Value("table"), "none",
            "Proxies of the network, for image builds, installations, agents and verifiers.",
            "proxy" => ProxyKeys::ALL;
        start_grace_sec: Value("seconds"), "the task's",
            "Time between the start of an environment and its first command, for every task without \
             healthcheck.";
    }

    /// The keys of `provider_config`.
    pub(crate) table ProviderKeys {
        network: Value("bridge|none (docker), host|none (process), cluster|none (kubernetes)"),
            "bridge (docker), host (process), cluster (kubernetes)",
            "Network of the environments.";
        platform: Value("text"), "engine default", "Docker: platform, such as linux/arm64.";
        runtime: Value("text"), "engine default", "Docker: OCI runtime, such as runsc.";
        ignore_dockerfile: Value("true|false"), "false",
            "Process: run tasks even if their image provides more than the sandbox.";
        namespace: Value("text"), "the operator's", "Kubernetes: namespace of the pods.";
        service_account: Value("text"), "none", "Kubernetes: service account of the pods.";
        runtime_class: Value("text"), "the operator's", "Kubernetes: runtime class, such as gvisor.";
        priority_class: Value("text"), "the operator's", "Kubernetes: priority class of the pods.";
        node_selector: Value("table"), "the operator's", "Kubernetes: labels that a node must have.";
        tolerations: Value("list of tables"), "the operator's",
            "Kubernetes: tolerations, as in the manifest of a pod.";
        affinity: Value("table"), "the operator's",
            "Kubernetes: affinity, as in the manifest of a pod.";
        image_pull_secrets: Value("list of text"), "the operator's",
            "Kubernetes: secrets with the credentials of image registries.";
        cpu_request: Value("text"), "the limit",
            "Kubernetes: processors that the scheduler reserves, such as 500m.";
        memory_request: Value("text"), "the limit",
            "Kubernetes: memory that the scheduler reserves, such as 512Mi.";
        run_as_non_root: Value("true|false"), "false", "Kubernetes: refuse images whose user is root.";
        run_as_user: Value("integer"), "the image's", "Kubernetes: number of the user of the pods.";
        active_deadline_sec: Value("integer"), "the operator's",
            "Kubernetes: seconds after which the cluster ends a pod whatever happens.";
        cpu_hour: Value("number"), "0", "Price per CPU-hour.";
        gib_hour: Value("number"), "0", "Price per GiB-hour of memory.";
        start: Value("number"), "0", "Price per environment start.";
    }
}

/// Words of the format for providers that this version does not support.
const UNSUPPORTED_PROVIDERS: &[&str] = &["modal", "apple", "fly"];

/// Cleanup policies and their words.
pub(crate) const PRESERVE_POLICIES: &[(&str, PreservePolicy)] = &[
    ("never", PreservePolicy::Never),
    ("always", PreservePolicy::Always),
    ("on_failure", PreservePolicy::OnFailure),
];

/// Largest number of environment starts per minute: far above any engine.
const MAX_STARTS_PER_MINUTE: u64 = 100_000;

/// `environment` as written in the job file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EnvironmentConfig {
    /// Provider and settings.
    pub(crate) spec: EnvironmentSpec,
    /// Resource overrides.
    pub(crate) resources: ResourceOverrides,
    /// Environment starts per minute on each worker.
    pub(crate) starts_per_minute: Option<u32>,
    /// Time between the start of an environment and its first command, seconds.
    pub(crate) start_grace_sec: Option<f64>,
    /// Changes of the tasks' environments.
    pub(crate) changes: EnvironmentChanges,
    /// Compose files for the agents' environments.
    pub(crate) overlays: ComposeOverlays,
}

/// Changes that a job makes to the environments of its tasks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EnvironmentChanges {
    /// Variables, over those of the tasks.
    pub env: BTreeMap<String, Variable>,
    /// Hosts that may be reached in tasks without network or with an allowlist.
    pub hosts: Vec<String>,
    /// MCP servers for agents, instead of those of tasks with the same names.
    pub mcp_servers: Vec<McpServer>,
    /// The headers of `mcp_servers`.
    pub headers: Vec<Variable>,
}

impl EnvironmentChanges {
    /// All values that may refer to variables.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.env.values().chain(&self.headers)
    }

    /// The servers of a task in the job.
    pub(crate) fn servers(&self, of_task: &[McpServer]) -> Vec<McpServer> {
        let is_named = |name: &str| self.mcp_servers.iter().any(|server| server.name == name);
        let kept = of_task.iter().filter(|server| !is_named(&server.name));
        kept.chain(&self.mcp_servers).cloned().collect()
    }
}

/// A policy that also allows these hosts.
pub(crate) fn with_hosts(policy: &NetworkPolicy, hosts: &[String]) -> NetworkPolicy {
    match policy {
        closed if hosts.is_empty() => closed.clone(),
        NetworkPolicy::Public => NetworkPolicy::Public,
        NetworkPolicy::NoNetwork => NetworkPolicy::Allowlist(hosts.to_vec()),
        NetworkPolicy::Allowlist(listed) => {
            NetworkPolicy::Allowlist(listed.iter().chain(hosts).cloned().collect())
        }
    }
}

/// Reads the hosts of an allowlist.
pub(crate) fn read_hosts(field: &Field<'_>) -> Vec<String> {
    field.items().unwrap_or_default().iter().filter_map(read_host).collect()
}

/// Reads the environment of the job `file`.
pub(crate) fn read(field: &Field<'_>, file: &Path) -> EnvironmentConfig {
    let mut spec = EnvironmentSpec {
        provider: default_provider(),
        force_build: false,
        preserve_env: PreservePolicy::Never,
        rates: EnvironmentRates::default(),
    };
    let Some(mut fields) = field.mapping() else {
        let resources = ResourceOverrides::default();
        return EnvironmentConfig {
            spec,
            resources,
            starts_per_minute: None,
            start_grace_sec: None,
            changes: EnvironmentChanges::default(),
            overlays: ComposeOverlays::default(),
        };
    };
    let kind = provider(&fields.take(EnvironmentKeys::kind));
    let config = fields.take(EnvironmentKeys::provider_config);
    if let Some(kind) = kind {
        (spec.provider, spec.rates) = provider_config(kind, &config);
    }
    spec.force_build = fields.take(EnvironmentKeys::force_build).bool().unwrap_or(false);
    spec.preserve_env = preserve(&mut fields);
    let resources = read_overrides(&mut fields);
    let starts =
        fields.take(EnvironmentKeys::max_starts_per_minute).integer(&(1..=MAX_STARTS_PER_MINUTE));
    let start_grace_sec =
        timeouts::read_start_grace(&fields.take(EnvironmentKeys::start_grace_sec));
    let overlays = fields.take(EnvironmentKeys::extra_docker_compose);
    let overlays = compose_overlays::read(&overlays, kind, file);
    let mut headers = Vec::new();
    let servers = fields.take(EnvironmentKeys::mcp_servers);
    let mcp_servers = read_mcp_servers(&servers, &mut headers);
    mcp_secrets::reject(&servers, &mcp_servers);
    let proxies = proxies::read(&fields.take(EnvironmentKeys::proxy));
    let mut env = variables::read(&fields.take(EnvironmentKeys::env));
    proxies.add_to(&mut env);
    let changes = EnvironmentChanges {
        mcp_servers,
        headers,
        env,
        hosts: read_hosts(&fields.take(EnvironmentKeys::extra_allowed_hosts)),
    };
    fields.finish();
    let starts_per_minute = starts.and_then(|n| u32::try_from(n).ok());
    EnvironmentConfig { spec, resources, starts_per_minute, start_grace_sec, changes, overlays }
}

/// The provider of an environment that names none.
pub(crate) fn default_provider() -> ProviderSpec {
    descriptor::for_kind(descriptor::DEFAULT_KIND).default_spec()
}

/// The provider; docker if absent. `None` if it is wrong: `provider_config` cannot be checked then.
pub(crate) fn provider(field: &Field<'_>) -> Option<ProviderKind> {
    if !field.is_present() {
        return Some(descriptor::DEFAULT_KIND);
    }
    let word = field.non_empty_string()?;
    if UNSUPPORTED_PROVIDERS.contains(&word.as_str()) {
        let found = format!("`{word}`, which is not available yet");
        field.reject(ErrorKind::Unavailable, found, descriptor::names());
        return None;
    }
    let found = descriptor::by_name(&word);
    if found.is_none() {
        let known: Vec<_> = descriptor::all().map(|found| found.name).collect();
        field.reject_unknown(&word, &known);
    }
    found.map(|found| found.kind)
}

/// Reads the settings of a provider, and prices.
pub(crate) fn provider_config(
    kind: ProviderKind,
    field: &Field<'_>,
) -> (ProviderSpec, EnvironmentRates) {
    let descriptor = descriptor::for_kind(kind);
    let Some(mut config) = field.mapping() else {
        return (descriptor.default_spec(), EnvironmentRates::default());
    };
    let mut settings = Map::new();
    for ProviderSetting { key, values } in descriptor.settings {
        let declared = KeyTableEntry::find(ProviderKeys::ALL, key);
        let field = config.take(declared.expect("settings of providers are declared"));
        let value = match values {
            SettingValues::Words(words) => {
                let words: Vec<_> = words.iter().map(|word| (*word, *word)).collect();
                field.keyword(&words).map(Value::from)
            }
            SettingValues::Text => field.non_empty_string().map(Value::from),
            SettingValues::Flag => field.bool().map(Value::from),
            SettingValues::Integer(least, most) => {
                field.integer(&(*least..=*most)).map(Value::from)
            }
            SettingValues::TextList => texts(&field),
            SettingValues::TextMap => text_map(&field),
            SettingValues::Table => field.json().map(Value::Object),
            SettingValues::TableList => tables(&field),
        };
        settings.extend(value.map(|value| ((*key).to_owned(), value)));
    }
    let rates = rates(&mut config);
    config.finish();
    (descriptor.spec(settings), rates)
}

/// Reads a list of texts; one that is wrong is rejected and left out.
fn texts(field: &Field<'_>) -> Option<Value> {
    let items = field.items()?;
    Some(items.iter().filter_map(Field::non_empty_string).map(Value::from).collect())
}

/// Reads texts by name.
fn text_map(field: &Field<'_>) -> Option<Value> {
    let entries = field.entries()?.into_iter();
    let texts = entries.filter_map(|(name, value)| Some((name.to_owned(), value.text()?.into())));
    Some(Value::Object(texts.collect()))
}

/// Reads a list of tables.
fn tables(field: &Field<'_>) -> Option<Value> {
    let items = field.items()?;
    Some(items.iter().filter_map(Field::json).map(Value::Object).collect())
}

fn rates(config: &mut Fields<'_>) -> EnvironmentRates {
    let mut rate = |key| {
        config.take(key).number("a price of 0 or more", |v| (0.0..=1e9).contains(&v)).unwrap_or(0.0)
    };
    EnvironmentRates {
        cpu_hour: rate(ProviderKeys::cpu_hour),
        gib_hour: rate(ProviderKeys::gib_hour),
        start: rate(ProviderKeys::start),
    }
}

/// Reads `preserve_env`, or `preserveEnv`, its older spelling.
fn preserve(fields: &mut Fields<'_>) -> PreservePolicy {
    let newer = fields.take(EnvironmentKeys::preserve_env);
    let older = fields.take(EnvironmentKeys::preserve_env_older);
    if newer.is_present() && older.is_present() {
        let found = format!("also `{}`", newer.location().key);
        older.reject(ErrorKind::Conflict, found, "only one of the two");
    }
    let policy = |keep| if keep { PreservePolicy::Always } else { PreservePolicy::Never };
    let newer = match newer.is_present().then(|| newer.scalar()).flatten() {
        Some(Scalar::Bool(keep)) => Some(policy(keep)),
        Some(_) => newer.keyword(PRESERVE_POLICIES),
        None => None,
    };
    let older = older.bool().map(policy);
    newer.or(older).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rollout_protocol::spec::environment::{DockerSettings, ProcessNetwork, ProcessSettings};

    use super::super::testing::read_field;
    use super::*;

    fn read(field: &Field<'_>) -> EnvironmentConfig {
        super::read(field, Path::new("job.yaml"))
    }

    fn faults(text: &str) -> Vec<(String, ErrorKind)> {
        read_field(text, read).1
    }

    #[test]
    fn environment_without_type_defaults_to_docker() {
        let (EnvironmentConfig { spec, resources, starts_per_minute, .. }, faults, _) =
            read_field("~", read);
        assert_eq!((faults, starts_per_minute), (Vec::new(), None));
        assert_eq!(spec.provider, ProviderSpec::Docker(DockerSettings::default()));
        assert_eq!(resources, ResourceOverrides::default());
    }

    #[test]
    fn variables_of_the_job_win_over_its_proxies() {
        for (env, expected) in [
            ("NO_PROXY: b", ["NO_PROXY=b", "no_proxy=b"]),
            ("no_proxy: b", ["NO_PROXY=b", "no_proxy=b"]),
            ("no_proxy: b, NO_PROXY: c", ["NO_PROXY=c", "no_proxy=b"]),
            ("", ["NO_PROXY=a", "no_proxy=a"]),
        ] {
            let text = format!("{{proxy: {{no_proxy: a}}, env: {{{env}}}}}");
            let (EnvironmentConfig { changes, .. }, found, _) = read_field(&text, read);
            assert_eq!(found, [], "{env}");
            let variables = changes.env.iter();
            let variables =
                variables.map(|(name, value)| format!("{name}={}", value.template.as_str()));
            assert_eq!(variables.collect::<Vec<_>>(), expected, "{env}");
        }
    }

    #[test]
    fn provider_config_is_checked_by_provider_type() {
        let text = "{type: process, provider_config: {network: none, ignore_dockerfile: true, cpu_hour: 0.5, start: 1}, max_starts_per_minute: 9}";
        let (EnvironmentConfig { spec, starts_per_minute, .. }, found, _) = read_field(text, read);
        assert_eq!((found, starts_per_minute), (Vec::new(), Some(9)));
        let settings = ProcessSettings { network: ProcessNetwork::None, ignore_dockerfile: true };
        assert_eq!(spec.provider, ProviderSpec::Process(settings));
        assert_eq!(spec.rates, EnvironmentRates { cpu_hour: 0.5, gib_hour: 0.0, start: 1.0 });

        let text = "{provider_config: {network: host, privileged: true, gib_hour: -1}}";
        assert_eq!(
            faults(text),
            [
                ("x.provider_config.network".to_owned(), ErrorKind::BadValue),
                ("x.provider_config.gib_hour".to_owned(), ErrorKind::BadValue),
                ("x.provider_config.privileged".to_owned(), ErrorKind::UnknownKey),
            ]
        );
    }

    #[test]
    fn provider_unknown_or_unavailable_is_refused() {
        let unavailable = ("x.type".to_owned(), ErrorKind::Unavailable);
        assert_eq!(faults("{type: modal, provider_config: {app_name: a}}"), [unavailable]);
        assert_eq!(faults("{type: dokcer}"), [("x.type".to_owned(), ErrorKind::BadValue)]);
    }

    #[test]
    fn preserve_env_in_either_spelling_is_parsed() {
        for (text, expected) in [
            ("{preserve_env: on_failure}", PreservePolicy::OnFailure),
            ("{preserve_env: true}", PreservePolicy::Always),
            ("{preserve_env: false}", PreservePolicy::Never),
            ("{preserveEnv: true}", PreservePolicy::Always),
            ("{preserveEnv: false}", PreservePolicy::Never),
        ] {
            let (EnvironmentConfig { spec, .. }, faults, _) = read_field(text, read);
            assert_eq!((spec.preserve_env, faults), (expected, Vec::new()), "{text}");
        }
        for (text, key, kind) in [
            ("{preserve_env: never, preserveEnv: false}", "x.preserveEnv", ErrorKind::Conflict),
            ("{preserve_env: sometimes}", "x.preserve_env", ErrorKind::BadValue),
            ("{preserve_env: 1}", "x.preserve_env", ErrorKind::WrongType),
            ("{preserveEnv: always}", "x.preserveEnv", ErrorKind::WrongType),
        ] {
            assert_eq!(faults(text), [(key.to_owned(), kind)], "{text}");
        }
    }

    #[test]
    fn provider_settings_are_all_declared_as_config_keys() {
        for found in descriptor::all() {
            for ProviderSetting { key, .. } in found.settings {
                assert!(
                    KeyTableEntry::find(ProviderKeys::ALL, key).is_some(),
                    "{}: {key}",
                    found.name
                );
            }
        }
    }
}
