//! Jobs that the command line sends to a server.

use std::fs;

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use rollout_tests::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::{DEADLINE, DaemonProcess, client_variables, project};

/// A project with a job of slow trials, and a daemon that may use none of its directories.
fn with_daemon(attempts: &str) -> (Project, DaemonProcess, String) {
    let values = [("PROVIDER", "process"), ("ATTEMPTS", attempts)];
    let project = project().tasks(["slow/second"], &[]).job("slow.yaml", &values);
    let (daemon, url) = daemon_in(&project);
    (project, daemon, url)
}

/// A daemon in a project, and its URL.
fn daemon_in(project: &Project) -> (DaemonProcess, String) {
    let words = ["serve", "--dir", "state", "--listen", "127.0.0.1:0"];
    let words = [&words[..], &["--allow-provider", "process"]].concat();
    let daemon = DaemonProcess::started(project, project.rollout(&words));
    let port = daemon.client.connect().peer_addr().expect("an address").port();
    (daemon, format!("http://127.0.0.1:{port}"))
}

#[test]
fn job_and_its_datasets_are_sent_once_and_followed_to_the_end() {
    let (project, daemon, url) = with_daemon("3");
    let run = ["run", "job.yaml", "--executor", "remote", "--remote-endpoint", &url];
    let first = project.rollout(&run).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(first.stdout.matches("trial_settled").count(), 3, "{}", first.stdout);
    for text in ["3 trials: 3 completed", "Results: http://127.0.0.1:"] {
        assert!(first.stdout.contains(text), "no {text:?} in {}", first.stdout);
    }
    let uploads =
        || fs::read_dir(project.path().join("state/datasets")).expect("a directory").count();
    assert_eq!(uploads(), 1);
    // No run reads them, so the archive is the same.
    for file in ["tasks/README.md", "tasks/second/NOTES.md", "tasks/second/extra/data"] {
        project.write_file(file, "not read");
    }
    let again = project.rollout(&[&run[..], &["--json"]].concat()).wait(DEADLINE);
    let again = again.expect_code(ExitCode::Success);
    assert_eq!(uploads(), 1, "the server has the dataset");
    let mut lines = again.stdout.lines().rev();
    let mut next = || -> serde_json::Value {
        serde_json::from_str(lines.next().expect("a line")).expect("JSON")
    };
    let (result, last) = (next(), next());
    assert_eq!((&result["event"], &result["completed_trials"]), (&json!("result"), &json!(3)));
    assert_eq!(last["state"], json!("completed"));
    let items = format!("/v1/runs/{}/items", last["id"].as_str().expect("an id"));
    let items = daemon.client.get(&items).expect(200).json();
    assert_eq!(items["items"][0]["name"], json!("oracle/tasks/second__1"));
}

#[test]
fn detached_run_goes_on_and_obeys_commands_on_its_url() {
    let (project, daemon, url) = with_daemon("300");
    let run = ["run", "job.yaml", "--remote-endpoint", &url];
    let mut following = project.rollout(&run);
    wait::until(DEADLINE, "a trial has ended", || following.stdout().contains("trial_settled"));
    following.signal(Signal::INT);
    let detached = following.wait(DEADLINE).expect_code(ExitCode::Success);
    let detached = detached.expect_stderr("the run goes on");
    let shown = project.paste(&detached.hinted_command()).wait(DEADLINE);
    assert!(shown.expect_code(ExitCode::Success).stdout.contains("trials settled"));
    let line = detached.stdout.lines().next().expect("a line").to_owned();
    let address = line.strip_prefix("submitted ").expect("a URL");
    let status = project.rollout(&["status", address]).wait(DEADLINE);
    assert!(status.stdout.contains("running"), "{}", status.stdout);
    let cancelled = project.rollout(&["cancel", address]).wait(DEADLINE);
    let _cancelled = cancelled.expect_code(ExitCode::Success);
    let id = address.rsplit('/').next().expect("an id");
    daemon.wait_for(id, &["cancelled"]);

    let second = project.rollout(&[&run[..], &["--detach"]].concat()).wait(DEADLINE);
    let second = second.expect_code(ExitCode::Success);
    assert_eq!(second.stdout.lines().count(), 1, "{}", second.stdout);
    daemon.stop();
}

#[test]
fn detached_run_with_undecided_threshold_ends_with_130_and_hints_variable_of_token() {
    let (project, daemon, url) = with_daemon("300");
    let variables = client_variables(&project, &daemon.process.stdout()).expect("a file");
    project.set_variable("TEAM_TOKEN", &variables["ROLLOUT_API_TOKEN"]);
    // A command that takes the usual variable is refused.
    project.set_variable("ROLLOUT_API_TOKEN", "wrong");
    let run = ["run", "job.yaml", "--remote-endpoint", &url, "--remote-token-env", "TEAM_TOKEN"];
    let mut following = project.rollout(&[&run[..], &["--fail-under", "0.5"]].concat());
    wait::until(DEADLINE, "a trial has ended", || following.stdout().contains("trial_settled"));
    following.signal(Signal::INT);
    let detached = following.wait(DEADLINE).expect_code(ExitCode::Cancelled);
    let detached = detached.expect_stderr("the run goes on");
    let hint = detached.hinted_command();
    assert!(hint.contains("TEAM_TOKEN"), "{hint}");
    let shown = project.paste(&hint).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(shown.stdout.contains("trials settled"), "{}", shown.stdout);
    daemon.stop();
}

#[test]
fn lines_of_a_followed_run_have_local_times() {
    if !std::path::Path::new("/usr/share/zoneinfo/Asia/Tokyo").exists() {
        rollout_tests::ignored::report_ignored_part("local times: this host has no time zones");
        return;
    }
    let (project, daemon, url) = with_daemon("1");
    for is_local in [true, false] {
        let options: &[&str] = if is_local { &[] } else { &["--json"] };
        let words = [&["run", "job.yaml", "--remote-endpoint", &url][..], options].concat();
        let mut command = project.command(&words);
        command.env("TZ", "Asia/Tokyo");
        let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
        let line = ended.stdout.lines().find(|line| line.contains("trial_settled"));
        let line = line.unwrap_or_else(|| panic!("no line in {}", ended.stdout));
        assert_eq!(line.contains("+09:00"), is_local, "{line}");
    }
    daemon.stop();
}

#[test]
fn following_outlives_a_restart_of_the_server() {
    let (project, mut daemon, url) = with_daemon("8");
    let mut following = project.rollout(&["run", "job.yaml", "--remote-endpoint", &url]);
    wait::until(DEADLINE, "a trial has ended", || following.stdout().contains("trial_settled"));
    daemon.process.signal(Signal::KILL);
    let _killed = daemon.process.wait(DEADLINE);
    assert!(!following.has_ended());
    let port = url.rsplit(':').next().expect("a port").to_owned();
    let address = format!("127.0.0.1:{port}");
    let words = ["serve", "--dir", "state", "--listen", &address, "--allow-provider", "process"];
    let _daemon = DaemonProcess::started(&project, project.rollout(&words));
    let ended = following.wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(ended.stdout.matches("trial_settled").count(), 8, "{}", ended.stdout);
}

/// The lines of the summary between the headline, which has the time, and the place of the results.
fn figures(stdout: &str) -> Vec<&str> {
    let lines = stdout.lines().skip_while(|line| !line.contains(" trial: "));
    lines.skip(1).take_while(|line| !line.starts_with("Results: ")).collect()
}

#[test]
fn run_on_a_server_ends_as_a_run_on_this_host() {
    let project = project().tasks(["slow/second"], &[]).commit();
    // A part of a task is packed whole.
    project.write_file("tasks/second/environment/.git/HEAD", "kept\n");
    project.write_file("tasks/second/tests/test.sh", "echo 0.5 >/logs/verifier/reward.txt\n");
    let (_daemon, url) = daemon_in(&project);
    let words = ["run", "-p", "tasks", "-a", "oracle", "-e", "process", "--name"];
    for (least, code) in [("0", ExitCode::Success), ("1", ExitCode::FailUnder)] {
        let run = |name: &str, place: &[&str]| {
            let words = [&words[..], &[name, "--fail-under", least], place].concat();
            project.rollout(&words).wait(DEADLINE)
        };
        let here = run(&format!("here-{least}"), &[]).expect_code(code);
        let there = run(&format!("there-{least}"), &["--remote-endpoint", &url]).expect_code(code);
        assert!(!figures(&here.stdout).is_empty(), "{}", here.stdout);
        assert_eq!(figures(&there.stdout), figures(&here.stdout));
    }
    let of_host = project.results("here-1").trial("oracle", "second").result;
    let jobs = project.path().join("state/jobs");
    let mut found = fs::read_dir(&jobs).expect("runs").map(|run| run.expect("readable").path());
    let run = found.find(|run| run.join("result.json").is_file()).expect("a run");
    let run = run.display().to_string();
    let printed = |words: &[&str]| -> Value {
        let ended = project.rollout(words).wait(DEADLINE).expect_code(ExitCode::Success);
        serde_json::from_str(&ended.stdout).expect("JSON")
    };
    let of_server = printed(&["show", &run, "second", "--json"]);
    let record = of_server["executions"][0]["record"]["digest"].as_str().expect("a record");
    let record = printed(&["blob", "get", record, "--run", &run]);
    // The same files, agent and settings, and the same commit.
    assert!(of_host["task_git_commit_id"].is_string(), "{of_host:#}");
    assert_eq!(record["spec"], of_host["spec"]);
    for key in ["task_git_commit_id", "reward"] {
        assert_eq!(of_server[key], of_host[key], "{key}");
    }
}

#[test]
fn option_without_effect_on_a_server_is_refused_before_anything_is_sent() {
    let (project, daemon, url) = with_daemon("1");
    for option in ["--jobs-dir", "--materialize", "--sink"] {
        let value = if option == "--jobs-dir" { "out" } else { "none" };
        let value = if option == "--sink" { "local" } else { value };
        let words = ["run", "job.yaml", "--remote-endpoint", &url, option, value];
        let refused = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Usage);
        assert!(refused.stderr.contains(option), "{}", refused.stderr);
    }
    let job = fs::read_to_string(project.path().join("job.yaml")).expect("a job");
    project.write_file("moved.yaml", &format!("jobs_dir: elsewhere\n{job}"));
    let words = ["run", "moved.yaml", "--remote-endpoint", &url];
    let refused = project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Usage);
    assert!(refused.stderr.contains("`jobs_dir`"), "{}", refused.stderr);
    let uploads = fs::read_dir(project.path().join("state/datasets"));
    assert_eq!(uploads.map_or(0, Iterator::count), 0);
    daemon.stop();
}

#[test]
fn refusal_of_the_server_is_the_error_of_the_command() {
    let (project, _daemon, url) = with_daemon("1");
    project.write_file("job.yaml", "agents: [{name: oracle}]\ntask_env: [HOME]\nsecrets: [PIN]\n\
        environment: {type: process, provider_config: {network: none}}\ndatasets: [{path: tasks}]\n");
    let refused = project.rollout(&["run", "job.yaml", "--remote-endpoint", &url]).wait(DEADLINE);
    let refused = refused.expect_code(ExitCode::Config).expect_stderr("provider_config");
    let masked = "note: masked: PIN in all output (declared secrets)";
    assert!(refused.stderr.contains(masked), "{}", refused.stderr);
    let unreachable = ["run", "job.yaml", "--remote-endpoint", "http://127.0.0.1:1"];
    let _unreachable =
        project.rollout(&unreachable).wait(DEADLINE).expect_code(ExitCode::OutOfReach);
}
