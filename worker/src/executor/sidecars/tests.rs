use std::sync::{Arc, Mutex};

use rollout_environment::fake::{FakeCall, FakeProvider};
use rollout_environment::{EnvironmentPurpose, Image, ImageSource};
use rollout_protocol::spec::task::NetworkPolicy;

use super::*;
use crate::executor::ManagedEnvironment;
use crate::work::trial::testing::labels;

/// A recorded call, and the number of environments at that time.
type SidecarCall = (String, usize);

/// An injected fault of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SidecarFault {
    Start,
    Ready,
    Hang,
    StopOnce,
    PanicAtStop,
}

/// A service that records its calls.
#[derive(Debug)]
struct RecordingSidecar {
    name: &'static str,
    fault: Option<SidecarFault>,
    provider: FakeProvider,
    calls: Arc<Mutex<Vec<SidecarCall>>>,
}

impl RecordingSidecar {
    fn record_call(&self, call: &str) {
        let existing = self.provider.existing().len();
        self.calls.lock().expect("not poisoned").push((format!("{call} {}", self.name), existing));
    }

    fn fail_at(&mut self, at: SidecarFault) -> Result<(), Failure> {
        match self.fault {
            Some(fault) if fault == at => Err(Failure::new(FailureKind::Service, "as told")),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Sidecar for RecordingSidecar {
    fn name(&self) -> &str {
        self.name
    }

    async fn start(&mut self, request: &mut CreateRequest) -> Result<(), Failure> {
        self.record_call("start");
        request.env.insert(self.name.to_uppercase(), "known".to_owned());
        self.fail_at(SidecarFault::Start)
    }

    async fn ready(&mut self, environment: &dyn Environment) -> Result<(), Failure> {
        assert!(!environment.id().is_empty());
        self.record_call("ready");
        if self.fault == Some(SidecarFault::Hang) {
            std::future::pending::<()>().await;
        }
        self.fail_at(SidecarFault::Ready)
    }

    fn env(&self) -> BTreeMap<String, String> {
        ["LAST", self.name].map(|name| (name.to_owned(), self.name.to_owned())).into()
    }

    async fn stop(&mut self) -> Result<(), Failure> {
        self.record_call("stop");
        assert!(self.fault != Some(SidecarFault::PanicAtStop), "as told");
        let stopped = self.fail_at(SidecarFault::StopOnce);
        self.fault = None;
        stopped
    }
}

/// An environment with the services `a` and `b`.
struct SidecarFixture {
    provider: FakeProvider,
    calls: Arc<Mutex<Vec<SidecarCall>>>,
    environment: ManagedEnvironment,
}

impl SidecarFixture {
    fn new() -> Self {
        let (provider, calls) = (FakeProvider::default(), Arc::default());
        Self { provider, calls, environment: ManagedEnvironment::default() }
    }

    /// Creates the environment; `b` has the fault.
    async fn create(&mut self, fault: Option<SidecarFault>) -> bool {
        let service = |name, fault| -> Box<dyn Sidecar> {
            let (provider, calls) = (self.provider.clone(), Arc::clone(&self.calls));
            Box::new(RecordingSidecar { name, fault, provider, calls })
        };
        let services = vec![service("a", None), service("b", fault)];
        let request = CreateRequest {
            image: Image::found("image"),
            source: ImageSource::Named("image".to_owned()),
            resources: Default::default(),
            env: BTreeMap::new(),
            workdir: None,
            network: NetworkPolicy::Public,
            compose: None,
            uploads: Vec::new(),
            settings: FakeProvider::settings(),
            labels: labels(),
            purpose: EnvironmentPurpose::Agent,
        };
        let provider = Arc::new(self.provider.clone());
        self.environment.create_beside(provider, request, services).await.is_ok()
    }

    /// The calls since the last query, with the number of environments that existed.
    fn recorded_calls(&self) -> Vec<SidecarCall> {
        std::mem::take(&mut *self.calls.lock().expect("not poisoned"))
    }
}

fn sidecar_calls(calls: &[(&str, usize)]) -> Vec<SidecarCall> {
    calls.iter().map(|(call, existing)| ((*call).to_owned(), *existing)).collect()
}

#[tokio::test]
async fn sidecars_start_before_environment_and_stop_after() {
    let mut scene = SidecarFixture::new();
    assert!(scene.create(None).await);
    let begun = [("start a", 0), ("start b", 0), ("ready a", 1), ("ready b", 1)];
    assert_eq!(scene.recorded_calls(), sidecar_calls(&begun));
    let (request, _) = scene.provider.requests().remove(0);
    assert_eq!(request.env.into_keys().collect::<Vec<_>>(), ["A", "B"]);
    let env = [("LAST", "b"), ("a", "a"), ("b", "b")];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(scene.environment.sidecar_env(), env.into());
    assert!(scene.environment.remove().await.failure.is_none());
    assert_eq!(scene.recorded_calls(), sidecar_calls(&[("stop b", 0), ("stop a", 0)]));
    assert!(scene.environment.sidecar_env().is_empty());
}

#[tokio::test]
async fn sidecar_start_failure_creates_no_environment() {
    let mut scene = SidecarFixture::new();
    assert!(!scene.create(Some(SidecarFault::Start)).await);
    let ended = [("start a", 0), ("start b", 0), ("stop b", 0), ("stop a", 0)];
    assert_eq!(scene.recorded_calls(), sidecar_calls(&ended));
    assert!(!scene.provider.calls().contains(&FakeCall::Create));
    assert!(scene.environment.is_empty());
}

#[tokio::test]
async fn environment_create_failure_stops_sidecars() {
    use rollout_environment::fake::{FaultEffect, FaultTrigger};
    let mut scene = SidecarFixture::new();
    scene
        .provider
        .fault(FaultTrigger::Every(FakeCall::Create), FaultEffect::Fail(FailureKind::Service));
    assert!(!scene.create(None).await);
    assert_eq!(scene.recorded_calls()[2..], sidecar_calls(&[("stop b", 0), ("stop a", 0)]));
    assert!(scene.environment.is_empty());
}

#[tokio::test]
async fn sidecar_not_ready_is_stopped_at_environment_removal() {
    let mut scene = SidecarFixture::new();
    assert!(!scene.create(Some(SidecarFault::Ready)).await);
    assert!(scene.environment.running().is_some());
    drop(scene.recorded_calls());
    assert!(scene.environment.remove().await.failure.is_none());
    assert_eq!(scene.recorded_calls(), sidecar_calls(&[("stop b", 0), ("stop a", 0)]));
}

#[tokio::test(start_paused = true)]
async fn environment_create_cancelled_stops_sidecars_at_removal() {
    let mut scene = SidecarFixture::new();
    let creating = scene.create(Some(SidecarFault::Hang));
    assert!(tokio::time::timeout(Duration::from_secs(1), creating).await.is_err());
    drop(scene.recorded_calls());
    assert!(!scene.environment.is_empty());
    assert!(scene.environment.remove().await.failure.is_none());
    assert_eq!(scene.recorded_calls(), sidecar_calls(&[("stop b", 0), ("stop a", 0)]));
    assert_eq!(scene.provider.existing(), Vec::<String>::new());
}

#[tokio::test]
async fn sidecar_stop_failure_is_retried_at_next_removal() {
    let mut scene = SidecarFixture::new();
    assert!(scene.create(Some(SidecarFault::StopOnce)).await);
    drop(scene.recorded_calls());
    assert!(scene.environment.remove().await.failure.is_some());
    assert_eq!(scene.recorded_calls(), sidecar_calls(&[("stop b", 0), ("stop a", 0)]));
    assert!(scene.environment.remove().await.failure.is_none());
    assert_eq!(scene.recorded_calls(), sidecar_calls(&[("stop b", 0)]));
}

#[tokio::test]
async fn sidecar_panic_at_stop_still_stops_others() {
    let mut scene = SidecarFixture::new();
    assert!(scene.create(Some(SidecarFault::PanicAtStop)).await);
    drop(scene.recorded_calls());
    let failure = scene.environment.remove().await.failure.expect("a failure");
    assert_eq!(failure.kind, FailureKind::Bug);
    assert_eq!(scene.recorded_calls(), sidecar_calls(&[("stop b", 0), ("stop a", 0)]));
}
