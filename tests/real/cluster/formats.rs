//! Tasks of both formats over a NATS server with two workers.

use rollout_tests::docker::{self, DockerEngine};
use rollout_tests::formats::FormatTable;
use rollout_tests::ignored::or_ignored_part;

use crate::cluster::{DEADLINE, assert_no_leaks, cluster};

#[test]
fn task_formats_match_table_over_nats() {
    let Some(_engine) = DockerEngine::available() else { return };
    let Some(cluster) = cluster() else { return };
    let compose = or_ignored_part(docker::find_compose_program(), "tasks with services");
    let except: &[&str] = if compose.is_some() { &[] } else { &["compose"] };
    let formats = FormatTable::read();
    formats.write_job(&cluster.project, "docker", except);
    let start = |name| cluster.worker(name, 2).with_option("--provider", "docker").started();
    let workers = ["a", "b"].map(start);
    let mut coordinator = cluster.coordinator("job.yaml").started();
    let ended = coordinator.wait(DEADLINE);
    let results = cluster.project.results("formats");
    let (_, differences) = formats.differences(&results, "docker", except);
    assert!(differences.is_empty(), "{differences:#?}\n{}", ended.stderr);
    assert_no_leaks(&cluster, &["formats"], workers);
}
