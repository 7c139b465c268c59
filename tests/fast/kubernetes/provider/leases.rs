//! Leases of pods: renewed by a live worker, and the end of pods without one.

use rollout_base::supervise;
use rollout_environment::{DeadOwners, FailureKind, ReapReport};
use rollout_tests::kube::RequestFault;
use rollout_tests::tcp_proxy::TcpProxy;
use rollout_tests::wait;
use serde_json::Value;

use super::*;

/// Seconds of a lease.
const LEASE: u64 = 6;

/// Nothing is known of any owner, as of processes of other hosts.
struct Unknown;

impl DeadOwners for Unknown {
    fn is_dead(&self, _: &Owner) -> bool {
        false
    }
}

fn worker(double: &KubeDouble, kubeconfig: Option<std::path::PathBuf>) -> Arc<KubernetesProvider> {
    let mut options = options(double);
    options.abandoned_after_sec = LEASE;
    options.clock_skew_sec = 0;
    options.kubeconfig = kubeconfig.or(options.kubeconfig);
    provider(options)
}

fn cluster() -> KubeDouble {
    let double = KubeDouble::start();
    double.image(IMAGE, ImageFixture::new());
    double
}

async fn reap(provider: &KubernetesProvider) -> ReapReport {
    provider.reap(&Unknown).await.unwrap_or_else(|failure| panic!("{}", failure.chain()))
}

async fn reap_until_removed(provider: &KubernetesProvider) {
    wait::until_async(DEADLINE, "the pod is removed", async || {
        let report = reap(provider).await;
        assert!(report.failed.is_empty(), "{report:?}");
        !report.removed.is_empty()
    })
    .await;
}

/// Until when the only pod has an owner.
fn alive_until(double: &KubeDouble) -> u64 {
    let pods = double.pods();
    assert_eq!(pods.len(), 1, "{pods:?}");
    let until = &pods[0]["metadata"]["annotations"]["rollout.dev/alive-until"];
    until.as_str().and_then(|until| until.parse().ok()).expect("seconds")
}

fn now() -> u64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).expect("after the epoch").as_secs()
}

/// Creates a pod by a worker that is killed at once.
fn orphan(double: &KubeDouble) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let worker = worker(double, None);
    let entered = runtime.enter();
    let (sender, receiver) = std::sync::mpsc::channel();
    let task = supervise::spawn("killable worker", async move {
        sender.send(worker.create(request(IMAGE)).await.is_ok()).expect("received");
        std::future::pending::<()>().await;
    });
    drop(entered);
    assert!(receiver.recv().expect("sent"), "created");
    runtime.shutdown_background();
    drop(task);
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_of_live_worker_is_never_removed() {
    let double = cluster();
    let (live, other) = (worker(&double, None), worker(&double, None));
    let environment = live.create(request(IMAGE)).await.expect("created");
    let first = alive_until(&double);
    wait::until_async(DEADLINE, "the first lease is over", async || {
        let report = reap(&other).await;
        assert_eq!((report.kept, report.removed.len()), (1, 0), "{report:?}");
        now() > first + 2
    })
    .await;
    assert!(alive_until(&double) > first, "it was renewed");
    assert_eq!(run(environment.as_ref(), "echo lives").await.1, b"lives\n");
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_of_killed_worker_is_removed_after_its_lease() {
    let double = cluster();
    orphan(&double);
    let until = alive_until(&double);
    reap_until_removed(&worker(&double, None)).await;
    assert!(now() >= until, "not before its lease is over");
    assert_eq!(double.pods(), Vec::<Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_of_live_worker_is_kept_by_host_whose_clock_is_ahead() {
    let double = cluster();
    let ahead = Duration::from_secs(6 * 3600);
    double.faults().clock_behind(ahead);
    let owner = worker(&double, None);
    let environment = owner.create(request(IMAGE)).await.expect("created");
    assert!(alive_until(&double) <= now() - ahead.as_secs() + LEASE, "by the clock of the cluster");
    let report = reap(&worker(&double, None)).await;
    assert_eq!((report.kept, report.removed.len()), (1, 0), "{report:?}");
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_renewed_during_removal_keeps_its_pod() {
    let double = cluster();
    orphan(&double);
    let until = alive_until(&double);
    wait::until_async(DEADLINE, "the lease is over", async || now() > until + 1).await;
    let slow = RequestFault::Slow(Duration::from_secs(2));
    double.faults().requests("delete", "pods", 1, slow);
    let other = worker(&double, None);
    let renewing = async {
        let deleting = || double.requests().iter().any(|request| request.verb == "delete");
        wait::until_async(DEADLINE, "a deletion", async || deleting()).await;
        double.change("pods", NAMESPACE, |pod| {
            let until = (now() + 600).to_string();
            pod["metadata"]["annotations"]["rollout.dev/alive-until"] = until.into();
        });
    };
    let (report, ()) = tokio::join!(reap(&other), renewing);
    assert_eq!((report.kept, report.removed.len()), (1, 0), "{report:?}");
    assert_eq!(double.pods().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn trial_of_worker_that_was_cut_off_ends_as_lost() {
    let double = cluster();
    let port = double.url().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let proxy = TcpProxy::for_port(port);
    let text = std::fs::read_to_string(double.kubeconfig()).expect("a file");
    let text = text.replace(&format!(":{port}"), &format!(":{}", proxy.port()));
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::write(&kubeconfig, text).expect("a file");
    let (cut_off, other) = (worker(&double, Some(kubeconfig)), worker(&double, None));
    let environment = cut_off.create(request(IMAGE)).await.expect("created");
    let running = environment.exec(shell("sleep 1000"), Arc::new(Captured::default()));
    let losing = async {
        proxy.cut();
        reap_until_removed(&other).await;
        proxy.restore();
    };
    let both = async { tokio::join!(running, losing) };
    let (ended, ()) = tokio::time::timeout(2 * DEADLINE, both).await.expect("it is noticed");
    let failure = ended.expect_err("its pod is gone");
    assert_eq!(failure.kind, FailureKind::Gone, "{}", failure.chain());
    environment.destroy().await.expect("nothing is left");
}
