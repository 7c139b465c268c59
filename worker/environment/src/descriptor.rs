//! Descriptors of the provider kinds, one each, in one table. Everything that depends on the kind
//! is looked up here. What needs a provider's code is the [`BuiltProvider`] of its crate.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use rollout_protocol::spec::environment::{ProviderKind, ProviderSpec};
use serde_json::{Map, Value};

use super::{CaBundle, ComposeFile, Failure, Provider};

/// The kind of a job that does not set one.
pub const DEFAULT_KIND: ProviderKind = ProviderKind::Docker;

/// The names that files and options may give, as references show them.
pub const NAMES: &str = "docker|process|kubernetes";

/// Key of the provider's name in its stored settings.
const TYPE_KEY: &str = "type";

/// Keys of settings that no document has: a server sets them.
const SERVER_KEYS: [&str; 2] = ["guards_builds", "allowed_registries"];

/// A kind of provider, as every program knows it.
#[derive(Debug, Clone, Copy)]
pub struct ProviderDescriptor {
    /// The kind.
    pub kind: ProviderKind,
    /// Its name in files, options and messages.
    pub name: &'static str,
    /// Its name in Harbor configurations.
    pub harbor: HarborName,
    /// Its settings.
    pub settings: &'static [ProviderSetting],
    /// Abilities of its environments.
    pub capabilities: ProviderCapabilities,
}

/// A kind of provider with the code that a program was built with.
#[derive(Debug, Clone, Copy)]
pub struct BuiltProvider {
    /// The kind.
    pub kind: ProviderKind,
    /// Creates a provider.
    pub make: MakeProvider,
    /// Checks a Compose file; `None` when every service is refused by its capabilities.
    pub check_services: Option<CheckServices>,
    /// Lists the Dockerfile instructions that its environments do not support; `None` when they support
    /// all.
    pub check_dockerfile: Option<CheckDockerfile>,
}

/// Creates a provider.
pub type MakeProvider = fn(&ProviderPaths<'_>) -> Arc<dyn Provider>;

/// Checks a Compose file.
pub type CheckServices = fn(&ComposeFile) -> Result<(), Failure>;

/// Lists the Dockerfile instructions that are not supported.
pub type CheckDockerfile = fn(&str) -> Vec<UnsupportedInstruction>;

/// The name of a provider in Harbor configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HarborName {
    /// An environment type.
    Type(&'static str),
    /// The path of a class.
    Class(&'static str),
}

/// A setting of a provider. It is absent by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProviderSetting {
    /// Its key.
    pub key: &'static str,
    /// Its values.
    pub values: SettingValues,
}

/// Values of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingValues {
    /// One of a fixed set of words.
    Words(&'static [&'static str]),
    /// Any text.
    Text,
    /// True or false.
    Flag,
    /// A whole number in a range.
    Integer(u64, u64),
    /// A list of texts.
    TextList,
    /// Texts by names that the user chooses.
    TextMap,
    /// A table whose form the platform defines.
    Table,
    /// A list of such tables.
    TableList,
}

/// Whether environments have a capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapabilitySupport {
    /// Supported.
    Yes,
    /// Not supported, for this reason.
    No(&'static str),
}

/// Capabilities of environments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProviderCapabilities {
    /// Made from images.
    pub images: CapabilitySupport,
    /// Commands run as any user.
    pub users: CapabilitySupport,
    /// Different networks in different phases.
    pub phase_networks: CapabilitySupport,
    /// Access to the hosts of an allowlist only.
    pub allowlists: CapabilitySupport,
    /// GPUs.
    pub gpus: CapabilitySupport,
    /// Services beside the environment.
    pub services: CapabilitySupport,
    /// Compose files of a job, which change the environment and its services.
    pub compose_overlays: CapabilitySupport,
}

/// Paths and programs of the host that providers use.
#[derive(Debug, Clone, Copy)]
pub struct ProviderPaths<'a> {
    /// Directory of the locks that make the processes of this host build an image once.
    pub image_locks: &'a Path,
    /// Directory of sandboxes.
    pub sandboxes: &'a Path,
    /// Program and first arguments of the supervisor of sandboxes.
    pub sandbox_helper: &'a [OsString],
    /// The operator's file of options of the provider `kubernetes`.
    pub kubernetes_config: Option<&'a Path>,
    /// The CA bundle of environments.
    pub ca_bundle: Option<&'a CaBundle>,
}

/// A Dockerfile instruction that is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Dockerfile line {line}: {instruction}: {reason}")]
pub struct UnsupportedInstruction {
    /// Line of the instruction, from 1.
    pub line: usize,
    /// Its name, in capitals.
    pub instruction: String,
    /// The reason.
    pub reason: String,
}

/// All descriptors.
static DESCRIPTORS: &[&ProviderDescriptor] = &[&DOCKER, &PROCESS, &KUBERNETES];

/// Whether the worker has the proxy over which environments reach the hosts of an allowlist.
const ALLOWLISTS: CapabilitySupport = if cfg!(feature = "egress") {
    CapabilitySupport::Yes
} else {
    CapabilitySupport::No("this program was built without `gateway`")
};

static DOCKER: ProviderDescriptor = ProviderDescriptor {
    kind: ProviderKind::Docker,
    name: ProviderKind::Docker.as_str(),
    harbor: HarborName::Type("docker"),
    settings: &[
        ProviderSetting { key: "network", values: SettingValues::Words(&["bridge", "none"]) },
        ProviderSetting { key: "platform", values: SettingValues::Text },
        ProviderSetting { key: "runtime", values: SettingValues::Text },
    ],
    capabilities: ProviderCapabilities {
        images: CapabilitySupport::Yes,
        users: CapabilitySupport::Yes,
        phase_networks: CapabilitySupport::Yes,
        allowlists: ALLOWLISTS,
        gpus: CapabilitySupport::Yes,
        services: CapabilitySupport::Yes,
        compose_overlays: CapabilitySupport::Yes,
    },
};

static PROCESS: ProviderDescriptor = ProviderDescriptor {
    kind: ProviderKind::Process,
    name: ProviderKind::Process.as_str(),
    harbor: HarborName::Class("rollout:Process"),
    settings: &[
        ProviderSetting { key: "network", values: SettingValues::Words(&["host", "none"]) },
        ProviderSetting { key: "ignore_dockerfile", values: SettingValues::Flag },
    ],
    capabilities: ProviderCapabilities {
        images: CapabilitySupport::No("a process sandbox has no image"),
        users: CapabilitySupport::No("everything in a process sandbox runs as root"),
        phase_networks: CapabilitySupport::No("a process sandbox keeps its initial network"),
        allowlists: ALLOWLISTS,
        gpus: CapabilitySupport::No("a process sandbox has none"),
        services: CapabilitySupport::No("a process sandbox has none"),
        compose_overlays: CapabilitySupport::No("a process sandbox has no services"),
    },
};

static KUBERNETES: ProviderDescriptor = ProviderDescriptor {
    kind: ProviderKind::Kubernetes,
    name: ProviderKind::Kubernetes.as_str(),
    harbor: HarborName::Class("rollout:Kubernetes"),
    settings: &[
        ProviderSetting { key: "network", values: SettingValues::Words(&["cluster", "none"]) },
        ProviderSetting { key: "namespace", values: SettingValues::Text },
        ProviderSetting { key: "service_account", values: SettingValues::Text },
        ProviderSetting { key: "runtime_class", values: SettingValues::Text },
        ProviderSetting { key: "priority_class", values: SettingValues::Text },
        ProviderSetting { key: "node_selector", values: SettingValues::TextMap },
        ProviderSetting { key: "tolerations", values: SettingValues::TableList },
        ProviderSetting { key: "affinity", values: SettingValues::Table },
        ProviderSetting { key: "image_pull_secrets", values: SettingValues::TextList },
        ProviderSetting { key: "cpu_request", values: SettingValues::Text },
        ProviderSetting { key: "memory_request", values: SettingValues::Text },
        ProviderSetting { key: "run_as_non_root", values: SettingValues::Flag },
        ProviderSetting { key: "run_as_user", values: SettingValues::Integer(0, MAX_USER) },
        ProviderSetting {
            key: "active_deadline_sec",
            values: SettingValues::Integer(60, MAX_ACTIVE_DEADLINE_SEC),
        },
    ],
    capabilities: ProviderCapabilities {
        images: CapabilitySupport::Yes,
        users: CapabilitySupport::Yes,
        phase_networks: CapabilitySupport::Yes,
        allowlists: CapabilitySupport::No(
            "a network policy knows addresses, not names; use `environment.type: docker`",
        ),
        gpus: CapabilitySupport::Yes,
        services: CapabilitySupport::Yes,
        compose_overlays: CapabilitySupport::No(
            "the services of a pod are those of its task; use `environment.type: docker`",
        ),
    },
};

/// Largest number of a user on Linux.
const MAX_USER: u64 = u32::MAX as u64 - 1;

/// Longest life of a pod: a year. Kubernetes has a limit in the same order.
const MAX_ACTIVE_DEADLINE_SEC: u64 = 365 * 24 * 3600;

/// All descriptors.
pub fn all() -> impl Iterator<Item = &'static ProviderDescriptor> {
    DESCRIPTORS.iter().copied()
}

/// The descriptor of a kind.
pub fn for_kind(kind: ProviderKind) -> &'static ProviderDescriptor {
    let found = DESCRIPTORS.iter().find(|descriptor| descriptor.kind == kind);
    found.expect("every kind has a descriptor")
}

/// Other names of kinds in files and options: messages and results have the name of the descriptor.
const OTHER_NAMES: &[(&str, ProviderKind)] = &[("k8s", ProviderKind::Kubernetes)];

/// The descriptor of the kind that files and options call `name`.
pub fn by_name(name: &str) -> Option<&'static ProviderDescriptor> {
    let other = OTHER_NAMES.iter().find(|(other, _)| *other == name).map(|(_, kind)| *kind);
    all().find(|descriptor| descriptor.name == name || other == Some(descriptor.kind))
}

/// The names of kinds in a sentence: `docker, process or kubernetes`.
pub fn names() -> String {
    let names: Vec<_> = all().map(|descriptor| descriptor.name).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// The provider settings that were set or have a default, by key.
pub fn provider_settings(spec: &ProviderSpec) -> Map<String, Value> {
    let document = serde_json::to_value(spec).expect("settings have only text keys");
    let Value::Object(mut settings) = document else { unreachable!("a spec is an object") };
    settings.remove(TYPE_KEY);
    for key in SERVER_KEYS {
        settings.remove(key);
    }
    settings
}

impl BuiltProvider {
    /// The descriptor of its kind.
    pub fn descriptor(&self) -> &'static ProviderDescriptor {
        for_kind(self.kind)
    }
}

impl ProviderDescriptor {
    /// The provider spec with `settings`, whose keys and values match
    /// [`ProviderDescriptor::settings`].
    ///
    /// # Panics
    /// When they do not match.
    pub fn spec(&self, mut settings: Map<String, Value>) -> ProviderSpec {
        settings.insert(TYPE_KEY.to_owned(), Value::String(self.kind.to_string()));
        let spec = serde_json::from_value(Value::Object(settings));
        spec.expect("the table describes the settings of every provider")
    }

    /// The provider spec with default settings.
    pub fn default_spec(&self) -> ProviderSpec {
        self.spec(Map::new())
    }
}

impl CapabilitySupport {
    /// Whether the capability is supported.
    pub const fn is_supported(self) -> bool {
        matches!(self, Self::Yes)
    }

    /// The reason why the capability is not supported.
    pub const fn unsupported_reason(self) -> Option<&'static str> {
        match self {
            Self::Yes => None,
            Self::No(why) => Some(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn provider_names_match_protocol_kinds() {
        for descriptor in all() {
            let serialized = serde_json::to_value(descriptor.kind).expect("serializable");
            assert_eq!(serialized, descriptor.name);
            assert_eq!(for_kind(descriptor.kind).name, descriptor.name);
            assert_eq!(by_name(descriptor.name).map(|found| found.kind), Some(descriptor.kind));
            assert_eq!(descriptor.default_spec().kind(), descriptor.kind);
        }
        assert_eq!(names().replace(", ", "|").replace(" or ", "|"), NAMES);
        assert_eq!(by_name("k8s").map(|found| found.name), Some("kubernetes"));
    }

    #[test]
    fn provider_settings_match_spec_keys_and_values() {
        for descriptor in DESCRIPTORS {
            for setting in descriptor.settings {
                let values: Vec<Value> = match setting.values {
                    SettingValues::Words(words) => {
                        words.iter().map(|word| (*word).into()).collect()
                    }
                    SettingValues::Text => vec!["text".into()],
                    SettingValues::Flag => vec![true.into(), false.into()],
                    SettingValues::Integer(least, most) => vec![least.into(), most.into()],
                    SettingValues::TextList => vec![json!(["a", "b"])],
                    SettingValues::TextMap => vec![json!({"a": "b"})],
                    SettingValues::Table => vec![json!({"a": {"b": [1]}})],
                    SettingValues::TableList => vec![json!([{"a": 1}])],
                };
                for value in values {
                    let given = Map::from_iter([(setting.key.to_owned(), value.clone())]);
                    let spec = descriptor.spec(given);
                    assert_eq!(provider_settings(&spec).get(setting.key), Some(&value), "{spec:?}");
                }
            }
            let spec = descriptor.default_spec();
            for key in provider_settings(&spec).keys() {
                assert!(descriptor.settings.iter().any(|setting| setting.key == key), "{key}");
            }
        }
    }
}
