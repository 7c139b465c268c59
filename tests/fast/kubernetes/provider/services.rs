//! Environments with services: their containers, their start, and their failures.

use std::fs;

use rollout_environment::{ComposeFile, FailureKind, start};
use rollout_protocol::record::StartWaitEnd;
use rollout_tests::kube::PullOutcome;
use rollout_tests::net::free_port;
use serde_json::json;

use super::*;

/// Image of services: the programs of this host.
const SERVICE: &str = "registry.test/service:1";

/// A command that answers on a port with the content of a file.
fn server(port: u16) -> String {
    format!(
        "exec perl -MIO::Socket::INET -e '$$s = IO::Socket::INET->new(Listen => 5, LocalPort => \
         {port}, ReuseAddr => 1) or die; while ($$c = $$s->accept) {{ open F, \"/data/said\"; print \
         $$c <F>; close $$c }}'"
    )
}

/// A health check of that server.
fn healthy(port: u16) -> String {
    format!("{{test: [CMD, bash, -c, '</dev/tcp/127.0.0.1/{port}'], interval: 1s, retries: 20}}")
}

/// Script that reads the server's answer.
fn query(name: &str, port: u16) -> String {
    format!("exec 3<>/dev/tcp/{name}/{port} && cat <&3")
}

/// A task's directory with its compose file.
struct ServicesTask {
    fixture: PodFixture,
    dir: tempfile::TempDir,
}

impl ServicesTask {
    fn new(compose: &str) -> Self {
        Self::with(compose, |options| {
            options.schedule_timeout_sec = 60;
            options.start_timeout_sec = 60;
        })
    }

    fn with(compose: &str, change: impl FnOnce(&mut KubernetesOptions)) -> Self {
        let fixture = PodFixture::with(change);
        fixture.double.image(SERVICE, ImageFixture::new());
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("docker-compose.yaml"), compose).expect("written");
        Self { fixture, dir }
    }

    fn request(&self) -> CreateRequest {
        let file = ComposeFile::of_task(self.dir.path(), "docker-compose.yaml");
        CreateRequest { compose: Some(file), ..request(IMAGE) }
    }

    async fn created(&self) -> Box<dyn Environment> {
        let made = self.fixture.provider.create(self.request()).await;
        made.unwrap_or_else(|failure| panic!("not created: {}", failure.chain()))
    }

    async fn failure(&self) -> Failure {
        let creating = self.fixture.provider.create(self.request());
        let made = tokio::time::timeout(DEADLINE, creating).await.expect("it ends");
        let Err(failure) = made else { panic!("it was created") };
        assert_eq!(self.fixture.double.pods(), Vec::<serde_json::Value>::new(), "nothing is left");
        failure
    }
}

/// Runs a script that must succeed; returns its output.
async fn output(environment: &dyn Environment, script: &str) -> String {
    let argv = ["bash", "-c", script].map(str::to_owned).to_vec();
    let command = ExecCommand { argv, env: BTreeMap::new(), workdir: None, user: None };
    let captured = Arc::new(Captured::default());
    let running = environment.exec(command, captured.clone());
    let exit = tokio::time::timeout(DEADLINE, running).await.expect("it ends");
    let exit = exit.unwrap_or_else(|failure| panic!("`{script}`: {}", failure.chain()));
    let [out, err] = [OutputStream::Stdout, OutputStream::Stderr].map(|s| captured.bytes(s));
    assert_eq!(exit.code, 0, "`{script}`: {}", String::from_utf8_lossy(&err));
    String::from_utf8(out).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn services_share_network_names_and_volumes_with_environment() {
    let port = free_port();
    let task = ServicesTask::new(&format!(
        "services:\n  main:\n    depends_on: {{db: {{condition: service_healthy}}}}\n    volumes: \
         ['data:/shared']\n    environment: {{FROM_FILE: 'a$$b'}}\n  db:\n    image: {SERVICE}\n    \
         command: [bash, -c, {command:?}]\n    container_name: old-name\n    environment: {{OF: \
         '${{CPUS}}'}}\n    volumes: ['data:/data']\n    healthcheck: {healthy}\nvolumes: {{data: \
         {{}}}}\n",
        command = format!("echo said > /data/said; {}", server(port)),
        healthy = healthy(port),
    ));
    let environment = task.created().await;
    let main = environment.as_ref();
    for name in ["db", "old-name", "localhost"] {
        assert_eq!(output(main, &query(name, port)).await, "said\n", "{name}");
    }
    assert_eq!(output(main, "cat /shared/said; echo \"$FROM_FILE\"").await, "said\na$b\n");
    let db = environment.service("db").expect("a service");
    assert!(environment.service("main").is_none() && environment.service("other").is_none());
    assert_eq!(output(db, "echo $OF; echo changed > /data/said; echo x > /own").await, "1\n");
    assert_eq!(output(main, &query("db", port)).await, "changed\n");
    assert_ne!(run(main, "test -e /own").await.0, 0, "roots are separate");
    assert!(db.copy_from("/own").await.expect("readable").is_some());

    // The end of commands leaves services alone.
    output(main, "setsid sleep 1000 >/dev/null 2>&1 &").await;
    environment.kill_processes().await.expect("killed");
    assert_eq!(output(main, &query("db", port)).await, "changed\n");
    let sleeping = db.exec(shell("sleep 1000"), Arc::new(Captured::default()));
    let killing = async {
        eventually(db, "cat /proc/[0-9]*/cmdline | grep -qz '^sleep'").await;
        db.kill_processes().await.expect("killed");
    };
    let (slept, ()) = tokio::join!(sleeping, killing);
    assert_eq!(slept.expect("it ended").code, 137);
    assert_eq!(output(main, &query("db", port)).await, "changed\n");
    environment.destroy().await.expect("destroyed");
    assert_eq!(task.fixture.double.pods(), Vec::<serde_json::Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn services_without_network_reach_each_other() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    let port = free_port();
    let task = ServicesTask::new(&format!(
        "services:\n  db:\n    image: {SERVICE}\n    command: [bash, -c, {command:?}]\n    volumes: \
         ['/data']\n    healthcheck: {healthy}\n",
        command = format!("echo inside > /data/said; {}", server(port)),
        healthy = healthy(port),
    ));
    let request = CreateRequest { network: NetworkPolicy::NoNetwork, ..task.request() };
    let made = task.fixture.provider.create(request).await;
    let environment = made.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    assert_eq!(output(environment.as_ref(), &query("db", port)).await, "inside\n");
    assert_eq!(
        output(environment.as_ref(), "ls /sys/class/net; cat /proc/net/dev | grep -c :")
            .await
            .lines()
            .last(),
        Some("1")
    );
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn services_start_in_the_order_of_their_conditions() {
    let log = "volumes: ['log:/log']";
    let task = ServicesTask::new(&format!(
        "services:\n  main: {{{log}}}\n  web:\n    image: {SERVICE}\n    {log}\n    depends_on: \
         {{migrate: {{condition: service_completed_successfully}}}}\n    command: [sh, -c, 'echo \
         web >> /log/order; exec sleep 1000']\n  migrate:\n    image: {SERVICE}\n    {log}\n    \
         depends_on: {{db: {{condition: service_healthy}}}}\n    command: [sh, -c, 'echo migrate >> \
         /log/order']\n  db:\n    image: {SERVICE}\n    {log}\n    command: [sh, -c, 'sleep 2; echo \
         db >> /log/order; exec sleep 1000']\n    healthcheck: {{test: grep -q db /log/order, \
         interval: 1s, retries: 20}}\nvolumes: {{log: {{}}}}\n"
    ));
    let environment = task.created().await;
    eventually(environment.as_ref(), "grep -q web /log/order").await;
    assert_eq!(output(environment.as_ref(), "cat /log/order").await, "db\nmigrate\nweb\n");
    // The last ones of a pod end the others.
    environment.destroy().await.expect("destroyed");
    assert_eq!(task.fixture.double.pods(), Vec::<serde_json::Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn service_that_does_not_start_is_fault_of_its_task() {
    let db = |keys: &str| format!("services: {{db: {{image: {SERVICE}, {keys}}}}}");
    let waiting = |keys: &str| {
        format!(
            "services:\n  db: {{image: {SERVICE}, {keys}}}\n  web: {{image: {SERVICE}, command: sleep \
             1000, depends_on: {{db: {{condition: service_healthy}}}}}}\n"
        )
    };
    for (compose, word) in [
        (db("command: \"sh -c 'echo broken; exit 3'\""), "broken"),
        (db("command: 'true'"), "exited with code 0"),
        (db("command: no-such-program"), "no-such-program"),
        (
            db("command: sleep 1000, healthcheck: {test: exit 1, interval: 1s, retries: 1}"),
            "exited",
        ),
        (
            waiting("command: sleep 1000, healthcheck: {test: exit 1, interval: 1s, retries: 1}"),
            "`db`",
        ),
        (waiting("command: 'false', healthcheck: {test: exit 1, interval: 1s}"), "code 1"),
        (
            format!(
                "services:\n  db: {{image: {SERVICE}, command: 'false'}}\n  main: {{depends_on: {{db: \
                 {{condition: service_completed_successfully}}}}}}\n"
            ),
            "code 1",
        ),
    ] {
        let failure = ServicesTask::new(&compose).failure().await;
        assert_eq!(failure.kind, FailureKind::Unusable, "{compose}: {}", failure.chain());
        assert!(failure.message.contains("`db`"), "{compose}: {failure}");
        assert!(failure.message.contains(word), "{compose}: {failure}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn image_of_service_that_cannot_be_pulled_fails_by_its_cause() {
    for (outcome, kind) in [
        (PullOutcome::Missing, FailureKind::Refused),
        (PullOutcome::Unreachable, FailureKind::Unreachable),
    ] {
        let compose = "services: {db: {image: 'registry.test/broken:1'}}";
        let task = ServicesTask::with(compose, |_| ());
        task.fixture.double.image("registry.test/broken:1", ImageFixture::new().pull(outcome));
        let failure = task.failure().await;
        assert_eq!(failure.kind, kind, "{}", failure.chain());
        assert!(failure.message.contains("the service `db`"), "{failure}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn service_that_is_to_be_restarted_may_fail_at_first() {
    let task = ServicesTask::new(&format!(
        "services:\n  main: {{volumes: ['v:/v']}}\n  db:\n    image: {SERVICE}\n    restart: \
         always\n    volumes: ['v:/v']\n    command: [sh, -c, 'echo x >> /v/runs; [ $$(wc -l < \
         /v/runs) -gt 1 ] && exec sleep 1000']\n    healthcheck: {{test: test $$(wc -l < /v/runs) -gt \
         1, interval: 1s, retries: 20}}\nvolumes: {{v: {{}}}}\n"
    ));
    let environment = task.created().await;
    assert_eq!(output(environment.as_ref(), "cat /v/runs").await, "x\nx\n");
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn service_that_ends_later_leaves_environment_usable() {
    let task = ServicesTask::new(&format!(
        "services:\n  main: {{volumes: ['v:/v']}}\n  db:\n    image: {SERVICE}\n    volumes: \
         ['v:/v']\n    command: [sh, -c, 'while [ ! -e /v/end ]; do sleep 0.1; done; exit 5']\n\
         volumes: {{v: {{}}}}\n"
    ));
    let environment = task.created().await;
    output(environment.as_ref(), "touch /v/end").await;
    let db = environment.service("db").expect("a service");
    let deadline = tokio::time::Instant::now() + DEADLINE;
    let ended = loop {
        let ended = db.exec(shell("true"), Arc::new(Captured::default())).await;
        match ended {
            Err(failure) => break failure,
            Ok(_) => assert!(tokio::time::Instant::now() < deadline, "it goes on"),
        }
    };
    assert_eq!(ended.kind, FailureKind::Unusable, "{}", ended.chain());
    assert_eq!(output(environment.as_ref(), "echo lives").await, "lives\n");
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn key_that_pods_lack_settles_before_anything_starts() {
    let compose = format!("services: {{db: {{image: {SERVICE}, privileged: true}}}}");
    let task = ServicesTask::new(&compose);
    let failure = task.failure().await;
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.message.contains("`services.db.privileged`"), "{failure}");
    let created = task.fixture.double.requests().into_iter().any(|asked| asked.verb == "create");
    assert!(!created, "nothing was created");
    let build = "services: {db: {build: .}}";
    let failure = ServicesTask::new(build).failure().await;
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.message.contains("`services.db.build`"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn environment_without_network_by_its_file_stays_closed() {
    let task = ServicesTask::new("services: {main: {network_mode: none}}");
    let environment = task.created().await;
    environment.set_network(&NetworkPolicy::Public).await.expect("it stays");
    let pod = task.fixture.double.pods().remove(0);
    assert_eq!(pod["metadata"]["labels"]["rollout.dev/network"], json!("none"));
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn service_that_names_networks_is_closed_with_its_pod() {
    if !ignored::is_root_or_ignored("whose containers can share a network") {
        return;
    }
    let compose =
        format!("services: {{db: {{image: {SERVICE}, command: sleep 1000, networks: [default]}}}}");
    let task = ServicesTask::new(&compose);
    let closed = CreateRequest { network: NetworkPolicy::NoNetwork, ..task.request() };
    let closed = task.fixture.provider.create(closed).await;
    let closed = closed.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    let open = task.created().await;
    open.set_network(&NetworkPolicy::NoNetwork).await.expect("closed");
    for pod in task.fixture.double.pods() {
        assert_eq!(pod["metadata"]["labels"]["rollout.dev/network"], json!("none"));
    }
    closed.destroy().await.expect("destroyed");
    open.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn start_of_own_process_of_environment_is_observed() {
    let task = ServicesTask::new(
        "services: {main: {entrypoint: [sh, -c, 'sleep 1.5; echo > /tmp/ready; sleep 5000']}}",
    );
    // With a network it would have that of this host, whose sockets change all the time.
    let closed = CreateRequest { network: NetworkPolicy::NoNetwork, ..task.request() };
    let environment = task.fixture.provider.create(closed).await;
    let environment = environment.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    assert!(environment.has_own_programs());
    let printed = Arc::new(Captured::default());
    let observing = environment.exec(start::observation(), printed.clone());
    let exit = tokio::time::timeout(DEADLINE, observing).await.expect("it ends").expect("it ran");
    let text = String::from_utf8(printed.bytes(OutputStream::Stdout)).expect("text");
    let wait = start::observed(&text).unwrap_or_else(|| panic!("{} {text:?}", exit.code));
    assert_eq!(wait.until, StartWaitEnd::Settled, "{text}");
    assert_eq!(run(environment.as_ref(), "test -e /tmp/ready").await.0, 0, "{text}");
    environment.destroy().await.expect("destroyed");

    let task = ServicesTask::new("services: {main: {command: sleep infinity}}");
    let environment = task.created().await;
    assert!(!environment.has_own_programs());
    environment.destroy().await.expect("destroyed");
}

#[tokio::test(flavor = "multi_thread")]
async fn process_of_environment_survives_end_of_commands() {
    let task = ServicesTask::new(
        "services: {main: {entrypoint: [sh, -c, 'echo $$WORD > /tmp/began; sleep 5000'], \
         environment: {WORD: w}}}",
    );
    let environment = task.created().await;
    eventually(environment.as_ref(), "grep -q w /tmp/began").await;
    output(environment.as_ref(), "setsid sleep 4000 >/dev/null 2>&1 &").await;
    environment.kill_processes().await.expect("killed");
    let alive =
        |time: &str| format!("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep {time}'");
    assert_eq!(run(environment.as_ref(), &alive("[5]000")).await.0, 0, "its own process");
    assert_ne!(run(environment.as_ref(), &alive("[4]000")).await.0, 0, "one of a command");
    environment.destroy().await.expect("destroyed");
}
