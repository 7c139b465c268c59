//! Hostile code: processes that try to survive, to escape, or to obstruct.

use std::sync::Arc;
use std::time::Duration;

use rollout_environment::{Environment, FailureKind, OutputStream, Upload};
use rollout_tests::sandbox::{self, CapturedOutput, file, output, run, shell};
use tokio::io::AsyncReadExt as _;

use crate::sandbox::{SandboxFixture, WAIT_DEADLINE};

/// Content of the regular files below `path`, by name.
async fn files(environment: &dyn Environment, path: &str) -> Vec<(String, String)> {
    let stream = environment.copy_from(path).await.unwrap_or_else(|f| panic!("{}", f.chain()));
    let mut bytes = Vec::new();
    stream.expect("something is there").read_to_end(&mut bytes).await.expect("a whole stream");
    let mut archive = tar::Archive::new(bytes.as_slice());
    let mut found = Vec::new();
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        if entry.header().entry_type().is_file() {
            let mut content = String::new();
            std::io::Read::read_to_string(&mut entry, &mut content).expect("content");
            found.push((entry.path().expect("a name").display().to_string(), content));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn supervisor_killed_from_inside_survives() {
    let lab = SandboxFixture::new();
    let sandbox = sandbox::create(&lab.provider).await;
    let environment = sandbox.as_ref();
    let (code, _) =
        run(environment, "kill -9 1; kill -STOP 1; kill -TERM 1; kill -9 -1; kill -9 $$").await;
    assert_eq!(code, 137);
    assert_eq!(output(environment, "echo alive").await, "alive\n");
    sandbox.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn limit_of_supervisor_lowered_from_inside_is_no_shortage_of_the_host() {
    let lab = SandboxFixture::new();
    for limit in ["nofile=4:4", "nproc=0:0"] {
        let sandbox = sandbox::create(&lab.provider).await;
        let environment = sandbox.as_ref();
        let (code, printed) = run(environment, &format!("prlimit --pid 1 --{limit}")).await;
        assert_eq!(code, 0, "{limit}: {printed}");
        if let Err(failure) =
            environment.exec(shell("true"), Arc::new(CapturedOutput::default())).await
        {
            assert_eq!(failure.kind, FailureKind::NotStarted, "{limit}: {}", failure.chain());
        }
        sandbox.destroy().await.expect("destroyed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_bomb_is_killed() {
    let lab = SandboxFixture::with_pids(200);
    let sandbox = sandbox::create(&lab.provider).await;
    let environment = sandbox.as_ref();
    let storm =
        "trap '' TERM; f() { f | f & }; f; while :; do setsid sh -c 'sleep 9 & sleep 9' & done";
    let printed = Arc::new(CapturedOutput::default());
    let running = environment.exec(shell(storm), printed);
    let killing = async {
        tokio::time::timeout(Duration::from_secs(2), std::future::pending::<()>()).await.ok();
        environment.kill_processes().await.unwrap_or_else(|f| panic!("{}", f.chain()));
    };
    let (ended, ()) = tokio::join!(running, killing);
    ended.expect("it ended");
    let processes = output(environment, "ls /proc | grep -c '^[0-9]'").await;
    assert!(processes.trim().parse::<u32>().expect("a number") <= 4, "{processes}");
    sandbox.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn process_limit_reached_lets_next_command_start() {
    let lab = SandboxFixture::with_pids(50);
    let sandbox = sandbox::create(&lab.provider).await;
    let environment = sandbox.as_ref();
    let (_, printed) =
        run(environment, "for i in $(seq 100); do sleep 1000 >/dev/null 2>&1 & done; echo x").await;
    assert!(printed.contains("fork"), "the limit was met: {printed}");
    assert_eq!(output(environment, "echo started").await, "started\n");
    environment.kill_processes().await.expect("killed");
    assert_eq!(output(environment, "(echo forks); cat /dev/null").await, "forks\n");
    sandbox.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn background_process_does_not_delay_exit_and_survives() {
    let lab = SandboxFixture::new();
    let sandbox = sandbox::create(&lab.provider).await;
    let environment = sandbox.as_ref();
    let service = "(i=0; while :; do echo line $i; i=$((i+1)); echo $i > /tmp/count; sleep 0.02; \
                   done) & echo begun";
    let begun = std::time::Instant::now();
    let printed = output(environment, service).await;
    // The service never exits by itself.
    assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", begun.elapsed());
    assert!(printed.starts_with("begun") || printed.contains("\nbegun"), "{printed}");
    // Far more than a pipe holds, long after its reader has closed.
    let flood = "(while :; do head -c 100000 /dev/zero; echo x >> /tmp/rounds; done) & sleep 0.1";
    run(environment, flood).await;
    let advances = "a=$(wc -l < /tmp/rounds); c=$(cat /tmp/count); for i in $(seq 100); do sleep 0.1; \
                    test $(wc -l < /tmp/rounds) -gt $((a+3)) && test $(cat /tmp/count) -gt $c \
                    && exit 0; done; exit 1";
    output(environment, advances).await;
    sandbox.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_flood_is_streamed_in_bounded_memory() {
    struct FloodCounter(std::sync::atomic::AtomicU64);
    impl rollout_environment::OutputSink for FloodCounter {
        fn write(&self, _: OutputStream, bytes: &[u8]) {
            self.0.fetch_add(bytes.len() as u64, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let lab = SandboxFixture::new();
    let sandbox = sandbox::create(&lab.provider).await;
    let count = Arc::new(FloodCounter(0.into()));
    let flood = shell("head -c 500000000 /dev/zero; head -c 500000000 /dev/zero >&2");
    let exit = sandbox.exec(flood, count.clone()).await.expect("it ended");
    assert_eq!(exit.code, 0);
    assert_eq!(count.0.load(std::sync::atomic::Ordering::Relaxed), 1_000_000_000);
    sandbox.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn symlink_to_host_leads_nowhere() {
    let lab = SandboxFixture::new();
    let outside = lab.scratch.path().join("outside");
    std::fs::create_dir(&outside).expect("made");
    std::fs::write(outside.join("secret.txt"), "secret").expect("written");
    let sandbox = sandbox::create(&lab.provider).await;
    let environment = sandbox.as_ref();
    let target = outside.display();
    let links = format!(
        "mkdir -p /logs /deep; ln -s {target} /logs/out; ln -s {target}/secret.txt /logs/secret; \
         ln -s ../../../../../../../../../../{target} /logs/up; ln -s {target} /tests; \
         ln -s / /logs/root; ln -s /proc/self/root{target} /logs/magic; ln -s loop /logs/loop; \
         ln -s {target} /deep/link; mkfifo /logs/fifo; ln -s /etc/passwd /logs/passwd; \
         ln {target}/secret.txt /logs/hard 2>/dev/null; echo kept > /logs/kept"
    );
    run(environment, &links).await;

    assert_eq!(files(environment, "/logs").await, [("logs/kept".into(), "kept\n".into())]);
    for path in ["/logs/out", "/logs/secret", "/tests", "/logs/up"] {
        assert_eq!(files(environment, path).await, [], "{path}");
    }
    for path in ["/logs/out/secret.txt", "/tests/secret.txt", "/logs/loop/x", "/logs/magic/x"] {
        let found = environment.copy_from(path).await.expect("an answer");
        assert!(found.is_none(), "{path}");
    }
    let uploads = vec![
        Upload::FreshDir { path: "/tests".into() },
        file("/deep/link/planted", "x"),
        file("/logs/secret", "replaced"),
        Upload::Dir { path: "/logs/up".into() },
        Upload::FreshDir { path: "/logs/loop/inner".into() },
    ];
    environment.copy_to(uploads).await.unwrap_or_else(|f| panic!("{}", f.chain()));
    let names: Vec<_> = std::fs::read_dir(&outside).expect("read").collect();
    assert_eq!(names.len(), 1, "nothing was written outside");
    assert_eq!(std::fs::read_to_string(outside.join("secret.txt")).expect("read"), "secret");
    let seen = output(environment, "cat /deep/link/planted /logs/secret; ls -A /tests").await;
    assert_eq!(seen, "xreplaced");
    sandbox.destroy().await.expect("destroyed");
    assert!(outside.join("secret.txt").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn symlink_swapped_during_copy_leads_nowhere() {
    let lab = SandboxFixture::new();
    let outside = lab.scratch.path().join("outside");
    std::fs::create_dir(&outside).expect("made");
    std::fs::write(outside.join("secret.txt"), "secret").expect("written");
    let sandbox = sandbox::create(&lab.provider).await;
    let environment = sandbox.as_ref();
    let swap = format!(
        "mkdir -p /logs/verifier; (while :; do rm -rf /logs/verifier; ln -s {0} /logs/verifier; \
         rm -f /logs/verifier; mkdir -p /logs/verifier; mv /logs /other; ln -s {0} /logs; \
         rm -f /logs; mv /other /logs; done) >/dev/null 2>&1 &",
        outside.display()
    );
    run(environment, &swap).await;
    for round in 0..300 {
        let uploads = vec![
            Upload::FreshDir { path: "/logs/verifier".into() },
            file("/logs/verifier/reward.txt", "1"),
        ];
        // Losing the race is allowed; changing anything outside is not.
        let placed = environment.copy_to(uploads).await;
        if let Ok(Some(mut stream)) = environment.copy_from("/logs").await {
            let mut bytes = Vec::new();
            let read = stream.read_to_end(&mut bytes).await;
            assert!(!bytes.windows(6).any(|part| part == b"secret"), "round {round}: {read:?}");
        }
        drop(placed);
    }
    environment.kill_processes().await.expect("killed");
    let fresh = vec![Upload::FreshDir { path: "/logs/verifier".into() }];
    environment.copy_to(fresh).await.unwrap_or_else(|f| panic!("{}", f.chain()));
    let names: Vec<_> = std::fs::read_dir(&outside).expect("read").flatten().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    sandbox.destroy().await.expect("destroyed");
    assert_eq!(lab.remaining_sandboxes(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_tree_of_any_shape_is_read_and_removed() {
    let lab = SandboxFixture::new();
    let sandbox = sandbox::create(&lab.provider).await;
    let environment = sandbox.as_ref();
    let shapes = "mkdir -p /logs/locked/inner /app; echo found > /logs/locked/inner/x; \
                  chmod 000 /logs/locked/inner/x /logs/locked/inner /logs/locked; \
                  perl -e 'chdir \"/app\"; for (1..2000) { mkdir \"d\"; chdir \"d\" }'; \
                  perl -e 'for (1..20000) { open my $f, \">\", \"/var/lib/f$_\" }'; \
                  touch \"/logs/$(printf 'new\\nline\\033')\"; truncate -s 100G /logs/sparse";
    output(environment, shapes).await;
    let stream = environment.copy_from("/logs").await.expect("an answer").expect("there");
    // The sparse file is announced with its full size; a reader that does not want it stops.
    let mut head = vec![0; 64 * 1024];
    let mut stream = stream;
    stream.read_exact(&mut head).await.expect("a beginning");
    drop(stream);
    output(environment, "rm /logs/sparse").await;
    let found = files(environment, "/logs").await;
    assert!(found.contains(&("logs/locked/inner/x".into(), "found\n".into())), "{found:?}");
    let ended = tokio::time::timeout(WAIT_DEADLINE * 3, sandbox.destroy()).await.expect("in time");
    ended.unwrap_or_else(|f| panic!("{}", f.chain()));
    assert_eq!(lab.remaining_sandboxes(), [""; 0]);
}
