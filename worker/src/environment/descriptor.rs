//! Kinds of environment providers: one descriptor for each, in one table. Everything that depends on
//! the kind is looked up here.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use rollout_protocol::spec::environment::{ProviderKind, ProviderSpec};
use serde_json::{Map, Value};

use super::{ComposeFile, Failure, Provider};

/// The kind of a job that names none.
pub const DEFAULT_KIND: ProviderKind = ProviderKind::Docker;

/// Key of a provider's name among its settings, as they are stored.
const TYPE_KEY: &str = "type";

/// A kind of provider.
#[derive(Debug, Clone, Copy)]
pub struct ProviderDescriptor {
    /// The kind.
    pub kind: ProviderKind,
    /// Its name in files, options and messages.
    pub name: &'static str,
    /// Whether files and options may name it.
    pub is_public: bool,
    /// Its name in configurations of Harbor.
    pub harbor: HarborName,
    /// Its settings.
    pub settings: &'static [ProviderSetting],
    /// Abilities of its environments.
    pub capabilities: ProviderCapabilities,
    /// Makes a provider; `None` when this program was built without it.
    pub make: Option<MakeProvider>,
    /// Checks a description of services; `None` when this program cannot tell.
    pub check_services: Option<CheckServices>,
    /// Lists the instructions of a Dockerfile that its environments cannot honour; `None` when this
    /// program cannot tell.
    pub check_dockerfile: Option<CheckDockerfile>,
}

/// Makes a provider.
pub type MakeProvider = fn(&ProviderPaths<'_>) -> Arc<dyn Provider>;

/// Checks a description of services.
pub type CheckServices = fn(&ComposeFile) -> Result<(), Failure>;

/// Lists the instructions of a Dockerfile that cannot be honoured.
pub type CheckDockerfile = fn(&str) -> Vec<UnsupportedInstruction>;

/// The name of a provider in configurations of Harbor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HarborName {
    /// A type of its own.
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
    /// One of some words.
    Words(&'static [&'static str]),
    /// Any text.
    Text,
    /// True or false.
    Flag,
}

/// Whether environments have an ability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapabilitySupport {
    /// They have it.
    Yes,
    /// They do not, for this reason.
    No(&'static str),
}

/// Abilities of environments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProviderCapabilities {
    /// They are made of images.
    pub images: CapabilitySupport,
    /// Commands run as any user.
    pub users: CapabilitySupport,
    /// The network changes between phases.
    pub phase_networks: CapabilitySupport,
    /// Graphics processors.
    pub gpus: CapabilitySupport,
    /// Services beside the environment.
    pub services: CapabilitySupport,
}

/// Places of a host and its programs that providers use.
#[derive(Debug, Clone, Copy)]
pub struct ProviderPaths<'a> {
    /// Locks by which the processes of this host build an image once.
    pub image_locks: &'a Path,
    /// Directory of sandboxes.
    pub sandboxes: &'a Path,
    /// Program and first arguments of the supervisor of sandboxes.
    pub sandbox_helper: &'a [OsString],
}

/// An instruction of a Dockerfile that cannot be honoured.
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

/// Every descriptor. Of several with one kind, the first describes the kind.
static DESCRIPTORS: &[&ProviderDescriptor] = &[
    &DOCKER,
    &PROCESS,
    #[cfg(any(test, feature = "testing"))]
    &super::fake::DESCRIPTOR,
];

/// Settings of containers.
pub(super) const DOCKER_SETTINGS: &[ProviderSetting] = &[
    ProviderSetting { key: "network", values: SettingValues::Words(&["bridge", "none"]) },
    ProviderSetting { key: "platform", values: SettingValues::Text },
    ProviderSetting { key: "runtime", values: SettingValues::Text },
];

static DOCKER: ProviderDescriptor = ProviderDescriptor {
    kind: ProviderKind::Docker,
    name: "docker",
    is_public: true,
    harbor: HarborName::Type("docker"),
    settings: DOCKER_SETTINGS,
    capabilities: ProviderCapabilities {
        images: CapabilitySupport::Yes,
        users: CapabilitySupport::Yes,
        phase_networks: CapabilitySupport::Yes,
        gpus: CapabilitySupport::Yes,
        services: CapabilitySupport::Yes,
    },
    #[cfg(feature = "docker")]
    make: Some(|paths| {
        use super::docker::{DockerOptions, DockerProvider};
        Arc::new(DockerProvider::new(DockerOptions::new(paths.image_locks)))
    }),
    #[cfg(not(feature = "docker"))]
    make: None,
    #[cfg(feature = "docker")]
    check_services: Some(super::docker::check_compose),
    #[cfg(not(feature = "docker"))]
    check_services: None,
    check_dockerfile: None,
};

static PROCESS: ProviderDescriptor = ProviderDescriptor {
    kind: ProviderKind::Process,
    name: "process",
    is_public: true,
    harbor: HarborName::Class("rollout:Process"),
    settings: &[
        ProviderSetting { key: "network", values: SettingValues::Words(&["host", "none"]) },
        ProviderSetting { key: "ignore_dockerfile", values: SettingValues::Flag },
    ],
    capabilities: ProviderCapabilities {
        images: CapabilitySupport::No("processes have no image"),
        users: CapabilitySupport::No("everything in a process sandbox runs as its root"),
        phase_networks: CapabilitySupport::No("a process sandbox keeps one"),
        gpus: CapabilitySupport::No("a process sandbox has none"),
        services: CapabilitySupport::No("a process sandbox has none"),
    },
    #[cfg(feature = "process")]
    make: Some(|paths| {
        use super::process::{DEFAULT_PIDS, ProcessConfig, ProcessProvider};
        Arc::new(ProcessProvider::new(ProcessConfig {
            base: paths.sandboxes.to_owned(),
            helper: paths.sandbox_helper.to_vec(),
            pids: DEFAULT_PIDS,
        }))
    }),
    #[cfg(not(feature = "process"))]
    make: None,
    check_services: None,
    #[cfg(feature = "process")]
    check_dockerfile: Some(super::process::dockerfile::check),
    #[cfg(not(feature = "process"))]
    check_dockerfile: None,
};

/// The kinds that files and options may name.
pub fn public_descriptors() -> impl Iterator<Item = &'static ProviderDescriptor> {
    DESCRIPTORS.iter().copied().filter(|descriptor| descriptor.is_public)
}

/// The kinds that this program was built with, and that files and options may name.
pub fn built_descriptors() -> impl Iterator<Item = &'static ProviderDescriptor> {
    public_descriptors().filter(|descriptor| descriptor.make.is_some())
}

/// The descriptor of a kind.
pub fn for_kind(kind: ProviderKind) -> &'static ProviderDescriptor {
    let found = DESCRIPTORS.iter().find(|descriptor| descriptor.kind == kind);
    found.expect("every kind has a descriptor")
}

/// The kind that files and options call `name`.
pub fn by_name(name: &str) -> Option<&'static ProviderDescriptor> {
    public_descriptors().find(|descriptor| descriptor.name == name)
}

/// The names of kinds in a sentence: `docker or process`.
pub fn names() -> String {
    let names: Vec<_> = public_descriptors().map(|descriptor| descriptor.name).collect();
    names.join(" or ")
}

/// The settings of a provider that were given and those that have a default, by key.
pub fn provider_settings(spec: &ProviderSpec) -> Map<String, Value> {
    let document = serde_json::to_value(spec).expect("settings have only text keys");
    let Value::Object(mut settings) = document else { unreachable!("a spec is an object") };
    settings.remove(TYPE_KEY);
    settings
}

impl ProviderDescriptor {
    /// The provider with `settings`, whose keys and values are those of [`ProviderDescriptor::settings`].
    ///
    /// # Panics
    /// When they are not.
    pub fn spec(&self, mut settings: Map<String, Value>) -> ProviderSpec {
        settings.insert(TYPE_KEY.to_owned(), Value::String(self.kind.to_string()));
        let spec = serde_json::from_value(Value::Object(settings));
        spec.expect("the table describes the settings of every provider")
    }

    /// The provider with the settings that it has by default.
    pub fn default_spec(&self) -> ProviderSpec {
        self.spec(Map::new())
    }
}

impl CapabilitySupport {
    /// Whether it is there.
    pub const fn is_supported(self) -> bool {
        matches!(self, Self::Yes)
    }

    /// The reason why it is not there.
    pub const fn unsupported_reason(self) -> Option<&'static str> {
        match self {
            Self::Yes => None,
            Self::No(why) => Some(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_names_match_protocol_kinds() {
        for descriptor in public_descriptors() {
            assert_eq!(descriptor.name, descriptor.kind.to_string());
            assert_eq!(for_kind(descriptor.kind).name, descriptor.name);
            assert_eq!(by_name(descriptor.name).map(|found| found.kind), Some(descriptor.kind));
            assert_eq!(descriptor.default_spec().kind(), descriptor.kind);
        }
        assert_eq!(names(), "docker or process");
        assert!(by_name(super::super::fake::DESCRIPTOR.name).is_none(), "users cannot name it");
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

    #[test]
    fn provider_made_by_descriptor_has_its_kind() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = ProviderPaths {
            image_locks: dir.path(),
            sandboxes: dir.path(),
            sandbox_helper: &["true".into()],
        };
        for descriptor in DESCRIPTORS {
            let Some(make) = descriptor.make else { continue };
            assert_eq!(make(&paths).kind(), descriptor.kind, "{}", descriptor.name);
        }
    }
}
