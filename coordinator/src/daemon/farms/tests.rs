//! Tests of farms in the daemon without sessions.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use rollout_base::supervise;
use rollout_protocol::farm::{FarmSettings, GroupRequest};

use super::{FarmError, FarmQuery, FarmSubmission, HostedFarm, HostedFarmState, SubmittedFarm};
use crate::daemon::tests::write_faults::{FailedChecks, ReplacedDirectory};
use crate::daemon::tests::{daemon, user};
use crate::daemon::{Daemon, DaemonError, Role, SubmittedDocument};

/// A job that is valid without its tasks.
const JOB: &str = "agents: [{name: oracle}]\ndatasets: [{repo: 'https://host/r'}]\n";

fn farm(key: Option<&str>, document: &str) -> FarmSubmission {
    FarmSubmission {
        document: SubmittedDocument { text: document.to_owned(), ..Default::default() },
        settings: FarmSettings::new("policy"),
        priority: 0,
        key: key.map(str::to_owned),
        sha256: document.len().to_string(),
    }
}

fn accepted(result: Result<SubmittedFarm, FarmError>) -> Arc<HostedFarm> {
    match result.expect("accepted") {
        SubmittedFarm::New(farm) | SubmittedFarm::Known(farm) => farm,
    }
}

fn farms(directory: &Path) -> Arc<Daemon> {
    daemon(directory, 9)
}

#[tokio::test]
async fn farm_and_its_key_outlive_the_daemon_and_others_do_not_see_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let ada = user("ada", Role::Submit);
    let id = {
        let daemon = farms(directory.path());
        accepted(daemon.submit_farm(&ada, farm(Some("k"), JOB)).await).id().clone()
    };
    let daemon = farms(directory.path());
    let again = daemon.submit_farm(&ada, farm(Some("k"), JOB)).await.expect("the same");
    assert!(matches!(again, SubmittedFarm::Known(known) if *known.id() == id));
    let other = daemon.submit_farm(&ada, farm(Some("k"), &format!("{JOB}#"))).await;
    assert!(matches!(other, Err(FarmError::Daemon(DaemonError::KeyConflict))));
    let view = daemon.find_farm(&ada, &id).expect("her farm").view();
    assert_eq!((view.state, view.status), (HostedFarmState::Queued, None));
    let bob = user("bob", Role::Submit);
    assert!(matches!(daemon.find_farm(&bob, &id), Err(FarmError::NotFound)));
    let query = FarmQuery { limit: 9, ..FarmQuery::default() };
    assert_eq!(daemon.list_farms(&bob, &query).farms, []);
    assert_eq!(daemon.list_farms(&user("root", Role::Admin), &query).farms.len(), 1);
}

#[tokio::test]
async fn openings_of_one_user_leave_openings_for_others_and_the_administrator() {
    let directory = tempfile::tempdir().expect("a directory");
    let openings = Arc::clone(&farms(directory.path()).farms.openings);
    let user = |name, role| user(name, role).limit_user();
    let ada = user("ada", Role::Submit);
    let held: Vec<_> = std::iter::from_fn(|| openings.try_acquire(&ada, 1).ok()).collect();
    assert!(held.len() >= 2, "{held:?}");
    for other in [user("bob", Role::Submit), user("root", Role::Admin)] {
        let turn = openings.acquire(&other, 0, 1);
        let turn = tokio::time::timeout(Duration::from_secs(1), turn).await;
        let _turn = turn.unwrap_or_else(|_| panic!("{} waits", other.name));
    }
}

#[tokio::test]
async fn one_more_farm_than_allowed_is_refused_until_one_is_deleted() {
    let directory = tempfile::tempdir().expect("a directory");
    let ada = user("ada", Role::Submit);
    let daemon = farms(directory.path());
    let first = accepted(daemon.submit_farm(&ada, farm(None, JOB)).await);
    let refused = daemon.submit_farm(&ada, farm(None, JOB)).await;
    assert!(matches!(refused, Err(FarmError::TooMany { own: 1, max: 1, .. })));
    daemon.delete_farm(&first).await.expect("deleted");
    let request = GroupRequest::new("g".parse().expect("an id"), "t", 1);
    assert!(matches!(first.submit(request).await, Err(FarmError::NotFound)));
    let left = std::fs::read_dir(directory.path().join("farms")).expect("a directory");
    assert_eq!(left.count(), 0);
    accepted(daemon.submit_farm(&ada, farm(None, JOB)).await);
}

#[tokio::test]
async fn refused_farm_leaves_no_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let ada = user("ada", Role::Submit);
    let daemon = farms(directory.path());
    let two = "agents: [{name: oracle}, {name: nop}]\ndatasets: [{repo: 'https://host/r'}]\n";
    for document in ["", "agents: 7", two] {
        let refused = daemon.submit_farm(&ada, farm(None, document)).await;
        let is_invalid = matches!(refused, Err(FarmError::Daemon(DaemonError::Invalid(_))));
        assert!(is_invalid, "{document}: {refused:?}");
    }
    let unnamed = FarmSubmission { settings: FarmSettings::new("a/b"), ..farm(None, JOB) };
    let refused = daemon.submit_farm(&ada, unnamed).await;
    assert!(matches!(refused, Err(FarmError::Settings(_))), "{refused:?}");
    let left = std::fs::read_dir(directory.path().join("farms")).expect("a directory");
    assert_eq!(left.count(), 0);
}

#[tokio::test]
async fn failed_farm_whose_end_cannot_be_noted_is_opened_when_writes_are_possible() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = farms(directory.path());
    let ada = user("ada", Role::Submit);
    let farm = accepted(daemon.submit_farm(&ada, farm(None, JOB)).await);
    assert!(farm.is_due(false));
    let records = ReplacedDirectory::replace(&directory.path().join("farms"));
    super::driver::drive(&daemon, &farm).await;
    farm.set_stage(super::FarmStage::Idle);
    assert_eq!(farm.view().state, HostedFarmState::Failed);
    assert!(!farm.is_due(false), "its session would fail again at once");
    assert!(daemon.check_ready().is_err() && daemon.try_writes().await.is_err());
    records.restore();
    daemon.try_writes().await.expect("writes are possible");
    assert_eq!(farm.view().state, HostedFarmState::Queued);
    assert!(farm.is_due(false));
}

/// A farm that cannot be opened: its document is gone.
async fn broken(directory: &Path) -> (Arc<Daemon>, Arc<HostedFarm>) {
    let daemon = farms(directory);
    let farm = accepted(daemon.submit_farm(&user("ada", Role::Submit), farm(None, JOB)).await);
    let document = directory.join("farms").join(format!("{}.yaml", farm.id()));
    std::fs::remove_file(document).expect("removed");
    (daemon, farm)
}

/// Runs a session of a farm to its end.
async fn drive(daemon: &Daemon, farm: &HostedFarm) {
    super::driver::drive(daemon, farm).await;
    farm.set_stage(super::FarmStage::Idle);
}

#[tokio::test(start_paused = true)]
async fn farm_that_failed_with_its_disk_is_opened_again_although_its_end_was_noted() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, farm) = broken(directory.path()).await;
    let checks = FailedChecks::of(&directory.path().join("jobs"));
    drive(&daemon, &farm).await;
    assert!(daemon.try_writes().await.is_err());
    assert_eq!((farm.view().state, farm.is_due(false)), (HostedFarmState::Failed, false));
    assert!(farm.view().record.failure.is_some_and(|failure| failure.is_temporary));
    let waits = farm.pause().await;
    assert!(matches!(waits, Err(FarmError::WaitsForDisk { .. })), "{waits:?}");
    checks.end();
    assert_eq!(daemon.try_writes().await, Ok(true));
    assert_eq!((farm.view().state, farm.is_due(false)), (HostedFarmState::Queued, true));
}

#[tokio::test]
async fn deleted_farm_that_failed_with_its_disk_waits_for_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, farm) = broken(directory.path()).await;
    let checks = FailedChecks::of(&directory.path().join("jobs"));
    drive(&daemon, &farm).await;
    assert!(farm.is_unwritten());
    farm.record().is_deleted = true;
    assert!(!farm.is_unwritten());
    checks.end();
    assert_eq!(daemon.try_writes().await, Ok(false));
    assert!(farm.view().record.failure.is_some(), "its removal decides");
}

#[tokio::test(start_paused = true)]
async fn farm_whose_failure_is_noted_after_the_end_of_the_fault_is_opened_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, farm) = broken(directory.path()).await;
    let checks = FailedChecks::of(&directory.path().join("jobs"));
    drive(&daemon, &farm).await;
    checks.end();
    // As if a check had passed before the failure was noted.
    assert!(daemon.writes.recovered(daemon.writes.failures()));
    let _before = daemon.wake.notified().now_or_never();
    let _watching = supervise::spawn("watch", Arc::clone(&daemon).watch_writes());
    let woken = tokio::time::timeout(Duration::from_secs(60), daemon.wake.notified());
    woken.await.expect("in time");
    assert!(farm.is_due(false));
}

#[tokio::test]
async fn farm_that_fails_with_its_disk_again_and_again_stays_failed_until_its_user_resumes_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, farm) = broken(directory.path()).await;
    let fail = async || {
        let checks = FailedChecks::of(&directory.path().join("jobs"));
        drive(&daemon, &farm).await;
        checks.end();
        daemon.try_writes().await.expect("writes are possible");
        farm.view().state
    };
    for _retry in 0..3 {
        assert_eq!(fail().await, HostedFarmState::Queued);
    }
    assert_eq!(fail().await, HostedFarmState::Failed);
    let failure = farm.view().record.failure.expect("the cause");
    assert!(!failure.is_temporary && failure.hints[0].starts_with("3 retries"), "{failure:?}");
    assert!(matches!(farm.pause().await, Err(FarmError::Failed(_))));
    // Nothing opens it here.
    tokio::time::pause();
    let resumed = daemon.resume_farm(&farm, None).await;
    assert!(matches!(resumed, Err(FarmError::NotOpen { .. })), "{resumed:?}");
    tokio::time::resume();
    assert_eq!(fail().await, HostedFarmState::Queued);
}

#[tokio::test]
async fn farm_accepted_earlier_is_opened_by_the_rules_of_today_only() {
    let document = |more: &str, dataset: &str| {
        format!("agents: [{{name: oracle}}]\n{more}datasets: [{{{dataset}}}]\n")
    };
    let repo = "repo: 'https://host/r'";
    // As an earlier program, or an operator with other options, accepted them.
    for (document, expected) in [
        (document("prices: /proc/self/environ\n", repo), "it names files of the server"),
        (document("agents_dir: /root\n", repo), "it names files of the server"),
        (document("", "path: /etc"), "the operator's rules forbid parts of it"),
        (document("environment: {type: process}\n", repo), "the operator's rules forbid parts"),
        (document("", "repo: 'http://127.0.0.1:1/r'"), "the operator's rules forbid parts"),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let ada = user("ada", Role::Submit);
        let id = {
            let daemon = farms(directory.path());
            accepted(daemon.submit_farm(&ada, farm(None, JOB)).await).id().clone()
        };
        let kept = directory.path().join("farms").join(format!("{id}.yaml"));
        std::fs::write(kept, &document).expect("written");
        let daemon = farms(directory.path());
        let farm = daemon.find_farm(&ada, &id).expect("her farm");
        assert!(farm.is_due(false), "{document}");
        super::driver::drive(&daemon, &farm).await;
        farm.set_stage(super::FarmStage::Idle);
        let view = farm.view();
        assert_eq!(view.state, HostedFarmState::Failed, "{document}");
        let failure = view.record.failure.expect("a failure");
        assert!(failure.message.contains(expected), "{document}: {failure:?}");
        assert!(!farm.is_due(false), "{document}: it is opened again and again");
        assert!(!farm.directory().exists(), "{document}: its session began");
    }
}
