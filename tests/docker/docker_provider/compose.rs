//! Environments with services. They need the program `docker compose`: the one in
//! `ROLLOUT_TEST_COMPOSE`, else the installed one; `no` skips the tests.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use rollout_docker::{DockerOptions, DockerProvider};
use rollout_environment::{
    ComposeFile, CreateRequest, DeadOwners, Environment, Failure, FailureKind, ImageSource, Owner,
    Provider as _, Upload,
};
use rollout_protocol::spec::task::NetworkPolicy::{NoNetwork, Public};
use rollout_tests::ignored::report_ignored;

use crate::docker_provider::fixture::{
    BASE, DockerFixture, destroy, output, owner, run, wait_for_script,
};
use crate::docker_provider::network::bridge;

/// A service that answers on port 99 with the content of its file.
const SERVER: &str = "perl -MIO::Socket::INET -e '$$s = IO::Socket::INET->new(Listen => 5, \
    LocalPort => 99, ReuseAddr => 1) or die; while ($$c = $$s->accept) { open F, \"/said\"; \
    print $$c <F>; close $$c }'";

/// Script that reads a service's answer.
pub(super) fn query_script(name: &str) -> String {
    format!("timeout 5 bash -c 'cat </dev/tcp/{name}/99'")
}

/// A fixture with `docker compose`; without, the test is ignored.
pub(super) async fn open() -> Option<DockerFixture> {
    open_with(|_| ()).await
}

/// The same, with changed options.
pub(super) async fn open_with(change: impl FnOnce(&mut DockerOptions)) -> Option<DockerFixture> {
    let mut lab = DockerFixture::open().await?;
    let named = std::env::var("ROLLOUT_TEST_COMPOSE").ok();
    if named.as_deref() == Some("no") {
        report_ignored("needs docker compose, and ROLLOUT_TEST_COMPOSE=no disables it");
        return None;
    }
    let mut options = DockerOptions::new(lab.scratch.path().join("locks"));
    options.compose = named.map(Into::into);
    change(&mut options);
    lab.provider = Arc::new(DockerProvider::new(options));
    Some(lab)
}

/// A request for the environment described by these files.
pub(super) async fn request(
    lab: &DockerFixture,
    files: &[(&str, &str)],
) -> Result<CreateRequest, Failure> {
    let source = lab.context(files);
    let ImageSource::Context { dir, .. } = source.clone() else { unreachable!("a context") };
    let image = lab.provider.prepare(lab.image_request(&source)).await?;
    let mut request = lab.request(image, Vec::new());
    request.source = source;
    request.compose = Some(ComposeFile::of_task(dir, "docker-compose.yaml"));
    Ok(request)
}

/// The environment of a request.
pub(super) async fn created(lab: &DockerFixture, request: CreateRequest) -> Box<dyn Environment> {
    let made = lab.provider.create(request).await;
    made.unwrap_or_else(|failure| panic!("not created: {}", failure.chain()))
}

/// All objects of the engine with the label: containers, networks and volumes.
pub(super) async fn labeled_objects(lab: &DockerFixture, label: &str) -> Vec<String> {
    let filters = Some([("label".to_owned(), vec![label.to_owned()])].into());
    let mut found = lab.containers(label).await;
    let networks = bollard::query_parameters::ListNetworksOptions { filters: filters.clone() };
    let networks = lab.docker.list_networks(Some(networks)).await.expect("listed");
    found.extend(networks.into_iter().filter_map(|network| network.name));
    let volumes = bollard::query_parameters::ListVolumesOptions { filters };
    let volumes = lab.docker.list_volumes(Some(volumes)).await.expect("listed").volumes;
    found.extend(volumes.unwrap_or_default().into_iter().map(|volume| volume.name));
    found
}

/// The label of everything that an environment with services has in the engine.
pub(super) fn project_label(environment: &dyn Environment) -> String {
    format!("dev.rollout.project={}", environment.id())
}

/// A file with the service `db`, with additional keys of the service and of the file.
pub(super) fn with_db(keys: &str, rest: &str) -> String {
    format!(
        "services:\n  main:\n    depends_on: {{db: {{condition: service_healthy}}}}\n  db:\n    \
         image: {BASE}\n    command: [\"bash\", \"-c\", {SERVER:?}]\n    container_name: old-name\n    \
         healthcheck: {{test: [CMD, bash, -c, '</dev/tcp/127.0.0.1/99'], interval: 200ms, \
         timeout: 5s, retries: 50}}\n{keys}{rest}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_services_are_reachable_and_removed() {
    let Some(lab) = open().await else { return };
    let compose = with_db(
        "    volumes: ['./said.txt:/said', 'data:/data']\n    environment: {WORD: 'a$$b', OF: \
         '${CPUS} ${TASK_WORD}'}\n",
        "volumes: {data: {}}\n",
    );
    let dockerfile = format!("FROM {BASE}\nWORKDIR /image\n");
    let files = [
        ("Dockerfile", dockerfile.as_str()),
        ("docker-compose.yaml", compose.as_str()),
        ("said.txt", "it is said\n"),
    ];
    let mut request = request(&lab, &files).await.expect("prepared");
    let image = request.image.clone();
    request.env.insert("TASK_WORD".to_owned(), "x$y".to_owned());
    request.workdir = Some("/work/here".to_owned());
    request.uploads =
        vec![Upload::File { path: "/placed".to_owned(), bytes: "early".into(), executable: false }];
    let environment = created(&lab, request).await;
    let main = environment.as_ref();
    assert_eq!(environment.workdir(), "/work/here");
    assert_eq!(
        output(main, "cat /placed; echo \" $TASK_WORD\"; pwd").await,
        "early x$y\n/work/here\n"
    );
    for name in ["db", "old-name"] {
        assert_eq!(output(main, &query_script(name)).await, "it is said\n", "{name}");
    }
    let db = environment.service("db").expect("a service");
    assert!(environment.service("main").is_none() && environment.service("other").is_none());
    assert_eq!(output(db, "echo $WORD $OF; echo changed > /said").await, "a$b 1 x$y\n");
    assert_eq!(output(main, &query_script("db")).await, "changed\n");
    let said = db.copy_from("/said").await.expect("readable");
    assert!(said.is_some());

    let found = lab.docker.inspect_container(environment.id(), None).await.expect("there");
    let host = found.host_config.expect("it has one");
    assert_eq!((host.memory, host.memory_swap), (Some(512 << 20), Some(512 << 20)));
    assert_eq!((host.nano_cpus, host.pids_limit), (Some(1_000_000_000), Some(512)));
    assert_eq!(host.init, Some(true));
    assert!(host.binds.unwrap_or_default().iter().all(|bind| !bind.starts_with('/')));

    // Processes started by a command end, services keep running.
    output(main, "setsid sleep 1000 >/dev/null 2>&1 &").await;
    environment.kill_processes().await.expect("killed");
    assert_eq!(run(main, "cat /proc/[0-9]*/comm | grep -c sleep").await.1, "1\n");
    assert_eq!(output(main, &query_script("db")).await, "changed\n");

    let label = project_label(main);
    assert_eq!(labeled_objects(&lab, &label).await.len(), 4, "two containers, a network, a volume");
    environment.stop().await.expect("stopped");
    assert!(environment.copy_from("/placed").await.expect("readable").is_some());
    environment.destroy().await.expect("destroyed");
    environment.destroy().await.expect("destroyed already");
    assert!(labeled_objects(&lab, &label).await.is_empty());
    lab.remove_image(&image).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_legacy_variables_and_service_builds_work() {
    let Some(lab) = open().await else { return };
    let compose = "services:\n  main:\n    build: {context: '${CONTEXT_DIR}'}\n    image: \
                   ${MAIN_IMAGE_NAME}\n    command: [sh, -c, sleep infinity]\n    volumes:\n      - \
                   ${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}\n    deploy: {resources: \
                   {limits: {cpus: '${CPUS}', memory: '${MEMORY}'}}}\n    secrets: [key]\n  tool:\n    \
                   build: {context: ./tool, dockerfile: Other, args: {WORD: built}, target: one}\n    \
                   command: [sleep, infinity]\nsecrets: {key: {file: ./key.txt}}\n";
    let dockerfile = format!("FROM {BASE}\n");
    let other = format!(
        "FROM {BASE} AS one\nARG WORD\nARG TARGETARCH\nCOPY --chmod=750 Other /copied\n\
         RUN --mount=type=cache,target=/cache echo $WORD ${{TARGETARCH:+here}} > /word\n\
         FROM one AS two\nRUN false\n"
    );
    let files = [
        ("Dockerfile", dockerfile.as_str()),
        ("docker-compose.yaml", compose),
        ("tool/Other", other.as_str()),
        ("key.txt", "secret"),
    ];
    let request = request(&lab, &files).await.expect("prepared");
    let image = request.image.clone();
    let environment = created(&lab, request).await;
    let main = environment.as_ref();
    let tool = environment.service("tool").expect("a service");
    assert_eq!(output(tool, "cat /word; stat -c %a /copied").await, "built here\n750\n");
    assert_eq!(output(main, "cat /run/secrets/key").await, "secret");
    let fresh = Upload::FreshDir { path: "/logs/verifier".to_owned() };
    output(main, "echo 1 > /logs/verifier/old").await;
    environment.copy_to(vec![fresh]).await.expect("emptied");
    output(main, "ls /logs/verifier | grep -q . && exit 1; echo 1 > /logs/verifier/reward.txt")
        .await;
    environment.stop().await.expect("stopped");
    assert!(environment.copy_from("/logs/verifier/reward.txt").await.expect("readable").is_some());
    let found = lab.docker.inspect_container(tool.id(), None).await.expect("there");
    let built = found.config.and_then(|config| config.image).expect("its image");
    destroy(environment).await;
    for reference in [built, image.reference] {
        lab.remove_image(&rollout_environment::Image::found(reference)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_without_network_reaches_only_services() {
    let Some(lab) = open().await else { return };
    let compose = with_db("    volumes: ['./said.txt:/said:ro']\n", "").replacen(
        "  main:\n",
        &format!("  main:\n    image: {BASE}\n"),
        1,
    );
    let files = [("docker-compose.yaml", compose.as_str()), ("said.txt", "inside\n")];
    let listener = TcpListener::bind(("0.0.0.0", 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let mut request = request(&lab, &files).await.expect("nothing to prepare");
    request.network = NoNetwork;
    let closed = created(&lab, request.clone()).await;
    let main = closed.as_ref();
    assert_eq!(output(main, &query_script("db")).await, "inside\n");
    let network = format!("{}_default", closed.id());
    let found = lab.docker.inspect_network(&network, None).await.expect("its own");
    let config = found.ipam.and_then(|ipam| ipam.config).unwrap_or_default();
    let gateway = config.into_iter().find_map(|config| config.gateway).expect("noted");
    let bridge = bridge(&lab).await.to_string();
    for address in [gateway.as_str(), &bridge, "192.0.2.1"] {
        let script = format!("timeout 4 bash -c '</dev/tcp/{address}/{port}' 2>/dev/null");
        assert_ne!(run(main, &script).await.0, 0, "{address} was reached");
    }
    assert_ne!(run(main, "timeout 10 getent hosts example.org").await.0, 0);
    closed.set_network(&NoNetwork).await.expect("it is so");
    let failure = closed.set_network(&Public).await.expect_err("it stays so");
    assert_eq!(failure.kind, FailureKind::Unsupported, "{}", failure.message);
    destroy(closed).await;

    request.network = Public;
    request.labels = crate::docker_provider::fixture::labels();
    let open = created(&lab, request).await;
    let script = format!("timeout 5 bash -c '</dev/tcp/{bridge}/{port}'");
    wait_for_script(open.as_ref(), &script).await;
    destroy(open).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_with_host_access_is_refused() {
    let Some(lab) = open().await else { return };
    let service = |keys: &str| {
        format!("services:\n  main: {{image: {BASE}}}\n  db:\n    image: {BASE}\n    {keys}\n")
    };
    for (compose, word) in [
        (service("privileged: true"), "`privileged`"),
        (service("volumes: ['/var/run/docker.sock:/var/run/docker.sock']"), "outside"),
        (service("network_mode: host"), "`network_mode`"),
        (service("env_file: /etc/passwd"), "env_file"),
        (
            service("env_file: /etc/passwd").replace("  db:", "  services:"),
            "services.services.env_file",
        ),
        (service("build: /etc"), "outside"),
        (service("use_api_socket: true"), "use_api_socket"),
        (service("networks: [n]\nnetworks: {n: {external: true, name: bridge}}"), "`external`"),
        (service("image: ["), "docker-compose.yaml"),
        (service("scale: 1000"), "1000 containers"),
        (service("deploy: {replicas: 1000}"), "1000 containers"),
        (service("mem_limit: 64g"), "65536 MiB"),
        (service("cpus: 64"), "64 cpus"),
        (service("cpu_shares: 262144"), "`cpu_shares`"),
        (service("volumes: ['./docker-compose.yaml:/']"), "below the root"),
        (service("volumes: ['${HOST_ARTIFACTS_PATH}/db:/x']"), "HOST_ARTIFACTS_PATH"),
    ] {
        let request = request(&lab, &[("docker-compose.yaml", &compose)]).await.expect("nothing");
        let label = format!("dev.rollout.exec={}", request.labels.exec);
        let failure = lab.provider.create(request).await.expect_err(&compose);
        // A file that Compose cannot read is the task's fault. Older versions of Compose know fewer
        // keys.
        let unread = compose.contains("image: [") || failure.message.contains("validating");
        let kind = if unread { FailureKind::Refused } else { FailureKind::Unsupported };
        assert_eq!(failure.kind, kind, "{compose}: {}", failure.chain());
        assert!(failure.message.contains(word), "{compose}: {}", failure.message);
        assert!(labeled_objects(&lab, &label).await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_starts_no_program_of_the_task() {
    let Some(lab) = open().await else { return };
    for name in ["git@127.0.0.1:r.git", "other.yaml"] {
        let compose = format!(
            "services:\n  main: {{}}\n  db:\n    extends: {{file: '{name}', service: x}}\n    \
             environment: {{SAID: '${{SAID}}${{PATH}}'}}\n"
        );
        let other = format!("services: {{x: {{image: '{BASE}', command: [sleep, '100']}}}}\n");
        let marker = lab.scratch.path().join("started");
        let program = format!("#!/bin/sh\ntouch {}\n", marker.display());
        let variables = "COMPOSE_EXPERIMENTAL_GIT_REMOTE=1\nPATH=${CONTEXT_DIR}/bin\nSAID=yes\n";
        let dockerfile = format!("FROM {BASE}\n");
        let files = [
            ("Dockerfile", dockerfile.as_str()),
            ("docker-compose.yaml", &compose),
            (name, &other),
            (".env", variables),
            ("bin/git", &program),
        ];
        let request = request(&lab, &files).await.expect("prepared");
        let context = request.compose.as_ref().expect("there is one").dir.clone();
        let git = context.join("bin/git");
        fs::set_permissions(git, fs::Permissions::from_mode(0o755)).expect("executable");
        let environment = created(&lab, request).await;
        let db = environment.service("db").expect("a service");
        let said = output(db, "echo $SAID").await;
        assert_eq!(said, "yes\n", "{name}");
        assert!(!marker.exists(), "{name}");
        destroy(environment).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_reads_no_file_of_the_task_itself() {
    let Some(lab) = open().await else { return };
    // The program leaves `extends` in a service that extends an empty one.
    let compose = format!(
        "services:\n  main: {{}}\n  db:\n    image: '{BASE}'\n    command: [sleep, '100']\n    \
         extends: {{file: empty.yaml, service: x}}\n"
    );
    let unchecked = "services: {x: {environment: {UNCHECKED: 'yes'}}}\n";
    let dockerfile = format!("FROM {BASE}\n");
    let files = [
        ("Dockerfile", dockerfile.as_str()),
        ("docker-compose.yaml", &compose),
        ("empty.yaml", "services:\n  x:\n"),
        ("0.yaml", unchecked),
        ("1.yaml", unchecked),
        ("2.yaml", unchecked),
        ("3.yaml", unchecked),
    ];
    let environment = created(&lab, request(&lab, &files).await.expect("prepared")).await;
    let db = environment.service("db").expect("a service");
    assert_eq!(output(db, "echo \"<$UNCHECKED>\"").await, "<>\n");
    destroy(environment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_service_that_fails_is_explained_and_removed() {
    let Some(lab) = open().await else { return };
    let service = |keys: &str| {
        format!("services:\n  main: {{image: {BASE}}}\n  db:\n    image: {BASE}\n    {keys}\n")
    };
    for (compose, kind, word) in [
        (service("command: [sh, -c, 'echo broken; exit 3']"), FailureKind::Unusable, "broken"),
        (service("command: [/no/such/program]"), FailureKind::Unusable, "/no/such/program"),
        (
            service(
                "command: [sleep, infinity]\n    healthcheck: {test: 'false', interval: 100ms, \
                 retries: 2}",
            ),
            FailureKind::Unusable,
            "unhealthy",
        ),
        (
            service("command: [x]")
                .replace(&format!("    image: {BASE}"), "    image: 127.0.0.1:9/no/such:1"),
            FailureKind::Unreachable,
            "service `db`",
        ),
    ] {
        let request = request(&lab, &[("docker-compose.yaml", &compose)]).await.expect("nothing");
        let label = format!("dev.rollout.exec={}", request.labels.exec);
        let failure = lab.provider.create(request).await.expect_err(&compose);
        assert_eq!(failure.kind, kind, "{compose}: {}", failure.chain());
        assert!(failure.message.contains(word), "{compose}: {}", failure.message);
        assert!(labeled_objects(&lab, &label).await.is_empty(), "{compose}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_ports_are_not_published_on_host() {
    let Some(lab) = open().await else { return };
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let compose = format!(
        "services:\n  main: {{image: {BASE}}}\n  db:\n    image: {BASE}\n    \
         command: [sleep, infinity]\n    ports: ['127.0.0.1:{port}:1']\n"
    );
    let request = request(&lab, &[("docker-compose.yaml", &compose)]).await.expect("nothing");
    let environment = lab.provider.create(request).await.expect("ports are ignored");
    destroy(environment).await;
}

/// Treats the owners of one boot as dead.
struct ComposeDeadOwners(String);

impl DeadOwners for ComposeDeadOwners {
    fn is_dead(&self, owner: &Owner) -> bool {
        owner.boot_id == self.0
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_services_of_dead_owner_are_reaped_unless_kept() {
    let Some(lab) = open().await else { return };
    let compose = format!(
        "services:\n  main: {{image: {BASE}}}\n  db: {{image: {BASE}, command: [sleep, infinity], \
         volumes: ['data:/data']}}\nvolumes: {{data: {{}}}}\n"
    );
    let files = [("docker-compose.yaml", compose.as_str())];
    let dead = ComposeDeadOwners(format!("compose-{}", std::process::id()));
    let mut made = Vec::new();
    for owner in [Owner { boot_id: dead.0.clone(), ..owner() }, owner()] {
        let mut request = request(&lab, &files).await.expect("nothing to prepare");
        request.labels.owner = owner;
        made.push(created(&lab, request).await);
    }
    let mut request = request(&lab, &files).await.expect("nothing to prepare");
    request.labels.owner = Owner { boot_id: dead.0.clone(), ..owner() };
    let kept = created(&lab, request).await;
    let kept_label = project_label(kept.as_ref());
    kept.stop().await.expect("stopped");
    let way_in = kept.preserve().await.expect("preserved");
    assert!(way_in.contains("docker exec"), "{way_in}");

    let reaped = lab.provider.reap(&dead).await.expect("listed");
    let [doomed, alive] =
        [&made[0], &made[1]].map(|environment| project_label(environment.as_ref()));
    let left = [labeled_objects(&lab, &doomed).await, labeled_objects(&lab, &alive).await];
    let set_aside = labeled_objects(&lab, &kept_label).await;
    for environment in made.into_iter().chain([kept]) {
        destroy(environment).await;
    }
    assert!(reaped.failed.is_empty(), "{reaped:?}");
    assert_eq!(reaped.removed.len(), 4, "{reaped:?}");
    assert_eq!([left[0].len(), left[1].len(), set_aside.len()], [0, 4, 4]);
    assert!(labeled_objects(&lab, &kept_label).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_without_program_is_refused() {
    let Some(mut lab) = DockerFixture::open().await else { return };
    let mut options = DockerOptions::new(lab.scratch.path().join("locks"));
    let old = lab.scratch.path().join("docker-compose");
    fs::write(&old, "#!/bin/sh\necho 1.29.2\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&old, mode).expect("set");
    options.compose = Some(old);
    lab.provider = Arc::new(DockerProvider::new(options));
    let compose = format!("services: {{main: {{image: {BASE}}}}}\n");
    let request = request(&lab, &[("docker-compose.yaml", &compose)]).await.expect("nothing");
    let failure = lab.provider.create(request).await.expect_err("too old");
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert!(failure.message.contains("version 2"), "{}", failure.message);
    assert!(failure.message.contains("install"), "{}", failure.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_services_share_log_directories() {
    let Some(lab) = open().await else { return };
    // The service's image has a file where it mounts the directory.
    let compose = "services:\n  main:\n    volumes: \
                   ['${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}']\n  side:\n    build: \
                   ./side\n    user: nobody\n    command: [sh, -c, 'echo begun > \
                   /logs/artifacts/begun; sleep infinity']\n    volumes:\n      - \
                   ${HOST_ARTIFACTS_PATH}:${ENV_ARTIFACTS_PATH}\n      - {type: bind, source: \
                   '${HOST_AGENT_LOGS_PATH}', target: /seen, read_only: true}\n      - \
                   ${HOST_VERIFIER_LOGS_PATH}:/checked\n";
    let dockerfile = format!("FROM {BASE}\n");
    let side =
        format!("FROM {BASE}\nRUN mkdir -p /logs/artifacts && echo x > /logs/artifacts/own\n");
    let files = [
        ("Dockerfile", dockerfile.as_str()),
        ("docker-compose.yaml", compose),
        ("side/Dockerfile", side.as_str()),
    ];
    let mut request = request(&lab, &files).await.expect("prepared");
    let image = request.image.clone();
    let dirs = ["/logs", "/logs/agent", "/logs/verifier"].map(str::to_owned);
    request.uploads = dirs.map(|path| Upload::Dir { path }).to_vec();
    let environment = created(&lab, request).await;
    let (main, label) = (environment.as_ref(), project_label(environment.as_ref()));
    let side = environment.service("side").expect("a service");
    wait_for_script(main, "cat /logs/artifacts/begun").await;
    assert_eq!(output(main, "ls /logs/artifacts").await, "begun\n");
    for path in ["/logs/agent", "/logs/artifacts", "/logs/verifier"] {
        assert_eq!(output(main, &format!("stat -c %a {path}")).await, "1777\n", "{path}");
    }
    // Files copied while everything runs reach the volumes.
    let placed =
        Upload::File { path: "/logs/agent/a".into(), bytes: "a".into(), executable: false };
    environment.copy_to(vec![placed]).await.expect("placed");
    assert_eq!(output(side, "cat /seen/a; echo out > /logs/artifacts/out").await, "a");
    assert_ne!(run(side, "echo x > /seen/b").await.0, 0, "it is read-only");
    assert!(environment.copy_from("/logs/artifacts/out").await.expect("readable").is_some());
    output(side, "echo 1 > /checked/reward.txt").await;
    assert_eq!(output(main, "cat /logs/verifier/reward.txt").await, "1\n");
    // An agent can delete the content, and a verifier gets fresh directories.
    run(main, "rm -rf /logs").await;
    let dir = Upload::Dir { path: "/logs".to_owned() };
    let fresh = vec![dir, Upload::FreshDir { path: "/logs/verifier".to_owned() }];
    environment.copy_to(fresh.clone()).await.unwrap_or_else(|f| panic!("{}", f.chain()));
    assert_eq!(output(main, "ls -A /logs/verifier; echo 1 > /logs/verifier/reward.txt").await, "");
    assert_eq!(labeled_objects(&lab, &label).await.len(), 6, "2 containers, a network, 3 volumes");
    assert!(environment.copy_from("/logs/verifier/reward.txt").await.expect("readable").is_some());
    // The engine cannot mount volumes where no directory is, so the agent's change stays.
    output(main, "mv /logs /old; echo x > /logs").await;
    let failure = environment.copy_to(fresh).await.expect_err("a file is there");
    assert_eq!(failure.kind, FailureKind::Unusable, "{}", failure.chain());
    assert!(environment.copy_from("/logs/verifier/reward.txt").await.expect("readable").is_none());
    let found = lab.docker.inspect_container(side.id(), None).await.expect("there");
    let built = found.config.and_then(|config| config.image).expect("its image");
    destroy(environment).await;
    assert!(labeled_objects(&lab, &label).await.is_empty());
    for reference in [built, image.reference] {
        lab.remove_image(&rollout_environment::Image { reference, made: true, build: None }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_services_stay_within_environment_limits() {
    let Some(mut lab) = open().await else { return };
    lab.resources.cpus = 2;
    let compose = format!(
        "services:\n  main: {{image: {BASE}}}\n  a: {{image: {BASE}, command: [sleep, infinity], \
         mem_limit: 128m, pids_limit: -1, cpu_quota: 50000, cpu_period: 100000, logging: \
         {{driver: syslog, options: {{syslog-address: 'tcp://127.0.0.1:1'}}}}}}\n  b: {{image: \
         {BASE}, command: [sleep, infinity], scale: 2, memswap_limit: -1, deploy: {{resources: \
         {{limits: {{pids: 100000}}}}}}}}\n"
    );
    let request = request(&lab, &[("docker-compose.yaml", &compose)]).await.expect("nothing");
    let environment = created(&lab, request).await;
    let mut limits = Vec::new();
    for name in lab.containers(&project_label(environment.as_ref())).await {
        let name = name.trim_start_matches('/');
        if name == environment.id() {
            continue;
        }
        let found = lab.docker.inspect_container(name, None).await.expect("there");
        let host = found.host_config.expect("it has one");
        assert_eq!(host.memory, host.memory_swap, "{name}");
        // Another driver would send its output to an address of the task's choice.
        let driver = host.log_config.and_then(|log| log.typ);
        assert_eq!(driver.as_deref(), Some("json-file"), "{name}");
        let memory = host.memory.unwrap_or_default() >> 20;
        limits.push((memory, host.nano_cpus, host.pids_limit));
    }
    destroy(environment).await;
    limits.sort_unstable();
    let [a, b] = [(128, 500_000_000), (192, 750_000_000)].map(|(m, c)| (m, Some(c), Some(512)));
    assert_eq!(limits, [a, b, b]);
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_file_sees_no_worker_variables() {
    let Some(lab) = open().await else { return };
    let compose = format!(
        "services:\n  main:\n    image: {BASE}\n    environment: {{SEEN: \
         'x${{PATH}}${{HOME}}${{USER}}${{PWD}}${{DOCKER_HOST}}${{ROLLOUT_TEST_COMPOSE}}y'}}\n"
    );
    let request = request(&lab, &[("docker-compose.yaml", &compose)]).await.expect("nothing");
    let environment = created(&lab, request).await;
    assert_eq!(output(environment.as_ref(), "echo $SEEN").await, "xy\n");
    destroy(environment).await;
}
