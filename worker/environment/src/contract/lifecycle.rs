//! Checks of the life cycle of environments.

use std::sync::Arc;

use super::{
    ContractOutput, EFFECT_TIMEOUT, Environment, Failure, Owner, ProviderUnderTest, Upload,
    eventually, file, output, read, shell, upload,
};
use crate::{DeadOwners, FailureKind};

pub(super) async fn image_is_built_once(subject: &ProviderUnderTest, _: &dyn Environment) {
    let labels = subject.labels(subject.owner.clone());
    let request = || subject.provider.prepare(subject.image_request(labels.clone()));
    let (a, b) = tokio::join!(request(), request());
    let (a, b) = (a.expect("present"), b.expect("present"));
    assert_eq!(a.reference, b.reference);
    assert!(!a.made && !b.made, "the image was present: {a:?} {b:?}");
}

pub(super) async fn environments_are_isolated_from_each_other(
    subject: &ProviderUnderTest,
    first: &dyn Environment,
) {
    let second = subject.create(Vec::new()).await.expect("a second environment");
    assert_ne!(first.id(), second.id());
    upload(first, vec![file("/mine/a.txt", "a")]).await;
    let seen = read(second.as_ref(), "/mine").await;
    let running = second.exec(shell("echo x > /tmp/began; sleep 2; exit 5"), discard_output());
    let killing = async {
        eventually(second.as_ref(), "test -f /tmp/began").await;
        first.kill_processes().await.expect("killed");
        first.destroy().await.expect("destroyed");
    };
    let (ended, ()) = tokio::join!(running, killing);
    second.destroy().await.expect("destroyed");
    assert!(seen.is_none(), "files of another environment: {seen:?}");
    assert_eq!(ended.expect("it ended").code, 5);
}

fn is_gone<T>(result: Result<T, Failure>, what: &str) {
    match result {
        Err(failure) => assert_eq!(failure.kind, FailureKind::Gone, "{what}: {}", failure.chain()),
        Ok(_) => panic!("{what} worked"),
    }
}

async fn assert_gone(environment: &dyn Environment) {
    is_gone(environment.exec(shell("exit 0"), discard_output()).await, "exec");
    let uploads = vec![Upload::Dir { path: "/x".into() }];
    is_gone(environment.copy_to(uploads).await, "copy_to");
    is_gone(environment.copy_from("/tmp").await.map(|_| ()), "copy_from");
    is_gone(environment.preserve().await, "preserve");
}

pub(super) async fn destroy_is_idempotent_and_other_calls_fail_after(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    for _ in 0..3 {
        environment.destroy().await.unwrap_or_else(|f| panic!("{}", f.chain()));
    }
    assert_gone(environment).await;
}

pub(super) async fn destroy_ends_running_command(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    let running = environment.exec(shell("echo x > /tmp/began; sleep 1000"), discard_output());
    let destroying = async {
        eventually(environment, "test -f /tmp/began").await;
        environment.destroy().await.unwrap_or_else(|f| panic!("{}", f.chain()));
    };
    let (ended, ()) =
        tokio::time::timeout(EFFECT_TIMEOUT * 2, async { tokio::join!(running, destroying) })
            .await
            .expect("it returns soon");
    match ended {
        Ok(exit) => assert_ne!(exit.code, 0),
        Err(failure) => assert_eq!(failure.kind, FailureKind::Gone, "{}", failure.chain()),
    }
}

pub(super) async fn files_are_readable_after_stop(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    upload(environment, vec![Upload::Dir { path: "/logs".into() }]).await;
    output(environment, "echo kept > /logs/a.txt").await;
    environment.stop().await.unwrap_or_else(|f| panic!("{}", f.chain()));
    let found = read(environment, "/logs").await.expect("it exists");
    assert!(found.iter().any(|(n, _, c)| n == "logs/a.txt" && c == b"kept\n"), "{found:?}");
    environment.stop().await.expect("stopping twice is fine");
    environment.kill_processes().await.expect("there is nothing to kill");
    assert!(
        environment.exec(shell("exit 0"), discard_output()).await.is_err(),
        "nothing runs any more"
    );
}

/// Reports one owner as dead.
struct DeadOwner(Owner);

impl DeadOwners for DeadOwner {
    fn is_dead(&self, owner: &Owner) -> bool {
        *owner == self.0
    }
}

/// An owner that only this test knows.
fn dead_owner(subject: &ProviderUnderTest) -> Owner {
    let labels = subject.labels(subject.owner.clone());
    let exec = labels.exec.as_bytes();
    let start_ticks = u64::from_be_bytes(exec[8..].try_into().expect("eight bytes"));
    Owner { boot_id: format!("contract-{}", std::process::id()), start_ticks, ..labels.owner }
}

pub(super) async fn reap_removes_only_environments_of_dead_owners(
    subject: &ProviderUnderTest,
    living: &dyn Environment,
) {
    let owner = dead_owner(subject);
    let dead = subject.create_for(owner.clone(), Vec::new()).await.expect("a second environment");
    let reaped = subject.provider.reap(&DeadOwner(owner.clone())).await.expect("listed");
    assert_eq!((reaped.removed.len(), &reaped.failed), (1, &Vec::new()), "{reaped:?}");
    assert!(reaped.kept >= 1, "the live environment was counted: {reaped:?}");
    assert_gone(dead.as_ref()).await;
    dead.destroy().await.expect("a reaped environment is removed");
    assert_eq!(output(living, "echo lives").await, "lives\n");
    let again = subject.provider.reap(&DeadOwner(owner)).await.expect("listed");
    assert!(again.removed.is_empty() && again.failed.is_empty(), "{again:?}");
}

pub(super) async fn preserved_environment_is_not_reaped(
    subject: &ProviderUnderTest,
    _: &dyn Environment,
) {
    let owner = dead_owner(subject);
    let kept = subject.create_for(owner.clone(), Vec::new()).await.expect("a second environment");
    upload(kept.as_ref(), vec![file("/logs/a.txt", "a")]).await;
    kept.stop().await.expect("stopped");
    let way_in = kept.preserve().await.unwrap_or_else(|f| panic!("{}", f.chain()));
    let reaped = subject.provider.reap(&DeadOwner(owner)).await.expect("listed");
    let found = read(kept.as_ref(), "/logs/a.txt").await;
    kept.destroy().await.expect("destroyed");
    assert!(!way_in.trim().is_empty());
    assert!(reaped.removed.is_empty(), "{reaped:?}");
    assert!(found.is_some(), "its files are there");
}

fn discard_output() -> Arc<ContractOutput> {
    Arc::new(ContractOutput::default())
}
