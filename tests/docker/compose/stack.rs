//! The stack of `docker-compose.yml`: a run over it, of which one worker is killed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::{DockerEngine, find_compose_program};
use rollout_tests::ignored::or_ignored;
use rollout_tests::net::free_port;
use rollout_tests::program::RunningProgram;
use rollout_tests::project::{Project, repository};
use rollout_tests::{nats, wait};
use serde_json::{Map, Value, json};

use crate::compose::DEADLINE;
use crate::compose::images::{Images, docker, program, try_docker};

/// Two agents on two tasks, each so many times.
const ATTEMPTS: usize = 6;
const TRIALS: usize = 4 * ATTEMPTS;

/// Lease of the killed worker's trials. Coordinator and workers must have the same.
const LEASE: &str = "10s";

/// File that labels the objects of the stack with the directory of the test: `tests/run` looks for
/// those that a killed test leaves. Compose labels containers with its files itself.
const LABELS: &str = "labels.yml";

fn labels(project: &Project) -> String {
    let compose = fs::read_to_string(repository().join("docker-compose.yml")).expect("readable");
    let compose: Value = serde_saphyr::from_str(&compose).expect("YAML");
    let label = json!({"labels": {"rollout.test": project.path().join(LABELS)}});
    let labelled = |kind: &str| -> Value {
        let names = compose[kind].as_object().expect("a table").keys();
        names.map(|name| (name.clone(), label.clone())).collect::<Map<_, _>>().into()
    };
    // As the first process of a container, the S3 server of the tests would ignore the signal to end.
    let services = json!({"garage": {"init": true}});
    json!({"networks": labelled("networks"), "volumes": labelled("volumes"), "services": services})
        .to_string()
}

/// Image of the blob store: of the server named by `ROLLOUT_TEST_GARAGE`, which takes long to build,
/// else of the S3 server of the tests, which takes Garage's arguments. That one is in the program under
/// test, which the engine has in the image `rollout`.
fn blob_store(images: &mut Images, rollout: &str) -> String {
    match std::env::var_os("ROLLOUT_TEST_GARAGE") {
        Some(server) => images.program("garage", Path::new(&server), false),
        None => images.renamed("garage", rollout),
    }
}

/// A stack with images of its own. Dropped, it is removed with its volumes.
#[derive(Debug)]
struct Stack {
    /// Name of the compose project.
    name: String,
    compose: PathBuf,
    variables: Vec<(&'static str, String)>,
    /// Directory of captured output.
    project: Project,
    _images: Images,
}

impl Stack {
    /// Builds the images of the stack of a test; the test is ignored if something is missing.
    fn open(test: &str) -> Option<Self> {
        let _engine = DockerEngine::available()?;
        let compose = or_ignored(find_compose_program())?;
        let [server, ..] = &nats::programs()[..] else { return None };
        let host = std::env::var("DOCKER_HOST").unwrap_or_default();
        let socket = match host.as_str() {
            "" => "/var/run/docker.sock",
            host => {
                let path = host.strip_prefix("unix://");
                or_ignored(path.ok_or_else(|| "needs an engine at a Unix socket".to_owned()))?
            }
        };
        let mut images = Images::new(&format!("stack-{test}"));
        let rollout = images.rollout("full", &images.program_under_test());
        let garage = blob_store(&mut images, &rollout);
        let variables = vec![
            ("ROLLOUT_IMAGE", rollout),
            ("NATS_IMAGE", images.program("nats-server", server, true)),
            ("GARAGE_IMAGE", garage),
            ("DOCKER_SOCKET", socket.to_owned()),
            ("ROLLOUT_LEASE", LEASE.to_owned()),
        ];
        let name = format!("rollout-test-{}-{test}", std::process::id());
        let project = Project::new(program().to_str().expect("UTF-8"));
        project.write_file(LABELS, &labels(&project));
        Some(Self { name, compose, variables, project, _images: images })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.compose);
        command.arg("--project-name").arg(&self.name);
        command.arg("--file").arg(repository().join("docker-compose.yml"));
        command.arg("--file").arg(self.project.path().join(LABELS));
        command.args(arguments).envs(self.variables.iter().map(|(k, v)| (k, v)));
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("docker compose starts")
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {stderr}\n{}", self.logs());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn logs(&self) -> String {
        let output = self.output(&["logs", "--no-color", "--tail", "40"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Starts a command of the coordinator.
    fn coordinator(&self, arguments: &[&str]) -> RunningProgram {
        let mut words = vec!["run", "--rm", "-T", "coordinator"];
        words.extend(arguments);
        self.project.start(self.command(&words))
    }

    /// Objects of the engine that belong to the stack.
    fn objects(&self) -> Vec<String> {
        let label = format!("label=com.docker.compose.project={}", self.name);
        let lists: [&[&str]; 3] = [
            &["ps", "--all", "--format", "{{.Names}}"],
            &["network", "ls", "--format", "{{.Name}}"],
            &["volume", "ls", "--format", "{{.Name}}"],
        ];
        let list = |words: &&[&str]| {
            let words = [*words, &["--filter", label.as_str()]].concat();
            docker(&words).lines().map(str::to_owned).collect::<Vec<_>>()
        };
        lists.iter().flat_map(list).collect()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let profiles = ["--profile", "coordinator", "--profile", "server"];
        let down = ["down", "--volumes", "--remove-orphans", "--timeout", "1"];
        drop(self.output(&[&profiles[..], &down[..]].concat()));
    }
}

/// Events of a kind.
fn events(output: &str, kind: &str) -> Vec<Value> {
    let lines = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|event| event["event"] == kind).collect()
}

#[test]
fn stack_completes_run_when_worker_is_killed() {
    let Some(stack) = Stack::open("run") else { return };
    let _started = stack.run(&["up", "--detach"]);
    let attempts = ATTEMPTS.to_string();
    let job = ["run", "examples/docker/job.yaml", "--json", "-k", &attempts, "-n", "4"];
    let mut run = stack.coordinator(&job);
    let settled = |run: &RunningProgram| events(&run.stdout(), "trial_settled").len();
    let begun = wait::holds_within(DEADLINE, || run.has_ended() || settled(&run) >= 2);
    assert!(begun && settled(&run) < TRIALS, "{}{}\n{}", run.stdout(), run.stderr(), stack.logs());

    let killed = format!("{}-worker-2", stack.name);
    let _name = docker(&["kill", &killed]);
    let ended = run.wait(DEADLINE);
    assert_eq!(
        ended.status.code(),
        Some(i32::from(ExitCode::Success.code())),
        "{}{}\n{}",
        ended.stdout,
        ended.stderr,
        stack.logs()
    );

    let results = events(&ended.stdout, "trial_settled");
    let trials: BTreeSet<String> =
        results.iter().map(|event| event["settlement"]["item"].to_string()).collect();
    assert_eq!((results.len(), trials.len()), (TRIALS, TRIALS), "{}", ended.stdout);
    let result = events(&ended.stdout, "result").pop().expect("the last line");
    assert_eq!(result["completed_trials"], TRIALS, "{result}");

    let status = stack.coordinator(&["status", "jobs/docker", "--json"]).wait(DEADLINE);
    let status = status.expect_code(ExitCode::Success).stdout;
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["state"], "completed", "{status}");
    workers_remove_containers_of_killed_one(&stack);
    let _gone = stack.run(&["--profile", "coordinator", "down", "--volumes", "--timeout", "20"]);
    assert_eq!(stack.objects(), Vec::<String>::new());
}

#[test]
fn stack_serves_runs_over_http() {
    let Some(mut stack) = Stack::open("server") else { return };
    // Another test, or a user of this host, may have the usual one.
    stack.variables.push(("SERVER_PORT", free_port().to_string()));
    let _started = stack.run(&["--profile", "server", "up", "--detach"]);
    let in_server = |script: &str| {
        let words = ["--profile", "server", "exec", "-T", "server", "bash", "-euc", script];
        stack.output(&words)
    };
    // It is written when the server listens.
    let client = "/var/lib/rollout/server/client.env";
    let listens = || in_server(&format!("test -s {client}")).status.success();
    assert!(wait::holds_within(DEADLINE, listens), "{}", stack.logs());
    let ran = in_server(&format!(
        ". {client}; unset ROLLOUT_NATS_URL; rollout run examples/docker/job.yaml --executor remote --remote-endpoint \
         \"$ROLLOUT_API_URL\" --json"
    ));
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{printed}{stderr}\n{}", stack.logs());
    assert_eq!(events(&printed, "trial_settled").len(), 4, "{printed}");
    // Its runs are in its volume.
    let _restarted =
        stack.run(&["--profile", "server", "up", "--detach", "--force-recreate", "server"]);
    let listed = || {
        let listing = in_server(&format!(
            ". {client}; exec 3<>/dev/tcp/127.0.0.1/4280; printf 'GET /v1/runs HTTP/1.0\\r\\n\
             authorization: Bearer %s\\r\\n\\r\\n' \"$ROLLOUT_API_TOKEN\" >&3; cat <&3"
        ));
        String::from_utf8_lossy(&listing.stdout).contains("\"completed\"")
    };
    assert!(wait::holds_within(DEADLINE, listed), "{}", stack.logs());
}

/// The remaining worker removes what the killed one left.
fn workers_remove_containers_of_killed_one(stack: &Stack) {
    let left = || {
        let owned = try_docker(&["ps", "--all", "--quiet", "--filter", "label=dev.rollout.owner"]);
        let ids = String::from_utf8_lossy(&owned.stdout).into_owned();
        let of_stack = |id: &&str| {
            let label = "{{index .Config.Labels \"dev.rollout.owner\"}}";
            let owner = try_docker(&["inspect", "--format", label, id]);
            String::from_utf8_lossy(&owner.stdout).contains("\"/var/lib/rollout/")
        };
        ids.lines().filter(of_stack).map(str::to_owned).collect::<Vec<_>>()
    };
    let removed = wait::holds_within(DEADLINE, || left().is_empty());
    assert!(removed, "{:?}\n{}", left(), stack.logs());
}
