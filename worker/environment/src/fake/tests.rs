//! Contract checks of the fake, as far as they work without a kernel.

use std::sync::Arc;

use rollout_protocol::id::WorkerId;

use super::FakeProvider;
use crate::contract::{self, ProviderUnderTest};
use crate::{CaBundle, ImageSource, Owner};

#[tokio::test]
async fn fake_provider_passes_environment_contract() {
    let scratch = tempfile::tempdir().expect("a directory");
    let provider = FakeProvider::default();
    let ca_bundle = CaBundle::new("certificates\n");
    provider.set_ca_bundle(ca_bundle.clone());
    let owner = Owner {
        host: "host".into(),
        boot_id: "boot".into(),
        pid_namespace: 1,
        pid: 1,
        start_ticks: 1,
        uid: 0,
        lock: "/nowhere".into(),
    };
    let subject = ProviderUnderTest {
        provider: Arc::new(provider.clone()),
        source: ImageSource::Named("image".into()),
        settings: FakeProvider::settings(),
        resources: Default::default(),
        owner,
        worker: "worker".parse::<WorkerId>().expect("a token"),
        scratch: scratch.path().to_owned(),
        ca_bundle,
        real_shell: false,
    };
    contract::run_all(&subject).await;
    assert_eq!(provider.leaked(), Vec::<String>::new());
    assert_eq!(provider.busy(), Vec::<String>::new());
}
