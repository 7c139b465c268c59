//! Removal of pods that dead owners left behind.
//!
//! A worker can prove the death only of processes of its own host. A pod of another host's process
//! names a time until which it has an owner, on the clock of the API server. A live worker moves that
//! time on, so it passes only where the worker is gone, or has been cut off from the cluster for longer
//! than runs wait for it.

use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::ListParams;
use rollout_environment::{DeadOwners, Failure, ReapReport};

use super::cluster::Cluster;
use super::labels;
use super::remove::{PodId, remove, remove_unchanged};
use super::rights::Right;

/// Concurrent removals.
const AT_ONCE: usize = 8;

/// Pods in one page of a list.
const PAGE: u32 = 200;

/// Removes the pods of dead owners.
pub(super) async fn reap(cluster: &Cluster, dead: &dyn DeadOwners) -> Result<ReapReport, Failure> {
    let mut report = ReapReport::default();
    for namespace in cluster.namespaces() {
        reap_namespace(cluster, namespace, dead, &mut report).await?;
    }
    report.removed.sort_unstable();
    Ok(report)
}

async fn reap_namespace(
    cluster: &Cluster,
    namespace: &str,
    dead: &dyn DeadOwners,
    report: &mut ReapReport,
) -> Result<(), Failure> {
    let what = "cannot list pods that were left behind";
    let pods = cluster.pods(namespace);
    let selector = format!("{}={}", labels::MANAGED_BY, labels::MANAGER);
    let mut params = ListParams::default().labels(&selector).limit(PAGE);
    let skew = Duration::from_secs(cluster.options.clock_skew_sec);
    let (mut abandoned, now) = (Vec::new(), cluster.server_time().await);
    loop {
        let page = cluster.call(Right::to("list", &pods), what, || pods.list(&params)).await?;
        for pod in &page.items {
            match ownership(pod, dead, now, skew) {
                Ownership::Owned => report.kept += 1,
                Ownership::Dead => abandoned.push((PodId::of(pod, namespace), None)),
                Ownership::Lapsed => {
                    let version = pod.resource_version().unwrap_or_default();
                    abandoned.push((PodId::of(pod, namespace), Some(version)));
                }
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => break,
        }
    }
    let removals = abandoned.into_iter().map(|(id, version)| async move {
        let result = match version {
            None => remove(cluster, &id).await.map(|()| true),
            // Its worker may have renewed the lease meanwhile.
            Some(version) => remove_unchanged(cluster, &id, version).await,
        };
        (id.name, result)
    });
    let mut removals = futures_util::stream::iter(removals).buffer_unordered(AT_ONCE);
    while let Some((name, result)) = removals.next().await {
        match result {
            Ok(true) => report.removed.push(name),
            Ok(false) => report.kept += 1,
            Err(failure) => report.failed.push((name, failure.chain())),
        }
    }
    Ok(())
}

/// Knowledge about the owner of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ownership {
    /// It may live, belongs to another user, or is not named.
    Owned,
    /// Its process has ended.
    Dead,
    /// It has given no sign of life for too long.
    Lapsed,
}

/// `now` is the time on the clock of the API server. While it is unknown, no owner counts as silent.
fn ownership(
    pod: &Pod,
    dead: &dyn DeadOwners,
    now: Option<SystemTime>,
    skew: Duration,
) -> Ownership {
    if pod.labels().contains_key(labels::PRESERVED) {
        return Ownership::Owned;
    }
    let own_user = rustix::process::getuid().as_raw();
    let Some(owner) = labels::owner(pod).filter(|owner| owner.uid == own_user) else {
        return Ownership::Owned;
    };
    if dead.is_dead(&owner) {
        return Ownership::Dead;
    }
    let until = labels::owned_until(pod).zip(now);
    let lapsed = until.is_some_and(|(until, now)| until + skew < now);
    if lapsed { Ownership::Lapsed } else { Ownership::Owned }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rollout_environment::Owner;

    use super::*;

    struct AllDead(bool);

    impl DeadOwners for AllDead {
        fn is_dead(&self, _: &Owner) -> bool {
            self.0
        }
    }

    fn pod(owner: &Owner, until: SystemTime) -> Pod {
        let mut pod = Pod::default();
        let label = owner.to_label().expect("a label");
        pod.annotations_mut().insert(labels::OWNER.to_owned(), label);
        let until = labels::alive_until(until, Duration::ZERO);
        pod.annotations_mut().insert(labels::ALIVE_UNTIL.to_owned(), until);
        pod
    }

    #[test]
    fn pod_is_abandoned_by_proof_or_after_its_lease() {
        use Ownership::*;
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let skew = Duration::from_secs(600);
        let is = |pod: &Pod, dead| ownership(pod, &AllDead(dead), Some(now), skew);
        let owner = Owner::current(PathBuf::from("/nowhere"));
        let leased = pod(&owner, now + Duration::from_secs(1));
        assert_eq!(is(&leased, false), Owned);
        assert_eq!(is(&leased, true), Dead);
        let recent = pod(&owner, now - Duration::from_secs(60));
        assert_eq!(is(&recent, false), Owned, "clocks may differ");
        let lapsed = pod(&owner, now - Duration::from_secs(3600));
        assert_eq!(is(&lapsed, false), Lapsed);
        assert_eq!(ownership(&lapsed, &AllDead(false), None, skew), Owned, "the time is unknown");
        let mut preserved = lapsed;
        preserved.labels_mut().insert(labels::PRESERVED.to_owned(), "true".to_owned());
        assert_eq!(is(&preserved, true), Owned);
        let other = Owner { uid: owner.uid + 1, ..owner };
        assert_eq!(is(&pod(&other, now - Duration::from_secs(9999)), true), Owned);
        assert_eq!(is(&Pod::default(), true), Owned);
    }
}
