//! The score of a run: the same wherever a user reads it.

use rollout_protocol::exit::ExitCode;
use serde_json::{Value, json};

use crate::serve::{DEADLINE, DaemonProcess, project};

#[test]
fn score_of_run_is_the_same_in_files_commands_and_api() {
    let tasks = ["passes", "verifier-failed", "reward-missing", "reward-text"];
    let tasks = tasks.map(|task| format!("faults/{task}"));
    let tasks = tasks.iter().map(String::as_str);
    let project = project().tasks(tasks, &[]).job("faults.yaml", &[("PROVIDER", "process")]);
    let daemon = DaemonProcess::start(&project, &[]);
    let expected = json!({
        "trials": 4, "passed": 1, "pass_rate": 0.25, "pass_rate_low": 0.25, "pass_rate_high": 0.25,
        "mean_reward": 0.25,
    });
    let shown = "passed 1 of 4 (25%), mean reward 0.25\n";

    let local = project.rollout(&["run", "job.yaml"]).wait(DEADLINE);
    let local = local.expect_code(ExitCode::Success);
    assert!(local.stdout.contains(shown), "{}", local.stdout);
    let result = project.results("faults").job();
    assert_eq!((&result["scored"], &result["mean_reward"]), (&expected, &json!(1.0)));

    let url = daemon.url();
    let words = ["run", "job.yaml", "--executor", "remote", "--remote-endpoint", &url];
    let remote = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(remote.stdout.contains(shown), "{}", remote.stdout);
    let runs = daemon.client.get("/v1/runs").expect(200).json();
    let run = &runs["runs"][0];
    assert_eq!(run["progress"]["scored"], expected, "{run:#}");
    let completed = ["mean_reward", "passed"].map(|key| run["progress"][key].clone());
    assert_eq!(completed, [json!(1.0), json!(1)]);

    let printed = |words: &[&str]| {
        project.rollout(words).wait(DEADLINE).expect_code(ExitCode::Success).stdout
    };
    let document =
        |words: &[&str]| -> Value { serde_json::from_str(&printed(words)).expect("JSON") };
    let directory = format!("state/jobs/{}", run["id"].as_str().expect("an id"));
    for directory in ["jobs/faults", &directory] {
        assert_eq!(document(&["status", directory, "--json"])["scored"], expected);
        assert!(printed(&["status", directory]).contains(shown));
    }
    for jobs in ["jobs", "state/jobs"] {
        let listed = document(&["list", jobs, "--json"]);
        let listed = &listed["runs"][0];
        assert_eq!((&listed["scored"], &listed["pass_rate"]), (&expected, &json!(1.0)));
        let line = printed(&["list", jobs]);
        assert!(line.lines().nth(1).is_some_and(|line| line.ends_with("25%")), "{line}");
    }
    daemon.stop();
}
