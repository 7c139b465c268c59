//! Creation and removal, including sandboxes that were not removed in time.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rollout_environment::{DeadOwners, FailureKind, Owner, Provider as _};
use rollout_protocol::spec::environment::{ProcessSettings, ProviderSpec};
use rollout_tests::sandbox::{self, AMPLE_RESOURCES, output};
use rollout_tests::{hidden_commands, processes, wait};

use crate::sandbox::{SandboxFixture, WAIT_DEADLINE, helper};

struct NoDeadOwners;

impl DeadOwners for NoDeadOwners {
    fn is_dead(&self, _: &Owner) -> bool {
        false
    }
}

struct AllOwnersDead;

impl DeadOwners for AllOwnersDead {
    fn is_dead(&self, _: &Owner) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_killed_leaves_no_process_and_is_reaped() {
    let lab = SandboxFixture::new();
    let mark = format!("{}", 100_000_000 + u64::from(std::process::id()));
    let script =
        format!("trap '' TERM HUP; setsid sh -c 'sleep {mark} & sleep {mark}' & sleep {mark}");
    let mut worker = Command::new(helper())
        .arg(hidden_commands::SANDBOX_WORKER)
        .args([lab.base().as_os_str(), script.as_ref()])
        .stdin(Stdio::null())
        .spawn()
        .expect("a worker");
    let running = || processes::all().iter().filter(|p| p.arguments.ends_with(&mark)).count();
    wait::until(WAIT_DEADLINE, "three processes inside", || running() >= 3);

    worker.kill().expect("killed");
    wait::until(WAIT_DEADLINE, "no process left", || running() == 0);
    worker.wait().expect("collected");
    let base = lab.base().display().to_string();
    wait::until(WAIT_DEADLINE, "no supervisor left", || processes::with_mark(&base).is_empty());

    assert_eq!(
        lab.remaining_sandboxes().len(),
        2,
        "the directory and its owner file: {:?}",
        lab.remaining_sandboxes()
    );
    let kept = lab.provider.reap(&NoDeadOwners).await.expect("listed");
    assert_eq!((kept.removed.len(), kept.kept), (0, 1), "{kept:?}");
    let reaped = lab.provider.reap(&AllOwnersDead).await.expect("listed");
    assert_eq!((reaped.removed.len(), reaped.failed.len()), (1, 0), "{reaped:?}");
    assert_eq!(lab.remaining_sandboxes(), [""; 0]);
}

/// A power failure leaves an owner file without content if it was never written to the disk.
#[tokio::test(flavor = "multi_thread")]
async fn sandbox_with_empty_owner_file_is_reaped_unless_it_runs() {
    let lab = SandboxFixture::new();
    let running = sandbox::create(&lab.provider).await;
    let names = lab.remaining_sandboxes();
    let owner_file = names.iter().find(|name| name.ends_with(".owner.json")).expect("a file");
    std::fs::write(lab.base().join(owner_file), "").expect("emptied");
    let kept = lab.provider.reap(&NoDeadOwners).await.expect("listed");
    assert_eq!((kept.removed.len(), kept.failed.len()), (0, 1), "{kept:?}");
    output(running.as_ref(), "true").await;
    drop(running);
    let deadline = Instant::now() + WAIT_DEADLINE;
    while !lab.remaining_sandboxes().is_empty() {
        assert!(Instant::now() < deadline, "{:?}", lab.remaining_sandboxes());
        lab.provider.reap(&NoDeadOwners).await.expect("listed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_without_holder_is_reaped_while_owner_lives() {
    let lab = SandboxFixture::new();
    let held = sandbox::create(&lab.provider).await;
    drop(sandbox::create(&lab.provider).await);
    for milliseconds in 0..10 {
        let creating =
            lab.provider.create(sandbox::request(ProcessSettings::default(), AMPLE_RESOURCES));
        // Cancelled at some point during creation.
        let _cut = tokio::time::timeout(Duration::from_millis(milliseconds), creating).await;
    }
    let deadline = Instant::now() + WAIT_DEADLINE;
    while lab.remaining_sandboxes().len() > 2 {
        assert!(Instant::now() < deadline, "{:?}", lab.remaining_sandboxes());
        let reaped = lab.provider.reap(&NoDeadOwners).await.expect("listed");
        assert_eq!(reaped.failed, [], "{reaped:?}");
        assert!(reaped.kept >= 1, "{reaped:?}");
    }
    assert_eq!(output(held.as_ref(), "echo lives").await, "lives\n");
    held.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_in_parallel_do_not_interfere() {
    let lab = SandboxFixture::new();
    let one = |number: u32| {
        let provider = &lab.provider;
        async move {
            let sandbox = sandbox::create(provider).await;
            let script = format!("echo {number} > /tmp/n; sleep 0.2; cat /tmp/n");
            let printed = output(sandbox.as_ref(), &script).await;
            sandbox.destroy().await.expect("destroyed");
            printed.trim().parse::<u32>().expect("a number")
        }
    };
    let seen = futures_util::future::join_all((0..20).map(one)).await;
    assert_eq!(seen, (0..20).collect::<Vec<_>>());
    assert_eq!(lab.remaining_sandboxes(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_create_leaves_nothing() {
    let lab = SandboxFixture::new();
    let provider = sandbox::provider(&lab.base(), "/bin/false".as_ref());
    let request = || sandbox::request(ProcessSettings::default(), AMPLE_RESOURCES);
    let failure = provider.create(request()).await.expect_err("no supervisor");
    assert_eq!(failure.kind, FailureKind::NotStarted, "{}", failure.chain());
    assert_eq!(lab.remaining_sandboxes(), [""; 0]);

    let provider = sandbox::provider(&lab.base(), "/no/such/helper".as_ref());
    assert!(provider.create(request()).await.is_err());
    assert_eq!(lab.remaining_sandboxes(), [""; 0]);

    let mut wrong = request();
    wrong.uploads = vec![sandbox::file("/usr/bin/x", "")];
    let failure = lab.provider.create(wrong).await.expect_err("refused");
    assert_eq!(failure.kind, FailureKind::Refused, "{}", failure.chain());
    assert_eq!(lab.remaining_sandboxes(), [""; 0]);
    let mut other = request();
    other.settings = ProviderSpec::Docker(Default::default());
    assert_eq!(lab.provider.create(other).await.expect_err("a bug").kind, FailureKind::Bug);
}

#[test]
fn kernel_without_namespaces_is_explained() {
    let lab = SandboxFixture::new();
    // In its own user namespace that allows no further ones.
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let worker = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", script, "sh"])
        .arg(helper())
        .args([hidden_commands::SANDBOX_WORKER.as_ref(), lab.base().as_os_str(), "true".as_ref()])
        .output()
        .expect("unshare of util-linux");
    let said = String::from_utf8_lossy(&worker.stderr);
    assert!(!worker.status.success());
    for part in ["max_user_namespaces", "unprivileged_userns_clone", "apparmor_restrict"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(said.contains("create a user namespace: No space left"), "{said}");
    assert_eq!(lab.remaining_sandboxes(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_moved_away_is_gone_also_with_another_one_in_its_place() {
    let lab = SandboxFixture::new();
    let sandbox = sandbox::create(&lab.provider).await;
    sandbox.check_exists().await.expect("it exists");
    let (directory, aside) = (lab.base().join(sandbox.id()), lab.scratch.path().join("aside"));
    std::fs::rename(&directory, &aside).expect("moved");
    let kind = sandbox.check_exists().await.expect_err("moved away").kind;
    assert_eq!(kind, FailureKind::Gone);
    std::fs::create_dir_all(directory.join("root")).expect("made");
    let kind = sandbox.check_exists().await.expect_err("another one").kind;
    assert_eq!(kind, FailureKind::Gone);
    std::fs::remove_dir_all(&directory).expect("removed");
    std::fs::rename(&aside, &directory).expect("moved back");
    assert_eq!(output(sandbox.as_ref(), "echo lives").await, "lives\n");
    sandbox.destroy().await.expect("destroyed");
}
