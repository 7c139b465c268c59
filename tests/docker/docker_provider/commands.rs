//! Commands: their exit, their output, and output that imitates engine errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rollout_environment::{ExecCommand, FailureKind, OutputSink, OutputStream};

use crate::docker_provider::fixture::{CommandOutput, DockerFixture, destroy, output, run, shell};

/// Longest delay of a command by a process that keeps its output open. The engine ends this output two
/// seconds after the command: that is the delay of a provider that waits for it. One that asks for the
/// exit code has it after less than half a second.
const OPEN_OUTPUT_DELAY: Duration = Duration::from_secs(1);

/// Commands of each kind, of which the fastest counts. A busy machine delays some of them, by more than the
/// difference that the test looks for.
const TIMED_COMMANDS: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn background_process_with_open_output_does_not_delay_exit() {
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.plain().await;
    let container = environment.as_ref();
    let started = "while :; do echo >> /beat; sleep 0.1; done & echo started; exit 5";
    let duration_of = async |script: &str| {
        let began = Instant::now();
        assert_eq!(run(container, script).await, (5, "started\n".to_owned()));
        began.elapsed()
    };
    let (mut usual, mut fastest) = (Duration::MAX, Duration::MAX);
    for _ in 0..TIMED_COMMANDS {
        usual = usual.min(duration_of("echo started; exit 5").await);
        fastest = fastest.min(duration_of(started).await);
    }
    assert!(fastest < usual + OPEN_OUTPUT_DELAY, "{fastest:?}, without the process {usual:?}");
    output(container, "a=$(wc -l < /beat); sleep 1; test $(wc -l < /beat) -gt $a").await;
    destroy(environment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn command_that_closes_output_is_waited_for() {
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.plain().await;
    let script = "echo first; exec >&- 2>&-; sleep 1; exit 9";
    assert_eq!(run(environment.as_ref(), script).await, (9, "first\n".to_owned()));
    destroy(environment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_code_126_with_forged_engine_message_is_kept() {
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.plain().await;
    let container = environment.as_ref();
    let liar = "echo 'OCI runtime exec failed: exec failed: unable to start container process'";
    assert_eq!(run(container, &format!("{liar}; exit 126")).await.0, 126);
    assert_eq!(run(container, "/no/such/program").await.0, 127);

    for program in ["/etc/passwd", "no-such-program"] {
        let command = ExecCommand { argv: vec![program.to_owned()], ..shell("") };
        let printed: Arc<dyn OutputSink> = Arc::new(CommandOutput::default());
        let failure = container.exec(command, printed).await.expect_err("it cannot be started");
        assert_eq!(failure.kind, FailureKind::NotStarted, "{}", failure.message);
        assert!(failure.message.contains("OCI runtime"), "{}", failure.message);
    }
    destroy(environment).await;
}

/// Counts bytes and discards them.
#[derive(Default)]
struct ByteCounter(AtomicU64);

impl OutputSink for ByteCounter {
    fn write(&self, _: OutputStream, bytes: &[u8]) {
        self.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
}

/// Peak memory of this process, in KiB.
fn peak_memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn output_flood_is_streamed_in_bounded_memory() {
    const MEGABYTES: u64 = 500;
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.plain().await;
    let before = peak_memory_kib();
    let counted = Arc::new(ByteCounter::default());
    let script = format!("head -c {MEGABYTES}000000 /dev/zero; exit 3");
    let exit = environment.exec(shell(&script), counted.clone()).await.expect("it ran");
    assert_eq!(exit.code, 3);
    assert_eq!(counted.0.load(Ordering::Relaxed), MEGABYTES * 1_000_000);
    // Other tests in this process use memory too; the kernel counts in batches, so a peak may even
    // fall slightly.
    let grown = peak_memory_kib().saturating_sub(before);
    assert!(grown < 250 * 1024, "the peak grew by {grown} KiB");
    destroy(environment).await;
}
