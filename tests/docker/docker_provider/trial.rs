//! The provider contract, and the number of engine calls of a whole trial.

use std::time::Instant;

use rollout_environment::contract::{self, ProviderUnderTest};
use rollout_environment::{CaBundle, ImageSource, Upload};
use rollout_protocol::spec::environment::{DockerSettings, ProviderSpec};
use tokio::io::AsyncReadExt as _;

use crate::docker_provider::fixture::{BASE, DockerFixture, output, owner};

#[tokio::test(flavor = "multi_thread")]
async fn docker_provider_passes_contract() {
    let Some(lab) = DockerFixture::open().await else { return };
    let ca_bundle = CaBundle::new("certificates\n");
    let subject = ProviderUnderTest {
        provider: lab.provider_with_bundle(ca_bundle.clone()) as _,
        source: ImageSource::Named(BASE.to_owned()),
        settings: ProviderSpec::Docker(DockerSettings::default()),
        resources: lab.resources,
        owner: owner(),
        worker: "docker-contract".parse().expect("a token"),
        scratch: lab.scratch.path().to_owned(),
        ca_bundle,
        real_shell: true,
    };
    contract::run_all(&subject).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trial_makes_thirteen_engine_calls() {
    let Some(lab) = DockerFixture::open().await else { return };
    // The first container on an engine detects whether storage can be limited.
    lab.plain().await.destroy().await.expect("destroyed");
    let (calls, began) = (lab.provider.calls(), Instant::now());
    let dir = |path: &str| Upload::Dir { path: path.to_owned() };
    let script = |path: &str| Upload::File {
        path: path.to_owned(),
        bytes: "echo 1 > /logs/verifier/reward.txt".into(),
        executable: true,
    };
    let first = vec![dir("/logs"), dir("/logs/agent"), dir("/logs/verifier"), script("/a/run.sh")];
    let environment = lab.create(lab.base(), first).await;
    output(environment.as_ref(), ". /a/run.sh").await;
    let tar = lab.archive(&[("test.sh", b"echo 1 > /logs/verifier/reward.txt")]);
    let fresh = Upload::FreshDir { path: "/logs/verifier".into() };
    let tests = Upload::Archive { path: "/tests".into(), tar };
    environment.copy_to(vec![fresh, tests]).await.expect("placed");
    output(environment.as_ref(), ". /tests/test.sh").await;
    let mut logs = environment.copy_from("/logs").await.expect("readable").expect("there");
    let mut bytes = Vec::new();
    logs.read_to_end(&mut bytes).await.expect("whole");
    environment.destroy().await.expect("destroyed");
    assert!(bytes.windows(10).any(|window| window == b"reward.txt"));
    // Create, upload, start, inspect; twice create, start, inspect for a command; upload, download,
    // remove. On a busy machine each command takes another inspection every quarter of a second.
    let looks = began.elapsed().as_millis() as u64 / 250;
    let calls = lab.provider.calls() - calls;
    assert!((13..=13 + looks).contains(&calls), "{calls} calls");
}
