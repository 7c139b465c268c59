//! Tasks of both formats that use every key between them, with the oracle.

use rollout_tests::docker::{self, Engine};
use rollout_tests::formats::Formats;

use crate::{DEADLINE, assert_adds_up, assert_nothing_left, project};

#[test]
fn task_formats_match_table_on_docker() {
    let Some(_engine) = Engine::available() else { return };
    let except: &[&str] = if docker::has_compose() { &[] } else { &["compose"] };
    come_to_what_the_table_says("docker", except);
}

#[test]
fn task_formats_match_table_in_sandbox() {
    come_to_what_the_table_says("process", &[]);
}

fn come_to_what_the_table_says(provider: &str, except: &[&str]) {
    let formats = Formats::read();
    let project = project();
    formats.write_job(&project, provider, except);
    let ended = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    let results = project.results("formats");
    let (count, differences) = formats.differences(&results, provider, except);
    assert!(differences.is_empty(), "{differences:#?}\n{}", ended.stderr);
    assert_adds_up(&results, count as u64);
    assert_nothing_left(&project);
}
