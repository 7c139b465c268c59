//! Tasks of the Harbor format whose agents reach only the hosts of an allowlist.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::ignored::or_ignored_part;
use rollout_tests::model_server::ModelServer;
use rollout_tests::project::Project;
use rollout_tests::results::TrialDirectory;
use serde_json::{Value, json};

use crate::agents::INSTALL_DEADLINE;
use crate::agents::fixture::{AgentRun, assert_solved, task};
use crate::agents::programs::check_tested;

/// Longest duration of a run.
const DEADLINE: Duration = Duration::from_secs(240);

/// Functions of the scripts: `get URL` and `tunnel HOST:PORT` over the proxy of the phase, and
/// `direct` past it, to this host.
const FUNCTIONS: &str = r#"
gateway=$(while read -r _ to via _; do
  [ "$to" = 00000000 ] && printf '%d.%d.%d.%d' "0x${via:6:2}" "0x${via:4:2}" "0x${via:2:2}" "0x${via:0:2}"
done </proc/net/route)
[ -z "$gateway" ] || echo "$gateway" >/tmp/gateway
through_proxy() {
  local proxy=${http_proxy#http://}
  exec 3<>"/dev/tcp/${proxy%:*}/${proxy##*:}" || return
  printf "$1" >&3
  timeout 20 cat <&3
}
get() { through_proxy "GET $1 HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n"; }
tunnel() { through_proxy "CONNECT $1 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"; }
direct() { timeout 5 bash -c "</dev/tcp/$(cat /tmp/gateway)/$PORT" 2>/dev/null; }
fail() { echo "$*" >&2; exit 1; }
"#;

/// A server of this host that answers every connection; returns its port.
fn serve() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let serving = supervise::thread("host", move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            stream.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
            // A connection of `direct` sends nothing.
            let Ok(1..) = stream.read(&mut [0; 1024]) else { continue };
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n";
            let _closed = stream.write_all(format!("{head}walrus").as_bytes());
        }
    });
    drop(serving.expect("a thread"));
    port
}

/// Runs a task in an environment, with these scripts of the agent and these tests. Returns the standard
/// error, too.
fn run(
    environment: &Value,
    task: &str,
    scripts: [&str; 3],
    options: &[&str],
) -> (Project, TrialDirectory, String) {
    let [install, execute, tests] = scripts.map(|script| format!("{FUNCTIONS}{script}\n"));
    let project = Project::new(env!("CARGO_BIN_EXE_rollout-under-test"));
    project.write_small_task(&format!("{tests}\necho 1 >/logs/verifier/reward.txt\n"));
    let port = serve().to_string();
    project.write_file("tasks/t/task.toml", &task.replace("PORT", &port));
    let job = json!({
        "name": "hosts",
        "retry": {"max_attempts": 1},
        "environment": environment,
        "agents": [{"name": "mine", "install": install, "execute": execute, "env": {"PORT": port}}],
        "verifier": {"env": {"PORT": port}, "test_exit_code": "must_be_zero"},
        "datasets": [{"path": "tasks"}],
    });
    project.write_file("job.yaml", &job.to_string());
    let arguments = [&["run", "job.yaml"], options].concat();
    let ended = project.start(project.command(&arguments)).wait(DEADLINE);
    let ended = ended.expect_code(ExitCode::Success);
    let trial = project.results("hosts").trial("mine", "t");
    (project, trial, ended.stderr)
}

#[track_caller]
fn assert_passed(trial: &TrialDirectory) {
    let said = ["setup/stderr.txt", "command/stderr.txt", "logs/verifier/stderr.txt"];
    let said: Vec<_> = said.iter().filter_map(|file| trial.text(file)).collect();
    assert_eq!(trial.reward(), Some(1.0), "{:#}\n{said:?}", trial.result);
}

#[test]
fn agent_reaches_listed_hosts_over_proxy_and_no_other_on_docker() {
    if DockerEngine::available().is_none() {
        return;
    }
    let task = "schema_version = '1.4'\n\
                [agent]\nnetwork_mode = 'allowlist'\n\
                allowed_hosts = ['localhost:PORT', '127.0.0.1:PORT', '::1']\n";
    let install = "direct || fail 'install: no network'\n[ -z \"${http_proxy:-}\" ] || fail proxy";
    let execute = r#"
[ "$HTTPS_PROXY" = "$http_proxy" ] && [ "$no_proxy" = localhost,127.0.0.1,::1 ] || fail variables
said=$(get "http://localhost:$PORT/")
case $said in *'200 OK'*walrus) ;; *) fail "listed: $said" ;; esac
said=$(tunnel "localhost:$PORT")
case $said in *'200 OK'*walrus) ;; *) fail "tunnel: $said" ;; esac
said=$(get http://example.org/)
case $said in *'403 Forbidden'*'the host example.org:80 is refused'*) ;; *) fail "other: $said" ;; esac
said=$(tunnel example.org:443)
case $said in *'403 Forbidden'*) ;; *) fail "other tunnel: $said" ;; esac
said=$(get "http://169.254.169.254/")
case $said in *'403 Forbidden'*) ;; *) fail "metadata: $said" ;; esac
! direct || fail 'there is a way past the proxy'
[ "$(ls /sys/class/net)" = lo ] || fail interfaces
"#;
    let tests = "direct || fail 'tests: no network'\n[ -z \"${http_proxy:-}\" ] || fail proxy";
    let (_project, trial, _) =
        run(&json!({"type": "docker"}), task, [install, execute, tests], &[]);
    assert_passed(&trial);
    let refused = trial.text("network/refused.json").expect("the refused hosts");
    let refused: Value = serde_json::from_str(&refused).expect("JSON");
    assert_eq!(refused["requests"], 3, "{refused:#}");
    let tunnel = json!({"host": "example.org:443", "reason": "not_listed", "requests": 1});
    assert_eq!(refused["hosts"][1], tunnel, "{refused:#}");
}

#[test]
fn hosts_of_job_are_added_for_agent_only_on_docker() {
    if DockerEngine::available().is_some() {
        assert_hosts_of_job_are_added_for_agent_only(&json!({"type": "docker"}));
    }
}

#[test]
fn hosts_of_job_are_added_for_agent_only_in_sandbox() {
    let config = json!({"ignore_dockerfile": true});
    let environment = json!({"type": "process", "provider_config": config});
    let said = assert_hosts_of_job_are_added_for_agent_only(&environment);
    assert!(said.contains("programs in sandboxes with allowed hosts must use the proxy"), "{said}");
}

/// Returns the standard error of the run.
fn assert_hosts_of_job_are_added_for_agent_only(environment: &Value) -> String {
    let task = "schema_version = '1.4'\n[environment]\nnetwork_mode = 'allowlist'\n\
                allowed_hosts = ['a.invalid']\n";
    let past =
        "! (exec 3<>/dev/tcp/127.0.0.1/$PORT) 2>/dev/null || fail 'there is a way past the proxy'";
    let refused = "said=$(get \"http://localhost:$PORT/\")\ncase $said in *403*) ;; *) fail \"$said\" ;; esac";
    let refused = format!("{refused}\n{past}");
    let execute = "said=$(get \"http://localhost:$PORT/\")\ncase $said in *walrus) ;; *) fail \"$said\" ;; esac";
    let options = ["--allow-agent-host", "localhost", "--allow-agent-host", "127.0.0.0/8"];
    let (_project, trial, said) = run(environment, task, [&refused, execute, &refused], &options);
    assert_passed(&trial);
    said
}

/// A task without another host than a listed one, during its whole trial.
const LISTED_ONLY: &str = "schema_version = '1.4'\n[environment]\nnetwork_mode = 'allowlist'\n\
                           allowed_hosts = ['example.org']\nworkdir = '/app'\n";

/// The model is called through the gateway, and so needs no entry in the list.
#[test]
fn agents_of_catalogue_call_models_beside_an_allowlist_on_docker() {
    if DockerEngine::available().is_none() {
        return;
    }
    for (agent, dialect) in [("shell", "openai"), ("gemini-cli", "gemini")] {
        if agent != "shell" && or_ignored_part(check_tested(agent), agent).is_none() {
            continue;
        }
        let run = AgentRun::on_docker(agent, dialect);
        let server = ModelServer::start_scripted(task());
        let project = run.project();
        project.write_agent_image("tasks/t/environment");
        project.write_file("tasks/t/task.toml", LISTED_ONLY);
        let trial = run.run_in(&project, &server, INSTALL_DEADLINE);
        assert_solved(agent, &project, &trial, &server);
    }
}
