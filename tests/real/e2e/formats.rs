//! Tasks of both formats, which together use every key, with the oracle agent.

use rollout_tests::docker::{self, DockerEngine};
use rollout_tests::formats::FormatTable;

use crate::{DEADLINE, assert_adds_up, assert_nothing_left, project};

#[test]
fn task_formats_match_table_on_docker() {
    let Some(_engine) = DockerEngine::available() else { return };
    let except: &[&str] = if docker::has_compose() { &[] } else { &["compose"] };
    assert_formats("docker", except);
}

#[test]
fn task_formats_match_table_in_sandbox() {
    assert_formats("process", &[]);
}

fn assert_formats(provider: &str, except: &[&str]) {
    let formats = FormatTable::read();
    let project = project();
    formats.write_job(&project, provider, except);
    let ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    let results = project.results("formats");
    let (count, differences) = formats.differences(&results, provider, except);
    assert!(differences.is_empty(), "{differences:#?}\n{}", ended.stderr);
    assert_adds_up(&results, count as u64);
    assert_nothing_left(&project);
}
