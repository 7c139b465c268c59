//! Images that are built in pods: once for the cluster, and by another worker if one is lost.

use std::fs;
use std::path::PathBuf;

use data_encoding::BASE64;
use rollout_base::supervise::{self, Task};
use rollout_environment::{BuildProxies, FailureKind, ImageRequest};
use rollout_kubernetes::BuilderOptions;
use rollout_protocol::digest::Digest;
use rollout_tests::kube::RequestFault;
use rollout_tests::wait;
use serde_json::{Value, json};

use super::*;

/// The program that stands for BuildKit.
const BUILDCTL: &[u8] = include_bytes!("buildctl.sh");

/// Image of the pods that build.
const BUILDER: &str = "registry.test/buildkit:rootless";

/// A cluster with a builder, and a build context.
struct BuildFixture {
    double: KubeDouble,
    context: tempfile::TempDir,
}

impl BuildFixture {
    /// A fixture whose Dockerfile has these lines after its first one.
    fn new(steps: &str) -> Self {
        let double = KubeDouble::start();
        let image = ImageFixture::new().user(1000).pushes();
        let image = image.file("/usr/local/bin/buildctl", BUILDCTL, 0o755);
        let image = image.file("/usr/local/bin/buildctl-daemonless.sh", BUILDCTL, 0o755);
        double.image(BUILDER, image);
        let context = tempfile::tempdir().expect("a directory");
        fs::create_dir(context.path().join("data")).expect("a directory");
        fs::write(context.path().join("data/text"), "of the context\n").expect("a file");
        let dockerfile = format!("FROM debian:12\n{steps}\n");
        fs::write(context.path().join("Dockerfile"), dockerfile).expect("a file");
        Self { double, context }
    }

    fn builder() -> BuilderOptions {
        BuilderOptions {
            registry: "registry.test/built".to_owned(),
            buildkit: None,
            image: BUILDER.to_owned(),
            push_secret: None,
            insecure: false,
            registry_mirrors: BTreeMap::new(),
            resources: BTreeMap::new(),
            takeover_after_sec: 3,
        }
    }

    /// The provider of a worker.
    fn worker(&self) -> Arc<KubernetesProvider> {
        self.worker_with(|_| ())
    }

    fn worker_with(&self, change: impl FnOnce(&mut BuilderOptions)) -> Arc<KubernetesProvider> {
        provider(self.options(change))
    }

    fn options(&self, change: impl FnOnce(&mut BuilderOptions)) -> KubernetesOptions {
        let mut builder = Self::builder();
        change(&mut builder);
        let limits = KubernetesOptions { schedule_timeout_sec: 30, ..options(&self.double) };
        KubernetesOptions { builder: Some(builder), start_timeout_sec: 30, ..limits }
    }

    fn request(&self) -> ImageRequest {
        let text = fs::read(self.context.path().join("Dockerfile")).expect("a file");
        ImageRequest {
            source: ImageSource::Context {
                digest: Digest::sha256(&text),
                dir: self.context.path().to_owned(),
            },
            force_build: false,
            timeout: DEADLINE,
            log: None,
            proxies: BuildProxies::default(),
            settings: request(IMAGE).settings,
            labels: labels(),
        }
    }

    fn flag(&self, name: &str) -> PathBuf {
        self.double.registry().join(name)
    }

    /// Builds so far, with names of images.
    fn builds(&self) -> Vec<String> {
        let text = fs::read_to_string(self.flag("builds")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    async fn wait_for_builds(&self, count: usize) {
        let what = format!("{count} builds");
        wait::until_async(DEADLINE, &what, async || self.builds().len() >= count).await;
    }

    /// The record of the only image.
    fn record(&self) -> Value {
        let maps = self.double.objects("configmaps");
        assert_eq!(maps.len(), 1, "{maps:?}");
        maps[0]["data"].clone()
    }

    /// The objects of the cluster in which a secret could be read.
    fn shown(&self) -> String {
        let objects = ["pods", "configmaps", "events"].iter();
        let objects = objects.flat_map(|plural| self.double.objects(plural));
        objects.map(|object| object.to_string()).collect()
    }

    async fn assert_no_pods(&self) {
        let what = "no pod is left";
        wait::until_async(DEADLINE, what, async || self.double.pods().is_empty()).await;
    }

    /// The name of the only pod.
    fn pod(&self) -> String {
        let pods = self.double.pods();
        assert_eq!(pods.len(), 1, "{pods:?}");
        pods[0]["metadata"]["name"].as_str().expect("a name").to_owned()
    }
}

async fn prepared(provider: &KubernetesProvider, request: ImageRequest) -> Image {
    provider.prepare(request).await.unwrap_or_else(|failure| panic!("{}", failure.chain()))
}

/// A worker that can be killed: its tasks end without cleaning up.
struct KillableWorker {
    runtime: tokio::runtime::Runtime,
    _preparing: Task<()>,
}

impl KillableWorker {
    fn prepare(provider: Arc<KubernetesProvider>, request: ImageRequest) -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let entered = runtime.enter();
        let preparing = supervise::spawn("killable worker", async move {
            drop(provider.prepare(request).await);
        });
        drop(entered);
        Self { runtime, _preparing: preparing }
    }

    fn kill(self) {
        self.runtime.shutdown_background();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn image_is_built_once_for_all_trials_of_two_workers() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new("RUN grep -q context data/text");
    let workers = [fixture.worker(), fixture.worker()];
    let asked = (0..20).map(|trial| prepared(&workers[trial % 2], fixture.request()));
    let images = futures_util::future::join_all(asked).await;
    assert_eq!(fixture.builds().len(), 1, "{:?}", fixture.builds());
    assert_eq!(images.iter().filter(|image| image.made).count(), 1);
    let reference = images[0].reference.clone();
    assert!(reference.starts_with("registry.test/built/task:"), "{reference}");
    assert!(images.iter().all(|image| image.reference == reference));
    let record = fixture.record();
    assert_eq!(record["reference"], reference);
    assert_eq!(record["build"], Value::Null, "the claim has ended: {record}");
    fixture.assert_no_pods().await;

    // A later worker takes the record, and the image can be used.
    let later = fixture.worker();
    let image = prepared(&later, fixture.request()).await;
    assert_eq!((image.reference.as_str(), image.made), (reference.as_str(), false));
    assert_eq!(fixture.builds().len(), 1);
    let environment = later.create(CreateRequest { image, ..request(IMAGE) }).await;
    let environment = environment.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    let (_, out, _) = run(environment.as_ref(), "head -n 1 /built-from").await;
    assert_eq!(out, b"FROM debian:12\n");
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn image_is_built_by_external_daemon() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new("RUN true");
    let buildkit = Some("tcp://buildkitd.test:1234".to_owned());
    let worker = fixture.worker_with(|builder| builder.buildkit = buildkit);
    assert!(prepared(&worker, fixture.request()).await.made);
    fixture.assert_no_pods().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_build_runs_once_per_run_and_replaces_record() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new("RUN true");
    let (first, second) = (fixture.worker(), fixture.worker());
    prepared(&first, fixture.request()).await;
    let mut forced = ImageRequest { force_build: true, ..fixture.request() };
    forced.labels.run = RunId::from_bytes([7; 16]);
    assert!(prepared(&first, forced.clone()).await.made);
    assert!(!prepared(&first, forced.clone()).await.made);
    assert!(!prepared(&second, forced).await.made, "the record names the run");
    let builds = fixture.builds();
    assert_eq!(builds.len(), 2, "{builds:?}");
    assert!(builds[0].ends_with(" yes") && builds[1].ends_with(" no"), "cache: {builds:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_forced_runs_build_an_image_twice_for_all_their_trials() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new("RUN true");
    let workers = [fixture.worker(), fixture.worker()];
    for trial in 0..6_u8 {
        let mut forced = ImageRequest { force_build: true, ..fixture.request() };
        forced.labels.run = RunId::from_bytes([trial % 2; 16]);
        prepared(&workers[usize::from(trial / 2) % 2], forced).await;
    }
    assert_eq!(fixture.builds().len(), 2, "{:?}", fixture.builds());
}

#[tokio::test(flavor = "multi_thread")]
async fn build_that_fails_names_its_step_and_is_not_repeated() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new("RUN echo the last words; exit 7");
    let worker = fixture.worker();
    let log = fixture.context.path().join("logs/build.log");
    for trial in 0..3 {
        let asked = ImageRequest { log: Some(log.clone()), ..fixture.request() };
        let failure = worker.prepare(asked).await.expect_err("it fails");
        assert_eq!(failure.kind, FailureKind::Refused, "{trial}: {}", failure.chain());
        for text in ["the last words", "exit code: 7"] {
            assert!(failure.message.contains(text), "{trial}: {failure}");
        }
        let written = fs::read_to_string(&log).expect("a log");
        assert!(written.contains("the last words"), "{written}");
    }
    assert_eq!(fixture.builds().len(), 1);
    fixture.assert_no_pods().await;
    assert_eq!(fixture.record()["build"], Value::Null, "the claim has ended");
    let other = fixture.worker().prepare(fixture.request()).await.expect_err("it fails");
    assert_eq!(other.kind, FailureKind::Refused, "{}", other.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn builder_at_fault_is_tried_again_a_few_times() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new("DAEMON");
    let worker = fixture.worker();
    for _ in 0..5 {
        let failure = worker.prepare(fixture.request()).await.expect_err("it fails");
        assert_eq!(failure.kind, FailureKind::Service, "{}", failure.chain());
        assert!(failure.message.contains("could not connect"), "{failure}");
    }
    assert_eq!(fixture.builds().len(), 3);
    let absent =
        fixture.worker_with(|builder| "registry.test/absent:1".clone_into(&mut builder.image));
    let failure = absent.prepare(fixture.request()).await.expect_err("no builder");
    assert_eq!(failure.kind, FailureKind::Service, "{}", failure.chain());
    assert!(failure.message.contains("registry.test/absent:1"), "{failure}");
    fixture.assert_no_pods().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_record_is_not_the_fault_of_a_task() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new("RUN true");
    let worker = fixture.worker();
    for verb in ["create", "patch"] {
        let why = "admission webhook \"policy.test\" denied the request: no config maps";
        let refusal = RequestFault::Error(403, why.to_owned());
        fixture.double.faults().requests(verb, "configmaps", 100, refusal);
        let failure = worker.prepare(fixture.request()).await.expect_err("refused");
        assert_eq!(failure.kind, FailureKind::Service, "{verb}: {}", failure.chain());
        assert!(failure.message.contains(why), "{verb}: {failure}");
        fixture.assert_no_pods().await;
        fixture.double.faults().clear();
    }
    assert!(prepared(&worker, fixture.request()).await.made, "the refusals are not kept");
}

/// A step that waits for a file in the registry's directory.
const WAIT: &str = "RUN while [ ! -e /registry/go ]; do sleep 0.05; done";

#[tokio::test(flavor = "multi_thread")]
async fn build_of_evicted_pod_is_repeated_by_its_worker() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new(WAIT);
    let worker = fixture.worker();
    let evicting = async {
        fixture.wait_for_builds(1).await;
        let message = "The node was low on resource: memory.";
        fixture.double.faults().evict(NAMESPACE, &fixture.pod(), message);
        fixture.wait_for_builds(2).await;
        fs::write(fixture.flag("go"), "").expect("a file");
    };
    let (image, ()) = tokio::join!(prepared(&worker, fixture.request()), evicting);
    assert!(image.made);
    assert_eq!(fixture.builds().len(), 2);
    fixture.assert_no_pods().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn build_of_killed_worker_is_taken_over() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new(WAIT);
    let killed = KillableWorker::prepare(fixture.worker(), fixture.request());
    fixture.wait_for_builds(1).await;
    let (survivor, pod) = (fixture.worker(), fixture.pod());
    let killing = async {
        // A live claim is not taken: its renewals, two a second, outlast the time of a takeover.
        let renewals = || fixture.record()["renewal"].as_str().and_then(|text| text.parse().ok());
        wait::until_async(DEADLINE, "renewals", async || renewals() >= Some(9)).await;
        assert_eq!(fixture.builds().len(), 1, "the first worker lives");
        killed.kill();
        fixture.wait_for_builds(2).await;
        assert_ne!(fixture.pod(), pod, "the first pod is gone");
        fs::write(fixture.flag("go"), "").expect("a file");
    };
    let (image, ()) = tokio::join!(prepared(&survivor, fixture.request()), killing);
    assert!(image.made);
    fixture.assert_no_pods().await;
    assert_eq!(fixture.record()["reference"], image.reference);
}

#[tokio::test(flavor = "multi_thread")]
async fn build_without_callers_or_time_leaves_no_pod_and_no_claim() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new(WAIT);
    let worker = fixture.worker();
    {
        let mut preparing = std::pin::pin!(worker.prepare(fixture.request()));
        tokio::select! {
            _ = &mut preparing => panic!("it waits"),
            () = fixture.wait_for_builds(1) => {}
        }
    }
    fixture.assert_no_pods().await;
    wait::until_async(DEADLINE, "no claim", async || fixture.record()["build"].is_null()).await;
    let short = ImageRequest { timeout: Duration::from_secs(3), ..fixture.request() };
    let failure = worker.prepare(short).await.expect_err("it waits");
    assert_eq!(failure.kind, FailureKind::TimedOut, "{}", failure.chain());
    fixture.assert_no_pods().await;
    assert_eq!(fixture.record()["build"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_for_build_of_another_worker_is_no_failed_build() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new(WAIT);
    let (first, second) = (fixture.worker(), fixture.worker());
    let waiting = async {
        fixture.wait_for_builds(1).await;
        let short = ImageRequest { timeout: Duration::from_millis(500), ..fixture.request() };
        for _ in 0..4 {
            let failure = second.prepare(short.clone()).await.expect_err("it waits");
            assert_eq!(failure.kind, FailureKind::Service, "{}", failure.chain());
            assert!(failure.message.contains("another worker builds it"), "{failure}");
            assert!(!failure.message.contains("not built again"), "{failure}");
        }
        fs::write(fixture.flag("go"), "").expect("a file");
    };
    let (image, ()) = tokio::join!(prepared(&first, fixture.request()), waiting);
    assert!(image.made);
    assert!(!prepared(&second, fixture.request()).await.made);
    assert_eq!(fixture.builds().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_that_another_worker_took_is_given_up() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new(WAIT);
    let worker = fixture.worker();
    let taking = async {
        fixture.wait_for_builds(1).await;
        fixture.double.change("configmaps", NAMESPACE, |record| {
            record["data"]["build"] = "other".into();
        });
        // It stops, waits until the other claim lapses, and builds again.
        fixture.assert_no_pods().await;
        fixture.wait_for_builds(2).await;
        fs::write(fixture.flag("go"), "").expect("a file");
    };
    let (image, ()) = tokio::join!(prepared(&worker, fixture.request()), taking);
    assert!(image.made);
    fixture.assert_no_pods().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn push_secret_is_used_and_shown_nowhere() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new("RUN true");
    let password = "c2VjcmV0LW9mLXRoZS1yZWdpc3RyeQ==";
    fs::write(fixture.flag("password"), password).expect("a file");
    let failure = fixture.worker().prepare(fixture.request()).await.expect_err("no credentials");
    assert_eq!(failure.kind, FailureKind::Refused, "{}", failure.chain());

    let config = json!({"auths": {"registry.test": {"auth": password}}}).to_string();
    let secret = json!({
        "metadata": {"name": "push", "namespace": NAMESPACE},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": BASE64.encode(config.as_bytes())},
    });
    fixture.double.create("secrets", NAMESPACE, secret).expect("created");
    let with_secret = |builder: &mut BuilderOptions| builder.push_secret = Some("push".to_owned());
    let worker = fixture.worker_with(with_secret);
    assert!(prepared(&worker, fixture.request()).await.made);
    let shown = fixture.shown();
    assert!(!shown.contains(password), "{shown}");
    let read = |request: &rollout_tests::kube::RecordedRequest| request.resource == "secrets";
    assert!(!fixture.double.requests().iter().any(read), "workers read no secrets");

    let absent = |builder: &mut BuilderOptions| builder.push_secret = Some("absent".to_owned());
    let mut changed = fixture.request();
    changed.source = ImageSource::Context {
        digest: Digest::sha256(b"another"),
        dir: fixture.context.path().to_owned(),
    };
    let failure = fixture.worker_with(absent).prepare(changed).await.expect_err("no secret");
    assert_eq!(failure.kind, FailureKind::Service, "{}", failure.chain());
    assert!(failure.message.contains("absent"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn builder_and_its_commands_get_the_proxies_that_objects_do_not_show() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new(&format!(
        "RUN [ \"$HTTPS_PROXY\" = http://me:its-password@proxy.test:3128 ]\n\
         RUN [ \"$NO_PROXY\" = corp,localhost,127.0.0.1,::1,.svc,.cluster.local ]\n\
         RUN case ,$daemon_no_proxy, in ,corp,*,.svc,.cluster.local,registry.test,*) ;; *) exit 1 ;; esac\n\
         {WAIT}",
    ));
    let env = [("HTTPS_PROXY", "http://me:its-password@proxy.test:3128"), ("NO_PROXY", "corp")];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let asked = ImageRequest { proxies: BuildProxies::of(&env), ..fixture.request() };
    let looking = async {
        fixture.wait_for_builds(1).await;
        let shown = fixture.shown();
        fs::write(fixture.flag("go"), "").expect("a file");
        shown
    };
    let worker = fixture.worker();
    let (image, shown) = tokio::join!(prepared(&worker, asked), looking);
    assert!(image.made);
    assert!(shown.contains(BUILDER) && !shown.contains("its-password"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn builder_and_its_commands_have_the_ca_bundle_and_the_context_stays() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new(
        "RUN [ \"$PIP_CERT\" = /rollout/ca-bundle.pem ] && grep -q certificates \"$SSL_CERT_FILE\"\n\
         RUN grep -q certificates \"$daemon_bundle\" && ! grep -q ^ARG Dockerfile",
    );
    let bundle = CaBundle::new("certificates\n");
    let worker = provider_with(fixture.options(|_| ()), Some(bundle));
    assert!(prepared(&worker, fixture.request()).await.made);
}

#[tokio::test(flavor = "multi_thread")]
async fn build_pod_respects_quota_with_its_resources() {
    if !ignored::is_root_or_ignored("which can replace programs of a container") {
        return;
    }
    let fixture = BuildFixture::new("RUN true");
    let quota = json!({
        "metadata": {"name": "limits", "namespace": NAMESPACE},
        "spec": {"hard": {"limits.memory": "8Gi", "requests.cpu": "4"}},
    });
    fixture.double.create("resourcequotas", NAMESPACE, quota).expect("created");
    let failure = fixture.worker().prepare(fixture.request()).await.expect_err("no resources");
    assert_eq!(failure.kind, FailureKind::Service, "{}", failure.chain());
    assert!(failure.message.contains("must specify"), "{failure}");
    let amounts = [("cpu", "1"), ("memory", "1Gi")];
    let amounts = amounts.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into();
    let worker = fixture.worker_with(|builder| builder.resources = amounts);
    assert!(prepared(&worker, fixture.request()).await.made);
}
