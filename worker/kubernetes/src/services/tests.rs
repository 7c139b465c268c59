//! Tests of plans and of the pods made from them.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rollout_environment::{EnvironmentLabels, EnvironmentPurpose, Image, Owner};
use rollout_protocol::digest::Digest;
use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
use rollout_protocol::spec::environment::ProviderSpec;
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::NetworkPolicy;
use serde_json::Value;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::super::manifest::{self, PodCreator};
use super::super::options::KubernetesOptions;
use super::super::settings::PodSettings;
use super::*;

/// A task's environment directory with a compose file.
struct Task {
    dir: tempfile::TempDir,
    request: CreateRequest,
    may_show_variables: bool,
    options: String,
}

impl Task {
    fn new(compose: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("docker-compose.yaml"), compose).expect("written");
        fs::create_dir(dir.path().join("db")).expect("made");
        let request = CreateRequest {
            image: Image::found("registry.test/main:1"),
            source: ImageSource::Named("registry.test/main:1".to_owned()),
            resources: Resources { cpus: 2, memory_mb: 1024, ..Resources::default() },
            env: BTreeMap::from([("KEY".to_owned(), "secret".to_owned())]),
            workdir: None,
            network: NetworkPolicy::Public,
            compose: None,
            uploads: Vec::new(),
            settings: ProviderSpec::Kubernetes(Box::default()),
            labels: EnvironmentLabels {
                run: RunId::from_bytes([1; 16]),
                item: ItemId::for_trial("agent", "dataset", "task", 1),
                try_id: TryId::first(1),
                exec: ExecId::from_bytes([7; 16]),
                worker: "w1".parse().expect("a token"),
                owner: Owner::current("/nowhere".into()),
            },
            purpose: EnvironmentPurpose::Agent,
        };
        Self { dir, request, may_show_variables: false, options: String::new() }
    }

    fn file(&self) -> ComposeFile {
        ComposeFile::of_task(self.dir.path(), "docker-compose.yaml")
    }

    fn plan(&self) -> Result<ServicesPlan, Failure> {
        plan(&self.request, &self.file(), self.may_show_variables)
    }

    /// The spec of its pod.
    fn pod(&self) -> Value {
        let plan = self.plan().unwrap_or_else(|failure| panic!("{}", failure.chain()));
        let options = KubernetesOptions::parse(&self.options).expect("options");
        let settings = PodSettings::resolve(&self.request.settings, &options).expect("settings");
        let shares = ServiceShares::divide(&plan, &self.request.resources).expect("they fit");
        let name = |service: &ServiceSpec| match &service.image {
            ServiceImage::Named(name) => name.clone(),
            other => format!("{other:?}"),
        };
        let all = [&plan.main].into_iter().chain(&plan.others);
        let images = all.map(|service| (service.name.clone(), name(service))).collect();
        let setup = ServiceSetup {
            plan: &plan,
            shares: &shares,
            images: &images,
            settings: &settings,
            options: &options,
        };
        let creator = PodCreator { instance: "i".to_owned(), own_pod: None };
        let now = std::time::SystemTime::UNIX_EPOCH;
        let pod =
            manifest::pod(&self.request, &settings, &options, &creator, "n", now, Some(setup));
        serde_json::to_value(pod.expect("a pod").spec).expect("JSON")
    }
}

fn refused(compose: &str) -> Failure {
    Task::new(compose).plan().expect_err(compose)
}

/// A file with the service `db`.
fn with_db(keys: &str) -> String {
    format!("services:\n  main: {{}}\n  db:\n    image: db:1\n    {keys}\n")
}

#[test]
fn service_becomes_container_beside_environment() {
    let task = Task::new(
        "x-db: &db\n  environment: {WORD: 'a$$b', OF: '${CPUS} ${NONE:-none}'}\nservices:\n  \
         main:\n    depends_on: {db: {condition: service_healthy}}\n  db:\n    <<: *db\n    image: \
         db:1\n    command: [sh, -c, 'echo $$(id) $$HOME']\n    container_name: old-name\n    \
         user: '999:998'\n    working_dir: /srv\n    healthcheck: {test: pg_isready, interval: \
         200ms, timeout: 5s, retries: 50, start_period: 10s}\n    volumes: ['data:/data', \
         'data:/more:ro', '/own']\n    tmpfs: '/run:size=8m'\n    shm_size: 64m\n    cap_drop: \
         [CHOWN]\n    mem_limit: 256m\nvolumes: {data: {}}\n",
    );
    let pod = task.pod();
    let names = ["db", "main", "old-name"];
    assert_eq!(pod["hostAliases"], json!([{"ip": "127.0.0.1", "hostnames": names}]));
    assert!(pod.get("initContainers").is_none());
    let db = &pod["containers"][1];
    assert_eq!(db["name"], "service-db");
    assert_eq!(db["image"], "db:1");
    assert!(db.get("command").is_none() && db.get("restartPolicy").is_none());
    // Kubernetes makes `$` of `$$`, and replaces `$(NAME)`.
    assert_eq!(db["args"], json!(["sh", "-c", "echo $$(id) $$HOME"]));
    let variables = json!([{"name": "OF", "value": "2 none"}, {"name": "WORD", "value": "a$$b"}]);
    assert_eq!(db["env"], variables);
    assert_eq!(db["workingDir"], "/srv");
    let probe = json!({
        "exec": {"command": ["/bin/sh", "-c", "pg_isready"]},
        "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 61,
    });
    assert_eq!(db["startupProbe"], probe);
    let context = &db["securityContext"];
    assert_eq!((&context["runAsUser"], &context["runAsGroup"]), (&json!(999), &json!(998)));
    assert!(!context["capabilities"]["add"].to_string().contains("CHOWN"));
    let limits = json!({"cpu": "2000m", "memory": "268435456"});
    assert_eq!(db["resources"], json!({"limits": limits, "requests": limits}));
    let mounts: Vec<_> = db["volumeMounts"].as_array().expect("mounts").iter().collect();
    let targets: Vec<_> = mounts.iter().map(|mount| &mount["mountPath"]).collect();
    assert_eq!(targets, ["/.rollout", "/data", "/more", "/own", "/run", "/dev/shm"]);
    assert_eq!(mounts[1]["name"], mounts[2]["name"]);
    assert_eq!(mounts[2]["readOnly"], true);
    let volume = |name: &Value| {
        let volumes = pod["volumes"].as_array().expect("volumes");
        volumes.iter().find(|volume| volume["name"] == *name).expect("it is there")
    };
    let memory = volume(&mounts[5]["name"]);
    assert_eq!(memory["emptyDir"], json!({"medium": "Memory", "sizeLimit": "67108864"}));
    // Commands in one container use files of no other.
    assert_ne!(pod["containers"][0]["volumeMounts"][0]["name"], mounts[0]["name"]);
    assert_eq!(pod["securityContext"]["sysctls"][0]["value"], "0");
}

#[test]
fn services_that_others_wait_for_are_started_first() {
    let compose = "services:\n  main: {depends_on: [web]}\n  web:\n    image: web:1\n    \
                   depends_on: {migrate: {condition: service_completed_successfully}, cache: \
                   {condition: service_started, required: false}, gone: {condition: \
                   service_started, required: false}}\n  migrate:\n    image: web:1\n    depends_on: \
                   {db: {condition: service_healthy}}\n  db: {image: db:1, healthcheck: {test: \
                   [CMD, ok]}}\n  cache: {image: c:1}\n  worker: {image: w:1, restart: always}\n  \
                   debug: {image: d:1, profiles: [debug], privileged: true}\n";
    let mut task = Task::new(compose);
    task.options = "helper_image: busybox".to_owned();
    let pod = task.pod();
    let names = |list: &str| -> Vec<String> {
        let items = pod[list].as_array().expect("containers").iter();
        items.map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names("containers"), ["main", "service-web"]);
    let init = names("initContainers");
    let at = |name: &str| init.iter().position(|found| found == name).expect(name);
    assert_eq!((init.len(), at("helper")), (5, 0));
    assert!(at("service-db") < at("service-migrate"), "{init:?}");
    let container = |name: &str| &pod["initContainers"][at(name)];
    for (name, policy) in [("service-db", "Always"), ("service-cache", "Always")] {
        assert_eq!(container(name)["restartPolicy"], policy);
    }
    assert!(container("service-migrate").get("restartPolicy").is_none());
    assert_eq!(container("service-db")["startupProbe"]["failureThreshold"], 4);
}

#[test]
fn environment_takes_its_keys_of_the_file() {
    let mut task = Task::new(
        "services:\n  main:\n    image: ${PREBUILT_IMAGE_NAME}\n    command: [sh, -c, sleep \
         infinity]\n    environment: {A: b, K: '${KEY}'}\n    working_dir: /srv\n    user: '1000'\n    \
         cap_drop: [ALL]\n    mem_limit: 9g\n    volumes: ['${HOST_VERIFIER_LOGS_PATH}:\
         ${ENV_VERIFIER_LOGS_PATH}']\n",
    );
    let plan = task.plan().expect("a plan");
    assert_eq!(plan.main.image, ServiceImage::Prepared);
    assert_eq!(plan.main.env["K"], "secret");
    let main = &task.pod()["containers"][0];
    assert!(main["command"][2].as_str().expect("a script").contains("sleep 3600"));
    assert!(main.get("env").is_none(), "it travels with commands");
    assert_eq!(main["workingDir"], "/srv");
    assert_eq!(main["securityContext"]["runAsUser"], 1000);
    assert!(main["securityContext"]["capabilities"].get("add").is_none());
    assert_eq!(main["resources"]["limits"]["memory"], "1024Mi");
    assert_eq!(main["volumeMounts"].as_array().map(Vec::len), Some(1), "only its own directory");
    task.request.workdir = Some("/asked".to_owned());
    assert_eq!(task.pod()["containers"][0]["workingDir"], "/asked");
}

#[test]
fn environment_with_process_of_its_own_runs_it() {
    let pod =
        Task::new("services: {main: {entrypoint: serve 'a b', command: $$x, environment: {A: b}}}")
            .pod();
    let main = &pod["containers"][0];
    let words = main["command"].as_array().expect("words");
    assert_eq!(words[3..], ["rollout", "serve", "a b", "$$x"].map(Value::from));
    assert_eq!(main["env"], json!([{"name": "A", "value": "b"}]));
}

#[test]
fn command_of_environment_without_entrypoint_is_unsupported() {
    let failure = refused("services: {main: {command: serve}}");
    assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    assert!(failure.message.contains("`services.main.command`"), "{failure}");
    for idle in ["command: sleep infinity", "command: bash", "entrypoint: null"] {
        let plan = Task::new(&format!("services: {{main: {{{idle}}}}}")).plan();
        assert!(plan.is_ok(), "{idle}");
    }
}

#[test]
fn environment_with_health_check_is_probed() {
    let check = "healthcheck: {test: ok, interval: 2s}, environment: {A: b}";
    let pod = Task::new(&format!("services: {{main: {{{check}}}}}")).pod();
    let main = &pod["containers"][0];
    assert_eq!(main["startupProbe"]["periodSeconds"], 2);
    assert_eq!(main["env"][0]["name"], "A");
    assert!(main["command"][2].as_str().expect("a script").contains("sleep 3600"));
}

#[test]
fn health_check_reaches_container_as_written() {
    let pod = Task::new(&with_db("healthcheck: {test: 'ls $$(id) $$HOME'}")).pod();
    let command = &pod["containers"][1]["startupProbe"]["exec"]["command"];
    // The kubelet makes `$` of `$$`, and replaces `$(NAME)`, in probes too.
    assert_eq!(*command, json!(["/bin/sh", "-c", "ls $$(id) $$HOME"]));
}

#[test]
fn host_path_that_service_mounts_is_shared_with_environment() {
    let pod = Task::new(&with_db("volumes: ['${HOST_ARTIFACTS_PATH}:/out']")).pod();
    let mount =
        |container: usize, at: usize| pod["containers"][container]["volumeMounts"][at].clone();
    assert_eq!(mount(0, 1)["mountPath"], "/logs/artifacts");
    assert_eq!(mount(1, 1)["mountPath"], "/out");
    assert_eq!(mount(0, 1)["name"], mount(1, 1)["name"]);
}

#[test]
fn services_request_part_of_their_limits_as_environment_does() {
    let mut task = Task::new(&with_db("deploy: {resources: {reservations: {memory: 64m}}}"));
    task.request.settings =
        serde_json::from_value(json!({"type": "kubernetes", "cpu_request": "500m"}))
            .expect("it is");
    let resources = &task.pod()["containers"][1]["resources"];
    assert_eq!(resources["limits"], json!({"cpu": "2000m", "memory": "1073741824"}));
    assert_eq!(resources["requests"], json!({"cpu": "500m", "memory": "67108864"}));
}

#[test]
fn key_that_pods_lack_is_unsupported_by_its_path() {
    for (keys, at) in [
        ("privileged: true", "services.db.privileged"),
        ("cap_add: [NET_ADMIN]", "services.db.cap_add"),
        ("devices: ['/dev/fuse:/dev/fuse']", "services.db.devices"),
        ("network_mode: host", "services.db.network_mode"),
        ("network_mode: none", "services.db.network_mode"),
        ("pid: host", "services.db.pid"),
        ("ipc: host", "services.db.ipc"),
        ("security_opt: ['seccomp=unconfined']", "services.db.security_opt"),
        ("ulimits: {nofile: 5}", "services.db.ulimits"),
        ("sysctls: {a: 1}", "services.db.sysctls"),
        ("user: postgres", "services.db.user"),
        ("scale: 2", "services.db.scale"),
        ("deploy: {replicas: 2}", "services.db.deploy.replicas"),
        ("deploy: {resources: {reservations: {devices: [{count: 1}]}}}", "reservations.devices"),
        ("restart: 'on-failure:3'", "services.db.restart"),
        ("volumes: ['./db:/x']", "services.db.volumes"),
        ("volumes: ['/var/run/docker.sock:/x']", "services.db.volumes"),
        ("volumes: ['data:/']", "services.db.volumes"),
        ("volumes: ['${HOST_ARTIFACTS_PATH}/db:/x']", "HOST_ARTIFACTS_PATH"),
        ("configs: [c]", "services.db.configs"),
        ("extends: {service: main}", "services.db.extends"),
        ("env_file: /etc/passwd", "services.db.env_file"),
        ("build: {context: ./db, args: {A: b}}", "services.db.build.args"),
        ("build: /etc", "services.db.build"),
        ("healthcheck: {interval: 1s}", "services.db.healthcheck.test"),
        ("depends_on: {main: {condition: service_healthy}}", "services.db.depends_on.main"),
        ("depends_on: [other]", "services.db.depends_on.other"),
        ("networks: {default: {ipv4_address: 10.0.0.1}}", "networks.default.ipv4_address"),
        ("extra_hosts: ['host.docker.internal:host-gateway']", "services.db.extra_hosts"),
        ("hostname: DB_1", "services.db"),
        ("use_api_socket: true", "services.db.use_api_socket"),
        ("environment: {X: 'a${KEY}'}", "services.db.environment.X"),
        ("environment: [KEY]", "services.db.environment.KEY"),
        ("entrypoint: []", "services.db.entrypoint"),
        ("entrypoint: ''", "services.db.entrypoint"),
        ("networks: [a]\nnetworks: {a: {}}", "services.db.networks"),
        ("networks: [default]\nnetworks: {default: {external: true}}", "networks.default.external"),
        ("networks: [default]\nnetworks: {default: {internal: true}}", "networks.default.internal"),
        ("volumes: ['v:/v']\nvolumes: {v: {driver_opts: {o: bind}}}", "volumes.v.driver_opts"),
        ("ports: ['80:8080']\n  web: {image: w:1, expose: [8080]}", "services.web.expose"),
    ] {
        let failure = refused(&with_db(keys));
        assert_eq!(failure.kind, FailureKind::Unsupported, "{keys}: {failure}");
        assert!(failure.message.contains(at), "{keys}: {failure}");
        assert!(failure.message.starts_with("docker-compose.yaml: `"), "{failure}");
    }
    let many = with_db("privileged: true\n    pid: host");
    let message = refused(&many).message;
    assert!(message.contains("db.privileged") && message.contains("db.pid"), "{message}");
}

#[test]
fn keys_that_are_off_or_change_nothing_are_accepted() {
    let compose = with_db(
        "privileged: false\n    cap_add: []\n    init: true\n    labels: {a: b}\n    x-note: 1\n    \
         logging: {driver: json-file}\n    stop_grace_period: 5s\n    expose: [5432]\n    networks: \
         {back: {aliases: [database]}, front: {}}\n    extra_hosts: ['api.test:192.0.2.1']\nversion: \
         '3'\nname: x\nnetworks: {back: {driver: bridge}, front: {}}",
    )
    .replace("main: {}", "main: {networks: [front]}");
    let plan = Task::new(&compose).plan().unwrap_or_else(|failure| panic!("{failure}"));
    assert!(plan.host_names.contains("database"));
    assert!(plan.extra_hosts["192.0.2.1"].contains("api.test"));
}

#[test]
fn file_with_too_much_is_refused_at_once() {
    let services = |count: usize| -> String {
        let service = |number| format!("  s{number}: {{image: x, privileged: true}}\n");
        (0..count).map(service).collect()
    };
    let failure = refused(&format!("services:\n{}", services(1000)));
    assert_eq!(failure.kind, FailureKind::Unsupported, "{failure}");
    assert!(failure.message.ends_with("`services`: at most 20 beside `main` are allowed"));
    let failure = refused(&format!("services:\n{}", services(10_000)));
    assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
    assert!(failure.message.contains("more than 10000 values"), "{failure}");
    let task = Task::new(&with_db(&format!("environment: {{A: '{}'}}", "$A".repeat(100_000))));
    fs::write(task.dir.path().join(".env"), format!("A={}", "a".repeat(1_000_000))).expect("ok");
    for failure in [task.plan().expect_err("too much"), check(&task.file()).expect_err("as well")] {
        assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
        assert!(failure.message.contains("services.db.environment.A"), "{failure}");
    }
}

#[test]
fn file_that_no_program_could_use_is_refused() {
    for (compose, word) in [
        ("services: {main: {image: [", "docker-compose.yaml"),
        ("- a\n", "not a map"),
        ("services: {db: {command: x}}", "neither image nor build"),
        (
            "services: {a: {image: x, depends_on: [b]}, b: {image: x, depends_on: [a]}}",
            "each other",
        ),
        ("services: {db: {image: x, healthcheck: {test: [X]}}}", "services.db.healthcheck.test"),
        ("services: {db: {image: '${A:?name it}'}}", "name it"),
        ("services: {db: {image: x, env_file: none.env}}", "none.env"),
    ] {
        let failure = refused(compose);
        assert_eq!(failure.kind, FailureKind::Refused, "{compose}: {failure}");
        assert!(failure.message.contains(word), "{compose}: {failure}");
    }
}

#[test]
fn variable_of_trial_stays_out_of_manifest_of_environment() {
    for keys in [
        "entrypoint: ./serve, environment: [KEY]",
        "entrypoint: ./serve, environment: {KEY: null}",
        "entrypoint: ./serve, environment: {KEY: '$KEY'}",
        "healthcheck: {test: ok}, environment: [KEY]",
    ] {
        let compose = format!("services: {{main: {{{keys}}}}}");
        let failure = refused(&compose);
        assert_eq!(failure.kind, FailureKind::Unsupported, "{keys}: {failure}");
        assert!(failure.message.contains("services.main.environment.KEY"), "{keys}: {failure}");
        let mut task = Task::new(&compose);
        task.may_show_variables = true;
        assert_eq!(task.pod()["containers"][0]["env"][0]["value"], "secret", "{keys}");
    }
    let plan = Task::new("services: {main: {environment: [KEY]}}").plan().expect("it is hidden");
    assert_eq!(plan.main.env["KEY"], "secret");
    assert!(!plan.main.runs_by_itself());
}

#[test]
fn name_of_service_does_not_let_it_show_variables() {
    let service = "main.environment: {image: x, environment: {K: '${KEY}'}}";
    let failure = refused(&format!("services: {{{service}}}"));
    assert!(failure.message.contains("`KEY`"), "{failure}");
}

#[test]
fn variables_of_trial_reach_services_if_operator_lets_them() {
    let mut task = Task::new(&with_db("environment: {X: 'a${KEY}'}"));
    task.may_show_variables = true;
    let env = &task.plan().expect("allowed").others[0].env;
    assert_eq!(env["X"], "asecret");
}

#[test]
fn only_service_without_network_closes_pod() {
    let plan = Task::new("services: {main: {network_mode: none}}").plan().expect("a plan");
    assert!(plan.has_no_network);
    assert!(!Task::new(&with_db("")).plan().expect("a plan").has_no_network);
}

#[test]
fn image_of_environment_follows_file_and_source() {
    let built = |compose: &str| {
        let mut task = Task::new(compose);
        let dir = task.dir.path().to_owned();
        task.request.source = ImageSource::Context { digest: Digest::sha256(b"x"), dir };
        task.plan().expect("a plan").main.image
    };
    let context = "services: {main: {build: {context: '${CONTEXT_DIR}'}, image: x}}";
    assert_eq!(built(context), ServiceImage::Prepared);
    assert_eq!(built("services: {main: {image: other:1}}"), ServiceImage::Prepared);
    assert!(matches!(built("services: {main: {build: ./db}}"), ServiceImage::Built(_)));
    let named = |compose: &str| Task::new(compose).plan().expect("a plan").main.image;
    assert_eq!(named("services: {}"), ServiceImage::Prepared);
    let other = ServiceImage::Named("other:1".to_owned());
    assert_eq!(named("services: {main: {image: other:1}}"), other);
}

#[test]
fn check_without_trial_leaves_unknown_values_to_worker() {
    let check = |compose: &str| check(&Task::new(compose).file());
    assert!(check(&with_db("privileged: true")).is_err());
    assert!(check(&with_db("environment: {A: '${CPUS}'}")).is_ok());
    for image in ["${IMAGE_OF_TASK}", "${IMAGE_OF_TASK:?name it}", "${IMAGE_OF_TASK:+x}"] {
        assert!(check(&format!("services: {{db: {{image: '{image}'}}}}")).is_ok(), "{image}");
    }
}

/// Counts warnings.
#[derive(Debug, Clone, Default)]
struct WarningCount(Arc<AtomicUsize>);

impl Subscriber for WarningCount {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn variable_that_is_not_set_is_warned_of_once_and_by_worker_only() {
    let unset = "environment: {A: '$NONE', B: '${NONE}$NONE', C: '$OTHER', D: '$KEY'}";
    let task = Task::new(&with_db(unset));
    let warnings = |read: &dyn Fn()| {
        let count = WarningCount::default();
        tracing::subscriber::with_default(count.clone(), read);
        count.0.load(Ordering::Relaxed)
    };
    let planned = warnings(&|| drop(plan(&task.request, &task.file(), true).expect("a plan")));
    assert_eq!(planned, 2, "`NONE` and `OTHER`");
    assert_eq!(warnings(&|| check(&task.file()).expect("it is right")), 0);
}

#[test]
fn compose_files_of_a_job_are_unsupported() {
    let task = Task::new(&with_db(""));
    let overlays = vec![with_db("")];
    let failure = check(&ComposeFile { overlays, ..task.file() }).expect_err("a file of the job");
    assert_eq!(failure.kind, FailureKind::Unsupported, "{}", failure.message);
}

#[test]
fn proxies_of_a_service_do_not_lead_to_services() {
    let task = Task::new(
        "services:\n  main: {environment: {ALL_PROXY: 'http://q:1'}}\n  db:\n    image: db:1\n    \
         container_name: old-name\n    extra_hosts: ['old.test:10.0.0.9', \
         'pypi.org:151.101.0.223']\n    environment: {http_proxy: 'http://p:1', NO_PROXY: corp}\n  \
         web: {image: w:1, environment: {A: b}}\n",
    );
    let hosts = "localhost,127.0.0.1,::1,db,main,old-name,old.test,web";
    let env = |list: &str, proxy: (&str, &str)| {
        let named = [("NO_PROXY", list), proxy, ("no_proxy", list)];
        let named = named.map(|(name, value)| json!({"name": name, "value": value}));
        Value::from(named.to_vec())
    };
    let pod = task.pod();
    let db = &pod["containers"][1];
    assert_eq!(db["env"], env(&format!("corp,{hosts}"), ("http_proxy", "http://p:1")));
    assert_eq!(pod["containers"][2]["env"], json!([{"name": "A", "value": "b"}]));
    let plan = task.plan().unwrap_or_else(|failure| panic!("{}", failure.chain()));
    assert_eq!((&*plan.main.env["NO_PROXY"], &*plan.main.env["no_proxy"]), (hosts, hosts));
    let mut of_script = BTreeMap::from([("HTTPS_PROXY".to_owned(), "http://r:1".to_owned())]);
    plan.service_hosts().exempt(&mut of_script);
    assert_eq!(of_script["no_proxy"], hosts);
}
