//! Tests of the daemon's core without sessions.

mod host_paths;
mod pauses;
mod turns;
mod uploads;
pub(super) mod write_faults;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rollout_protocol::spec::environment::ProviderKind;

use super::{
    AllowedVariables, Daemon, DaemonError, DaemonOptions, DocumentPolicy, HostedKind, HostedRun,
    HostedRunState, ItemQuery, JobSubmission, Principal, Role, RunFailure, RunFault, RunQuery,
    SubmissionResult, SubmittedDocument,
};
use crate::launch::host::OperatorOptions;
use crate::results::export::ExportFormat;

/// A job that is valid without its tasks.
pub(super) const JOB: &str =
    "name: demo\nagents: [{name: oracle}]\ndatasets: [{repo: 'https://host/r'}]\n";

#[expect(clippy::needless_pass_by_value, reason = "the type of the option")]
fn explain(fault: RunFault) -> RunFailure {
    let message = format!("{fault:?}");
    RunFailure { code: 3, message, details: Vec::new(), hints: Vec::new(), is_temporary: false }
}

/// A daemon that starts no run.
pub(super) fn daemon(directory: &Path, max_queued: usize) -> Arc<Daemon> {
    daemon_with(directory, max_queued, DocumentPolicy::default())
}

/// The same with rules for documents.
fn daemon_with(directory: &Path, max_queued: usize, policy: DocumentPolicy) -> Arc<Daemon> {
    let options = DaemonOptions {
        directory: directory.to_owned(),
        store: None,
        store_cache_mb: 0,
        max_running: 0,
        max_queued,
        max_trials: None,
        max_farms: 1,
        disk_bytes: 1024 * 1024,
        slots: 1,
        removal_wait: Duration::from_secs(60),
        prepare_timeout: Duration::from_secs(60),
        policy,
        host: None,
        operator: OperatorOptions::default(),
        #[cfg(feature = "nats")]
        nats: None,
        explain,
    };
    Daemon::open(options).expect("a daemon")
}

pub(super) fn user(name: &str, role: Role) -> Principal {
    Principal { name: name.to_owned(), role, variables: AllowedVariables::All }
}

pub(super) fn job(key: Option<&str>, document: &str) -> JobSubmission {
    JobSubmission {
        kind: HostedKind::Job,
        document: SubmittedDocument { text: document.to_owned(), ..Default::default() },
        name: None,
        priority: 0,
        key: key.map(str::to_owned),
        sha256: document.len().to_string(),
    }
}

pub(super) fn accepted(result: Result<SubmissionResult, DaemonError>) -> Arc<super::HostedRun> {
    match result.expect("accepted") {
        SubmissionResult::New(run) | SubmissionResult::Known(run) => run,
    }
}

#[tokio::test]
async fn submissions_and_their_keys_outlive_the_daemon() {
    let directory = tempfile::tempdir().expect("a directory");
    let ada = user("ada", Role::Submit);
    let id = {
        let daemon = daemon(directory.path(), 9);
        accepted(daemon.submit(&ada, job(Some("k"), JOB)).await).id().clone()
    };
    let daemon = daemon(directory.path(), 9);
    let again = daemon.submit(&ada, job(Some("k"), JOB)).await.expect("the same");
    assert!(matches!(again, SubmissionResult::Known(run) if *run.id() == id));
    let other = daemon.submit(&ada, job(Some("k"), &format!("{JOB}#"))).await;
    assert!(matches!(other, Err(DaemonError::KeyConflict)));
    let run = daemon.find(&ada, &id).expect("her run");
    assert_eq!((run.view().record.name.as_str(), run.state()), ("demo", HostedRunState::Queued));
    let bob = user("bob", Role::Submit);
    assert!(matches!(daemon.find(&bob, &id), Err(DaemonError::NotFound)));
    assert!(daemon.find(&user("root", Role::Admin), &id).is_ok());
}

#[tokio::test]
async fn submission_whose_client_goes_is_in_the_table() {
    let directory = tempfile::tempdir().expect("a directory");
    let ada = user("ada", Role::Submit);
    let daemon = daemon(directory.path(), 9);
    {
        let mut submitting = std::pin::pin!(daemon.submit(&ada, job(Some("k"), JOB)));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(submitting.as_mut().poll(&mut context).is_pending());
    }
    let listed = || daemon.list(&ada, &RunQuery { limit: 9, ..RunQuery::default() }).runs.len();
    // Its check goes on elsewhere.
    let recorded = async {
        while listed() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), recorded).await.expect("it is in the table");
    let again = daemon.submit(&ada, job(Some("k"), JOB)).await.expect("the same");
    assert!(matches!(again, SubmissionResult::Known(_)));
    assert_eq!(listed(), 1);
}

#[tokio::test]
async fn cancelled_run_stays_cancelled_and_can_be_deleted() {
    let directory = tempfile::tempdir().expect("a directory");
    let ada = user("ada", Role::Submit);
    let daemon = daemon(directory.path(), 1);
    let run = accepted(daemon.submit(&ada, job(None, JOB)).await);
    let full = daemon.submit(&ada, job(None, JOB)).await;
    assert!(matches!(full, Err(DaemonError::Busy { .. })));
    assert!(matches!(daemon.delete(&run).await, Err(DaemonError::Conflict { .. })));
    daemon.pause(&run).await.expect("paused");
    assert_eq!(run.state(), HostedRunState::Paused);
    daemon.cancel(&run).await.expect("cancelled");
    daemon.cancel(&run).await.expect("cancelled before");
    assert_eq!(run.state(), HostedRunState::Cancelled);
    assert!(matches!(daemon.resume(&run).await, Err(DaemonError::Conflict { .. })));
    daemon.delete(&run).await.expect("deleted");
    assert_eq!(daemon.list(&ada, &RunQuery::default()).runs, []);
    let left = std::fs::read_dir(directory.path().join("runs")).expect("a directory");
    assert_eq!(left.count(), 0);
}

#[tokio::test]
async fn refused_document_leaves_no_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 9);
    let ada = user("ada", Role::Submit);
    for document in ["", "agents: 7", "agents: [{name: oracle}]\ndatasets: [{path: /etc}]"] {
        let refused = daemon.submit(&ada, job(None, document)).await;
        assert!(matches!(refused, Err(DaemonError::Invalid(_))), "{document}");
    }
    let left = std::fs::read_dir(directory.path().join("runs")).expect("a directory");
    assert_eq!(left.count(), 0);
}

#[tokio::test]
async fn check_of_a_document_keeps_no_other_submission_waiting() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 9);
    let ada = user("ada", Role::Submit);
    let known = accepted(daemon.submit(&ada, job(Some("known"), JOB)).await);
    let root = user("root", Role::Admin).limit_user();
    let all = super::submit::CONCURRENT_CHECKS;
    let checks = daemon.checks.try_acquire(&root, all).expect("all of them");
    let mut submitting = std::pin::pin!(daemon.submit(&ada, job(None, JOB)));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..9 {
        assert!(submitting.as_mut().poll(&mut context).is_pending());
        tokio::task::yield_now().await;
    }
    assert!(daemon.submitting.try_lock().is_ok(), "the check holds the lock");
    let again = accepted(daemon.submit(&ada, job(Some("known"), JOB)).await);
    assert_eq!(again.id(), known.id());
    drop(checks);
    assert_ne!(accepted(submitting.await).id(), known.id());
}

#[tokio::test]
async fn turns_of_one_user_leave_turns_for_others_and_the_administrator() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 9);
    let [ada, bob] = ["ada", "bob"].map(|name| user(name, Role::Submit));
    let run = accepted(daemon.submit(&bob, job(None, JOB)).await);
    for limit in [&daemon.checks, &daemon.reads, &daemon.exports] {
        let held = std::iter::from_fn(|| limit.try_acquire(&ada.limit_user(), 1).ok());
        let held: Vec<_> = held.collect();
        assert!(held.len() >= 2, "{held:?}");
        for other in [&bob, &user("root", Role::Admin)] {
            let served = async {
                let page = daemon.items(other, &run, ItemQuery::default()).await;
                assert_eq!(page.expect("a page").items.len(), 0);
                let exported = daemon.export(other, &run, ExportFormat::Jsonl, 1.0).await;
                assert!(matches!(exported, Err(DaemonError::Conflict { .. })), "{exported:?}");
                accepted(daemon.submit(other, job(None, JOB)).await)
            };
            let served = tokio::time::timeout(Duration::from_secs(1), served).await;
            served.unwrap_or_else(|_| panic!("{} waits", other.name));
        }
    }
}

/// Drives a run of which an earlier version accepted this document: it ends because of a key.
async fn assert_ended_for_key(
    daemon: &Arc<Daemon>,
    state: &Path,
    run: &Arc<HostedRun>,
    document: &str,
    key: &str,
) {
    let file = state.join("runs").join(format!("{}.yaml", run.id()));
    std::fs::write(file, document).expect("written");
    // It has begun, too.
    std::fs::create_dir_all(run.directory()).expect("made");
    let (session, stops) = super::driver::session(run);
    super::driver::drive(daemon, run, session, stops).await;
    assert_eq!(run.state(), HostedRunState::Failed);
    let record = run.view().record;
    assert_eq!(record.end.map(|end| end.outcome), Some(super::HostedOutcome::Failed));
    let failure = record.failure.expect("a failure");
    assert!(failure.message.contains("it names files of the server"), "{failure:?}");
    assert!(failure.details[0].starts_with(&format!("{key}: ")), "{failure:?}");
}

#[tokio::test]
async fn run_accepted_earlier_with_a_file_of_the_host_ends_and_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 9);
    let run = accepted(daemon.submit(&user("ada", Role::Submit), job(None, JOB)).await);
    let document = format!("{JOB}prices: /proc/self/environ\n");
    assert_ended_for_key(&daemon, directory.path(), &run, &document, "prices").await;
}

#[tokio::test]
async fn search_accepted_earlier_with_a_file_of_the_host_ends_and_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let listed = tempfile::tempdir().expect("a directory");
    let root = listed.path().canonicalize().expect("a path");
    std::fs::create_dir(root.join("repository")).expect("made");
    std::fs::write(root.join("baseline.csv"), "config_id\n").expect("written");
    let search = format!(
        "repository: {0}/repository\nroot_baseline_csv: {0}/baseline.csv\n\
         environment: {{type: process}}\n\
         commands: {{ideas: {{run: a}}, implement: {{run: b}}, sweep: {{run: c}}}}\n",
        root.display()
    );
    let policy = DocumentPolicy {
        paths: vec![root],
        providers: [ProviderKind::Process].into(),
        ..DocumentPolicy::default()
    };
    let daemon = daemon_with(directory.path(), 9, policy);
    let submission = JobSubmission { kind: HostedKind::Tree, ..job(None, &search) };
    let run = accepted(daemon.submit(&user("ada", Role::Submit), submission).await);
    let document = format!("{search}agents_dir: /proc/self/environ\n");
    assert_ended_for_key(&daemon, directory.path(), &run, &document, "agents_dir").await;
}

#[tokio::test]
async fn paused_run_does_not_count_as_running() {
    let directory = tempfile::tempdir().expect("a directory");
    let ada = user("ada", Role::Submit);
    let daemon = daemon(directory.path(), 9);
    let run = accepted(daemon.submit(&ada, job(None, JOB)).await);
    let (session, _stops) = super::driver::session(&run);
    run.set_session(Some(session));
    assert_eq!(daemon.table().running().count(), 1);
    daemon.pause(&run).await.expect("paused");
    assert_eq!(daemon.table().running().count(), 0);
    assert_eq!(daemon.table().live().count(), 1);
}

#[tokio::test]
async fn unfinished_uploads_are_removed_when_the_daemon_starts() {
    let directory = tempfile::tempdir().expect("a directory");
    let uploads = directory.path().join("datasets");
    let whole = uploads.join("0".repeat(64));
    std::fs::create_dir_all(uploads.join(".tmpA/content")).expect("made");
    std::fs::create_dir(&whole).expect("made");
    std::fs::write(uploads.join(".tmpB"), "archive").expect("written");
    let _daemon = daemon(directory.path(), 9);
    let left = std::fs::read_dir(&uploads).expect("a directory");
    let left: Vec<_> = left.map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(left, [whole]);
}
