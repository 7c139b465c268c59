//! `pods/exec` under both protocols, and its failures.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{Api, AttachParams};
use rollout_tests::ignored;
use rollout_tests::kube::ExecFault;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::kubernetes::client::{create, double, pod, pods, run, wait_for};

/// Result of an exec.
struct Executed {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: Option<Status>,
}

async fn exec(
    pods: &Api<Pod>,
    script: &str,
    input: Option<&[u8]>,
) -> Result<Executed, kube::Error> {
    let params = AttachParams::default().container("main").stdin(input.is_some());
    let mut process = pods.exec("one", ["sh", "-c", script], &params).await?;
    let stdin = process.stdin();
    // The client reads and writes in one loop: input is written while output is read.
    let write = async {
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            stdin.write_all(input).await.expect("writable");
            stdin.shutdown().await.expect("writable");
        }
    };
    let (mut stdout, mut stderr) = (process.stdout().expect("one"), process.stderr().expect("one"));
    let status = process.take_status().expect("one");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = {
        let read = async {
            let (out, err, ()) =
                tokio::join!(stdout.read_to_end(&mut out), stderr.read_to_end(&mut err), write);
            out.expect("readable");
            err.expect("readable");
        };
        tokio::pin!(read, status);
        tokio::select! {
            () = &mut read => status.await,
            found = &mut status => {
                if found.is_some() {
                    read.await;
                } else {
                    // After an error, the client's streams have no end.
                    drop(tokio::time::timeout(Duration::from_secs(1), read).await);
                }
                found
            }
        }
    };
    Ok(Executed { stdout: out, stderr: err, status })
}

fn cause(status: &Status) -> (String, String) {
    let details = status.details.clone().expect("details");
    let cause = details.causes.expect("causes").remove(0);
    (cause.reason.unwrap_or_default(), cause.message.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_streams_and_exit_code_are_separate() {
    let (double, client) = double().await;
    let pods = pods(&client);
    run(&pods, pod("one", "task:1")).await;
    for protocol in ["v5", "v4"] {
        double.faults().exec_protocols(protocol);
        let executed = exec(&pods, "pwd; echo bad >&2; exit 3", None).await.expect("run");
        assert_eq!(executed.stdout, b"/app\n", "{protocol}");
        assert_eq!(executed.stderr, b"bad\n");
        let status = executed.status.expect("a status");
        assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"));
        assert_eq!(cause(&status), ("ExitCode".to_owned(), "3".to_owned()));
        let ended = exec(&pods, "kill -9 $$", None).await.expect("run").status.expect("a status");
        assert_eq!(cause(&ended).1, "137");
        let large = exec(&pods, "seq 400000", None).await.expect("run");
        assert_eq!(large.stdout.len(), 2_688_895);
        assert_eq!(large.status.expect("a status").status.as_deref(), Some("Success"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stdin_ends_by_half_close_of_v5() {
    let (_double, client) = double().await;
    let pods = pods(&client);
    run(&pods, pod("one", "task:1")).await;
    let input = vec![b'x'; 1_000_000];
    let executed = exec(&pods, "cat; echo end", Some(&input)).await.expect("run");
    assert_eq!(executed.stdout.len(), input.len() + 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn program_missing_is_internal_error() {
    let (_double, client) = double().await;
    let pods = pods(&client);
    run(&pods, pod("one", "task:1")).await;
    let params = AttachParams::default();
    let mut process = pods.exec("one", ["no-such-program"], &params).await.expect("upgraded");
    let status = process.take_status().expect("one").await.expect("a status");
    assert_eq!(status.reason.as_deref(), Some("InternalError"));
    let message = status.message.expect("a message");
    assert!(message.contains("executable file not found in $PATH"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_is_lost_under_v5_only() {
    let (double, client) = double().await;
    let pods = pods(&client);
    run(&pods, pod("one", "task:1")).await;
    double.faults().execs("seq 400000", usize::MAX, ExecFault::LoseTail(100_000));
    let cut = exec(&pods, "seq 400000", None).await.expect("run");
    assert_eq!(cut.stdout.len(), 100_000);
    assert_eq!(cut.status.expect("a status").status.as_deref(), Some("Success"));
    double.faults().exec_protocols("v4");
    let whole = exec(&pods, "seq 400000", None).await.expect("run");
    assert_eq!(whole.stdout.len(), 2_688_895);
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_dropped_leaves_process_running() {
    let (double, client) = double().await;
    let pods = pods(&client);
    run(&pods, pod("one", "task:1")).await;
    double.faults().execs("first", 1, ExecFault::DropAfter(6));
    let script = "echo first; echo second; sleep 0.2; touch /tmp/done";
    let cut = exec(&pods, script, None).await.expect("upgraded");
    assert_eq!(cut.stdout, b"first\n");
    assert!(cut.status.is_none());
    let waited = exec(&pods, "until [ -e /tmp/done ]; do sleep 0.02; done", None).await;
    assert!(waited.expect("run").status.is_some());
    double.faults().execs("", 1, ExecFault::Refuse(403));
    assert!(exec(&pods, "true", None).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn container_that_ended_is_not_found() {
    let (double, client) = double().await;
    let pods = pods(&client);
    let mut short = pod("one", "task:1");
    short["spec"]["containers"][0]["command"] = serde_json::json!(["true"]);
    create(&pods, short).await.expect("created");
    wait_for(&pods, "one", "/status/phase", "Succeeded").await;
    let status = exec(&pods, "true", None).await.expect("upgraded").status.expect("a status");
    let message = status.message.expect("a message");
    assert!(message.contains("container not found (\"main\")"), "{message}");
    double.faults().exec_protocols("v4");
    assert!(exec(&pods, "true", None).await.is_err(), "refused before the upgrade");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_users_run_commands() {
    if !ignored::is_root_or_ignored("which can be several users") {
        return;
    }
    let (_double, client) = double().await;
    let pods = pods(&client);
    run(&pods, pod("one", "task:1")).await;
    for script in ["setpriv --reuid agent --regid agent --init-groups id -u", "su agent -c 'id -u'"]
    {
        let executed = exec(&pods, script, None).await.expect("run");
        assert_eq!(executed.stdout, b"1000\n", "{script}: {:?}", executed.stderr);
    }
    let refused = exec(&pods, "mount -t tmpfs none /mnt", None).await.expect("run");
    assert_eq!(cause(&refused.status.expect("a status")).1, "32", "no right to mount");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_stalls_or_is_slow_on_command() {
    let (double, client) = double().await;
    let pods = pods(&client);
    run(&pods, pod("one", "task:1")).await;
    double.faults().execs("stalls", 1, ExecFault::StallAfter(3));
    let stalled = exec(&pods, ": stalls; echo one; echo two", None);
    assert!(tokio::time::timeout(Duration::from_secs(1), stalled).await.is_err());
    double.faults().execs("slow", 1, ExecFault::Slow(Duration::from_millis(200)));
    let start = std::time::Instant::now();
    let slow = exec(&pods, ": slow; echo one", None).await.expect("run");
    assert_eq!(slow.stdout, b"one\n");
    assert!(start.elapsed() >= Duration::from_millis(200));
}
