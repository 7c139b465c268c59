//! Many pods of one worker process at once.

use std::process::Command;

use super::*;

/// Pods at once.
const PODS: usize = 500;

/// Kubeconfig of the process that this test starts again as a worker.
const CHILD: &str = "ROLLOUT_TEST_KUBERNETES_CHILD";

/// Largest memory of the process, MiB. Each call has buffers of 16 KiB for two streams in three
/// places, and a read buffer of a websocket of 128 KiB: about 250 KiB, or 122 MiB for all. The
/// process itself takes about 30 MiB.
const MAX_MEMORY_MIB: u64 = 256;

#[test]
fn five_hundred_pods_of_one_process_need_bounded_memory() {
    if std::env::var_os(CHILD).is_some() {
        return;
    }
    let double = KubeDouble::start();
    double.image(IMAGE, ImageFixture::new().lazy());
    // The name of a test has no name of a program before it.
    let (_, module) = module_path!().split_once("::").expect("a module of a program");
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", &format!("{module}::worker_with_many_pods"), "--nocapture"])
        .env(CHILD, double.kubeconfig())
        .output()
        .expect("started");
    let printed = String::from_utf8_lossy(&child.stdout);
    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{printed}{errors}");
    assert_eq!(double.peak_pods(), PODS);
    assert!(double.pods().is_empty(), "{} pods are left", double.pods().len());
    let peak =
        printed.lines().find_map(|line| line.split_once("peak KiB: ")?.1.parse::<u64>().ok());
    let mib = peak.expect("a figure") / 1024;
    println!("{PODS} pods at once: {mib} MiB at most");
    assert!(mib < MAX_MEMORY_MIB, "{mib} MiB");
}

/// The process whose memory is measured.
#[tokio::test(flavor = "multi_thread")]
async fn worker_with_many_pods() {
    let Some(kubeconfig) = std::env::var_os(CHILD) else { return };
    // As the program does.
    rollout_base::open_files::raise_limit();
    let options = KubernetesOptions {
        kubeconfig: Some(kubeconfig.into()),
        max_pending_pods: 50,
        ..KubernetesOptions::default()
    };
    let provider = provider(options);
    let barrier = Arc::new(tokio::sync::Barrier::new(PODS));
    let trials = (0..PODS).map(|_| {
        let (provider, barrier) = (Arc::clone(&provider), Arc::clone(&barrier));
        async move {
            let made = provider.create(request(IMAGE)).await;
            let environment = made.unwrap_or_else(|f| panic!("{}", f.chain()));
            barrier.wait().await;
            let captured = Arc::new(Captured::default());
            let exit = environment.exec(shell("sleep 2; seq 1 5000"), captured.clone()).await;
            assert_eq!(exit.unwrap_or_else(|f| panic!("{}", f.chain())).code, 0);
            assert_eq!(captured.bytes(OutputStream::Stdout).len(), 23_893);
            environment.destroy().await.unwrap_or_else(|f| panic!("{}", f.chain()));
        }
    });
    futures_util::future::join_all(trials).await;
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a figure");
    println!("peak KiB: {}", peak.trim().trim_end_matches(" kB"));
}
