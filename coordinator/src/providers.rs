//! The providers of environments that this program was built with, a line each.

use rollout_environment::descriptor::{self, BuiltProvider};
use rollout_protocol::spec::environment::ProviderKind;

/// In the order of the descriptors.
static BUILT: &[&BuiltProvider] = &[
    #[cfg(feature = "docker")]
    &rollout_docker::PROVIDER,
    #[cfg(feature = "process")]
    &rollout_process::PROVIDER,
    #[cfg(feature = "kubernetes")]
    &rollout_kubernetes::PROVIDER,
];

/// All of them.
pub(crate) fn built() -> impl Iterator<Item = &'static BuiltProvider> {
    BUILT.iter().copied()
}

/// The provider of a kind; `None` when this program was built without it.
pub(crate) fn for_kind(kind: ProviderKind) -> Option<&'static BuiltProvider> {
    built().find(|provider| provider.kind == kind)
}

/// The kind that files and options call `name`, if this program was built with it.
pub(crate) fn kind_by_name(name: &str) -> Option<ProviderKind> {
    let kind = descriptor::by_name(name)?.kind;
    for_kind(kind).map(|provider| provider.kind)
}

/// Their names.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    built().map(|provider| provider.descriptor().name)
}

#[cfg(test)]
mod tests {
    use rollout_environment::descriptor::ProviderPaths;

    use super::*;

    #[test]
    fn provider_made_by_table_has_its_kind() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = ProviderPaths {
            image_locks: dir.path(),
            sandboxes: dir.path(),
            sandbox_helper: &["true".into()],
            kubernetes_config: None,
            ca_bundle: None,
        };
        for provider in built() {
            assert_eq!((provider.make)(&paths).kind(), provider.kind);
        }
    }

    #[test]
    fn built_providers_are_in_the_order_of_descriptors() {
        let order = descriptor::all().map(|found| found.name);
        assert_eq!(
            names().collect::<Vec<_>>(),
            order.filter(|name| kind_by_name(name).is_some()).collect::<Vec<_>>()
        );
    }
}
