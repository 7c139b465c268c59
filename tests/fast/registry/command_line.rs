//! Jobs that the command line describes alone or changes.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use serde_json::Value;

use crate::registry::fixture::{RegistryFixture, tasks};

const DEADLINE: Duration = Duration::from_secs(120);

#[test]
fn command_line_without_job_file_describes_job() {
    let fixture = RegistryFixture::new();
    let dry = |words: &[&str]| {
        let words = [&["run", "--dry-run", "--json", "-e", "process", "-a", "nop"], words].concat();
        fixture.start(&words).wait(DEADLINE)
    };
    let url = fixture.url("gamma");
    for (words, expected) in [
        (vec!["-p", "repos/alpha/tasks", "-t", "alpha-0*", "-x", "alpha-*5"], 9),
        (vec!["-d", "bench@1.0", "--registry", "registry.json", "-l", "7"], 7),
        (vec!["-d", "bench", "--registry", "registry.json"], 40),
        (vec!["--repo", &url], 5),
        (vec!["--repo", "repos/gamma@main", "-p", "repos/beta/tasks"], 20),
    ] {
        let ended = dry(&words).expect_code(ExitCode::Success);
        let plan: Value = serde_json::from_str(&ended.stdout).expect("a plan");
        assert_eq!(plan["counts"]["tasks"], expected, "{words:?}");
    }
    fixture
        .write("deep/job.yaml", "name: j\nagents: [{name: oracle}]\ndatasets: [{path: absent}]\n");
    let words =
        ["-c", "deep/job.yaml", "-p", "repos/gamma/tasks", "--set", "verifier.disable=true"];
    let ended = dry(&words).expect_code(ExitCode::Success);
    assert_eq!(tasks(&ended).len(), 5, "the path is relative to the working directory");
    let plan: Value = serde_json::from_str(&ended.stdout).expect("a plan");
    let provenance = plan["provenance"].as_array().expect("a list");
    let source = |key: &str| {
        let found = provenance.iter().find(|entry| entry["key"] == key);
        found.unwrap_or_else(|| panic!("{key}"))["source"].as_str().expect("text").to_owned()
    };
    assert_eq!(source("verifier.disable"), "--set verifier.disable");
    assert_eq!(source("name"), "deep/job.yaml:1");
    assert_eq!(source("agents[0].name"), "-a nop");

    let refused = dry(&["-p", "repos/gamma/tasks", "--set", "environment.typ=docker"]);
    let refused = refused.expect_code(ExitCode::Config);
    let _said = refused
        .expect_stderr("command line: --set environment.typ: found an unknown key")
        .expect_stderr("did you mean `type`?");
    let unknown = dry(&["-d", "bench"]).expect_code(ExitCode::Usage);
    let _said = unknown.expect_stderr("cannot find the dataset `bench`: add `--registry PATH`");
    let _usage = fixture.start(&["run", "--dry-run"]).wait(DEADLINE).expect_code(ExitCode::Usage);
}
