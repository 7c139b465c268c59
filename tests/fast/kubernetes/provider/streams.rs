//! Broken connections and lost output: nothing is lost, doubled or run twice.

use rollout_environment::Upload;
use rollout_tests::kube::{ExecFault, RequestFault};
use tokio::io::AsyncReadExt as _;

use super::*;

/// Text in the calls that run commands, read archives and place files.
const LAUNCH: &str = "setsid";
const READ: &str = "tar -c";
const PLACE: &str = "tar -x";

/// Numbers up to 100,000, and what a script of them prints.
const COUNT: &str = "echo x >> /tmp/runs; seq 1 100000; seq 1 50000 >&2";

fn counted(to: u32) -> Vec<u8> {
    (1..=to).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

/// Runs the counting script under a fault, and checks its outputs and that it ran once.
async fn count_under(fault: ExecFault, times: usize) {
    count_in(&PodFixture::new(), fault, times).await;
}

async fn count_in(fixture: &PodFixture, fault: ExecFault, times: usize) {
    let environment = fixture.create().await;
    fixture.double.faults().execs(LAUNCH, times, fault.clone());
    let (code, out, err) = run(environment.as_ref(), COUNT).await;
    assert_eq!(code, 0, "{fault:?}");
    assert!(out == counted(100_000), "{fault:?}: {} bytes", out.len());
    assert!(err == counted(50_000), "{fault:?}: {} bytes", err.len());
    let (_, runs, _) = run(environment.as_ref(), "cat /tmp/runs").await;
    assert_eq!(runs, b"x\n", "{fault:?}: it ran once");
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_survives_dropped_connections() {
    count_under(ExecFault::DropAfter(10_000), 5).await;
    count_under(ExecFault::DropAfter(0), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_survives_connections_that_go_silent() {
    let fixture = PodFixture::with(|options| options.silence_timeout_sec = 2);
    let began = tokio::time::Instant::now();
    // After some output, and before the command is known to have started.
    count_in(&fixture, ExecFault::StallAfter(10_000), 2).await;
    count_in(&fixture, ExecFault::StallAfter(0), 1).await;
    let silent = Duration::from_secs(3 * 2);
    assert!(began.elapsed() >= silent, "the limit is waited for");
    assert!(began.elapsed() < silent + DEADLINE / 2, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn output_survives_refused_upgrades() {
    for code in [429, 500, 503] {
        count_under(ExecFault::Refuse(code), 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_server_drops_is_read_again() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    fixture.double.faults().execs(LAUNCH, 1, ExecFault::LoseTail(1000));
    let captured = Arc::new(Captured::default());
    let running = environment.exec(shell(COUNT), captured.clone());
    let cutting = async {
        // Without its last frame, a call that lost its tail is open until the connection breaks.
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while captured.bytes(OutputStream::Stdout).is_empty() {
            assert!(tokio::time::Instant::now() < deadline, "nothing arrives");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        fixture.double.faults().cut_connections();
    };
    let (ended, ()) = tokio::join!(running, cutting);
    assert_eq!(ended.unwrap_or_else(|f| panic!("{}", f.chain())).code, 0);
    assert!(captured.bytes(OutputStream::Stdout) == counted(100_000));
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn command_is_not_lost_when_all_connections_are_cut() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    let captured = Arc::new(Captured::default());
    let script = "for i in $(seq 1 40); do echo $i; sleep 0.05; done";
    let running = environment.exec(shell(script), captured.clone());
    let cutting = async {
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_millis(250)).await;
            fixture.double.faults().cut_connections();
        }
    };
    let (ended, ()) = tokio::join!(running, cutting);
    assert_eq!(ended.unwrap_or_else(|f| panic!("{}", f.chain())).code, 0);
    assert_eq!(captured.bytes(OutputStream::Stdout), counted(40));
    environment.destroy().await.expect("destroyed");
}

/// Reads a directory with a file of numbers.
async fn download(environment: &dyn Environment) -> std::io::Result<Vec<u8>> {
    let stream = environment.copy_from("/data").await;
    let mut stream = stream.unwrap_or_else(|f| panic!("{}", f.chain())).expect("it exists");
    let mut bytes = Vec::new();
    tokio::time::timeout(DEADLINE, stream.read_to_end(&mut bytes)).await.expect("it ends")?;
    Ok(bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn download_that_is_cut_off_is_read_again_and_whole() {
    let fixture = PodFixture::with(|options| options.silence_timeout_sec = 2);
    let environment = fixture.create().await;
    run(environment.as_ref(), "mkdir /data; seq 1 200000 > /data/numbers").await;
    let whole = download(environment.as_ref()).await.expect("whole");
    assert!(whole.len() > counted(200_000).len());
    for (fault, times) in [
        (ExecFault::StallAfter(100_000), 1),
        (ExecFault::DropAfter(100_000), 4),
        (ExecFault::DropAfter(0), 1),
        (ExecFault::Refuse(500), 2),
    ] {
        fixture.double.faults().execs(READ, times, fault.clone());
        let again = download(environment.as_ref()).await.expect("whole");
        assert!(again == whole, "{fault:?}: {} of {} bytes", again.len(), whole.len());
    }
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn download_that_changes_between_two_attempts_is_not_accepted() {
    let fixture = PodFixture::new();
    let environment = fixture.create().await;
    run(environment.as_ref(), "mkdir /data; seq 1 200000 > /data/numbers").await;
    fixture.double.faults().execs(READ, 1, ExecFault::DropAfter(100_000));
    let mut stream = environment.copy_from("/data").await.expect("a stream").expect("it exists");
    let mut start = [0; 512];
    stream.read_exact(&mut start).await.expect("the first block");
    run(environment.as_ref(), "seq 200000 -1 1 > /data/numbers").await;
    let mut rest = Vec::new();
    let read = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("ends");
    let whole = [start.as_slice(), &rest].concat();
    let is_old = whole.windows(8).any(|bytes| bytes == b"\n1000\n10");
    let is_new = whole.windows(9).any(|bytes| bytes == b"\n1000\n999");
    assert!(read.is_err() || is_old != is_new, "a mixture of two files was accepted");
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_over_broken_connections_is_whole() {
    let fixture = PodFixture::with(|options| options.silence_timeout_sec = 2);
    let environment = fixture.create().await;
    let content = counted(100_000);
    for (fault, times) in [
        (ExecFault::StallAfter(0), 1),
        (ExecFault::DropAfter(0), 2),
        (ExecFault::Refuse(503), 2),
        (ExecFault::LoseTail(0), 0),
    ] {
        fixture.double.faults().execs(PLACE, times, fault.clone());
        let file = Upload::File {
            path: "/data/numbers".to_owned(),
            bytes: content.clone().into(),
            executable: false,
        };
        let uploads = vec![Upload::FreshDir { path: "/data".to_owned() }, file];
        environment.copy_to(uploads).await.unwrap_or_else(|f| panic!("{fault:?}: {}", f.chain()));
        let (_, out, _) = run(environment.as_ref(), "cat /data/numbers").await;
        assert!(out == content, "{fault:?}");
    }
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_server_throttles_are_repeated() {
    let fixture = PodFixture::new();
    fixture.double.faults().requests("create", "pods", 1, RequestFault::Throttle(1));
    fixture.double.faults().requests("get", "pods", 1, RequestFault::Throttle(1));
    let environment = fixture.create().await;
    assert_eq!(run(environment.as_ref(), "echo usable").await.1, b"usable\n");
    environment.destroy().await.expect("destroyed");
}
