//! Resource limits: their enforcement, and the errors when they are reached.

use rollout_environment::{Environment, FailureKind, Provider as _};
use rollout_protocol::record::LimitEnforcement;
use rollout_protocol::spec::environment::ProcessSettings;
use rollout_protocol::spec::resources::Resources;
use rollout_tests::ignored::{report_ignored, report_ignored_part};
use rollout_tests::sandbox::{self, AMPLE_RESOURCES, run, try_run};

use crate::sandbox::{SandboxFixture, WAIT_DEADLINE};

async fn create(lab: &SandboxFixture, resources: Resources) -> Box<dyn Environment> {
    let request = sandbox::request(ProcessSettings::default(), resources);
    lab.provider.create(request).await.unwrap_or_else(|failure| panic!("{}", failure.chain()))
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_limit_kills_command_and_not_supervisor() {
    let lab = SandboxFixture::on_disk();
    let sandbox = create(&lab, Resources { memory_mb: 64, ..AMPLE_RESOURCES }).await;
    let environment = sandbox.as_ref();
    let held = environment.limits().memory;
    let eat = "perl -e '$x = \"x\" x (300*1024*1024); print length $x'";
    let (code, printed) = run(environment, eat).await;
    assert_ne!(code, 0, "{printed}");
    assert_eq!(run(environment, "echo usable").await, (0, "usable\n".into()));
    if held == LimitEnforcement::Enforced {
        assert_eq!(code, 137, "{printed}");
        assert!(environment.oom_killed().await);
        // A file does not count as memory.
        let write = "head -c 200000000 /dev/zero > /app-file && rm /app-file";
        assert_eq!(run(environment, write).await.0, 0);
    } else {
        assert_eq!(held, LimitEnforcement::No);
        assert!(!environment.oom_killed().await);
        report_ignored_part("the kill at the limit: needs a control group for memory");
    }
    sandbox.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_limit_exceeded_ends_sandbox() {
    let lab = SandboxFixture::new();
    let sandbox = create(&lab, Resources { storage_mb: 20, ..AMPLE_RESOURCES }).await;
    let environment = sandbox.as_ref();
    assert_eq!(environment.limits().storage, LimitEnforcement::Measured);
    let fill = try_run(environment, "head -c 40000000 /dev/zero > /root/fill; sleep 1000");
    let ended = tokio::time::timeout(WAIT_DEADLINE, fill).await.expect("it is ended");
    let failure = ended.expect_err("its end is not a result");
    assert_eq!(failure.kind, FailureKind::StorageExceeded, "{}", failure.chain());
    assert!(failure.message.contains("storage limit exceeded"), "{}", failure.message);
    let later = try_run(environment, "true").await.expect_err("it has ended");
    assert_eq!(later.kind, FailureKind::StorageExceeded);
    environment.kill_processes().await.expect("nothing lives");
    assert!(environment.copy_from("/root/fill").await.expect("readable").is_some());
    sandbox.destroy().await.expect("destroyed");
    assert_eq!(lab.remaining_sandboxes(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cpu_limit_is_applied_where_declared() {
    let lab = SandboxFixture::new();
    let sandbox = create(&lab, Resources { cpus: 1, ..AMPLE_RESOURCES }).await;
    let environment = sandbox.as_ref();
    if environment.limits().cpus == LimitEnforcement::Enforced {
        // Two busy loops for a second take one second of processor time, not two.
        let burn = "timeout 2 sh -c 'while :; do :; done' & timeout 2 sh -c 'while :; do :; done'; \
                    wait; times";
        let (_, printed) = run(environment, burn).await;
        let last = printed.lines().last().expect("times of children");
        let user = last.split('m').nth(1).and_then(|rest| rest.split('s').next());
        let seconds: f64 = user.expect("seconds").parse().expect("a number");
        assert!(seconds < 3.0, "{printed}");
    } else {
        report_ignored("needs a control group for processors");
    }
    sandbox.destroy().await.expect("destroyed");
}
