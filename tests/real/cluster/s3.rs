//! Workers that share a store in S3 and nothing else.

use std::collections::BTreeSet;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::ClusterMember;
use rollout_tests::project::{copy, repository};
use rollout_tests::s3_server::S3Server;

use crate::cluster::{DEADLINE, assert_no_leaks, cluster};

/// The member with the store at `url` instead of a directory.
pub(crate) fn with_store(member: ClusterMember, url: &str) -> ClusterMember {
    S3Server::environment()
        .into_iter()
        .fold(member.with_option("--store", url), |member, (name, value)| {
            member.with_variable(name, value)
        })
}

#[test]
fn workers_without_shared_disk_share_store_in_s3() {
    let (Some(cluster), server) = (cluster(), S3Server::start()) else { return };
    let url = server.store_url("runs");
    copy(&repository().join("examples"), &cluster.project.path().join("examples"), &[]);
    let start = |name| with_store(cluster.worker(name, 1), &url).started();
    let workers = ["a", "b"].map(start);
    let job = "examples/quickstart/job.yaml";
    let mut coordinator = with_store(cluster.coordinator(job), &url).started();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    let results = cluster.project.results("quickstart");
    assert_eq!((results.count("total_trials"), results.count("passed_trials")), (4, 4));
    let ran_on = results.trials().into_iter().map(|trial| trial.result["worker"].to_string());
    assert_eq!(ran_on.collect::<BTreeSet<_>>().len(), 2, "both worked");
    assert!(!cluster.store().exists(), "no directory is shared");
    assert_no_leaks(&cluster, &["quickstart"], workers);
}

#[test]
fn worker_with_other_store_in_same_bucket_is_refused() {
    let (Some(cluster), server) = (cluster(), S3Server::start()) else { return };
    copy(&repository().join("examples"), &cluster.project.path().join("examples"), &[]);
    let job = "examples/quickstart/job.yaml";
    let url = server.store_url("one");
    let worker = with_store(cluster.worker("a", 1), &url).started();
    let mut coordinator = with_store(cluster.coordinator(job), &url).started();
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    let mut other = with_store(cluster.worker("b", 1), &server.store_url("two")).started();
    let refused = other.wait(DEADLINE).expect_code(ExitCode::OtherStore);
    assert!(refused.stderr.contains("--store"), "{}", refused.stderr);
    assert_no_leaks(&cluster, &["quickstart"], [worker]);
}
