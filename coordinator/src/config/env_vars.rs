//! Environment variables that the program itself reads. Variables of agents and tasks are named by
//! job files.

/// A variable and its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvVar {
    /// Name.
    pub name: &'static str,
    /// Meaning.
    pub help: &'static str,
}

/// Filter of log output, in the syntax of `tracing-subscriber`; wins over `log_level`.
pub const LOG: EnvVar =
    EnvVar { name: "ROLLOUT_LOG", help: "filter of log output, for instance `rollout=debug`" };

/// Token for servers of `rollout serve`.
pub const API_TOKEN: EnvVar =
    EnvVar { name: "ROLLOUT_API_TOKEN", help: "token for servers of `rollout serve`" };

/// Address of the server of `rollout serve`.
pub const API_URL: EnvVar = EnvVar {
    name: "ROLLOUT_API_URL",
    help: "server of `rollout farm`, for instance `http://127.0.0.1:4280`",
};

/// Format of log output.
pub const LOG_FORMAT: EnvVar =
    EnvVar { name: "ROLLOUT_LOG_FORMAT", help: "format of log output: `text` or `json`" };

/// Address of the Docker engine.
pub const DOCKER_HOST: EnvVar = EnvVar {
    name: "DOCKER_HOST",
    help: "address of the Docker engine, for instance `unix:///run/docker.sock`",
};

/// Directory of Docker's `config.json`.
pub const DOCKER_CONFIG: EnvVar = EnvVar {
    name: "DOCKER_CONFIG",
    help: "directory of Docker's `config.json`, whose proxies environments and image builds in \
           Docker get [default: ~/.docker]",
};

/// Path of the `docker-compose` program.
pub const DOCKER_COMPOSE: EnvVar = EnvVar {
    name: "ROLLOUT_DOCKER_COMPOSE",
    help: "path of the `docker-compose` program, if it is not in a standard place",
};

/// Frontend for Dockerfiles that name none.
pub const DOCKERFILE_FRONTEND: EnvVar = EnvVar {
    name: "ROLLOUT_DOCKERFILE_FRONTEND",
    help: "image of the BuildKit frontend for Dockerfiles without a `# syntax=` line, for instance \
           `docker/dockerfile:1`",
};

/// Disables colour on the terminal when set and not empty.
pub const NO_COLOR: EnvVar = EnvVar { name: "NO_COLOR", help: "no colour when set and not empty" };

/// Base directory of the user's caches; fetched tasks and locks of image builds are kept below it.
pub const CACHE_HOME: EnvVar = EnvVar {
    name: "XDG_CACHE_HOME",
    help: "directory for fetched tasks and locks of image builds, shared by runs [default: ~/.cache]",
};

/// Base directory of the user's state; workers keep their directories below it.
pub const STATE_HOME: EnvVar = EnvVar {
    name: "XDG_STATE_HOME",
    help: "directory for unreported results of workers [default: ~/.local/state]",
};

/// Base directory of the user's sockets; control sockets of runs are kept below it.
pub const RUNTIME_DIR: EnvVar = EnvVar {
    name: "XDG_RUNTIME_DIR",
    help: "directory for the control sockets of runs [default: that of the state]",
};

/// Parent of the defaults of [`CACHE_HOME`], [`STATE_HOME`] and [`DOCKER_CONFIG`].
pub const HOME: EnvVar =
    EnvVar { name: "HOME", help: "directory of `.cache`, `.local/state` and `.docker`" };

/// Blob store of runs and workers.
pub const STORE: EnvVar = EnvVar {
    name: "ROLLOUT_STORE",
    help: "blob store of `run`, `tree run`, `worker` and `setup`, as `--store`",
};

/// File of options of the provider `kubernetes`.
pub const KUBERNETES_CONFIG: EnvVar = EnvVar {
    name: "ROLLOUT_KUBERNETES_CONFIG",
    help: "file of options of the provider `kubernetes`, as `--kubernetes-config`",
};

/// CA bundle of environments.
pub const CA_BUNDLE: EnvVar = EnvVar {
    name: "ROLLOUT_CA_BUNDLE",
    help: "CA bundle of environments and builds, as `--ca-bundle`",
};

/// Address of the NATS server.
pub const NATS_URL: EnvVar = EnvVar {
    name: "ROLLOUT_NATS_URL",
    help: "address of the NATS server, as `--nats`; it may hold a user and a password",
};

/// Separates deployments on one server.
pub const NAMESPACE: EnvVar =
    EnvVar { name: "ROLLOUT_NAMESPACE", help: "namespace on the NATS server, as `--namespace`" };

/// Time without a heartbeat before a worker counts as lost.
pub const LEASE: EnvVar = EnvVar {
    name: "ROLLOUT_LEASE",
    help: "time without a heartbeat before a worker's work is reassigned, as `--lease`",
};

/// User at the NATS server.
pub const NATS_USER: EnvVar =
    EnvVar { name: "ROLLOUT_NATS_USER", help: "user at the NATS server, as `--nats-user`" };

/// Password of [`NATS_USER`].
pub const NATS_PASSWORD: EnvVar =
    EnvVar { name: "ROLLOUT_NATS_PASSWORD", help: "password of the user at the NATS server" };

/// File with the password of [`NATS_USER`].
pub const NATS_PASSWORD_FILE: EnvVar = EnvVar {
    name: "ROLLOUT_NATS_PASSWORD_FILE",
    help: "file with the user's password, as `--nats-password-file`",
};

/// Token for the NATS server.
pub const NATS_TOKEN: EnvVar =
    EnvVar { name: "ROLLOUT_NATS_TOKEN", help: "token for the NATS server" };

/// File with credentials for the NATS server.
pub const NATS_CREDS: EnvVar = EnvVar {
    name: "ROLLOUT_NATS_CREDS",
    help: "`.creds` file for the NATS server, as `--nats-creds`",
};

/// Address of a collector of traces.
pub const OTLP_ENDPOINT: EnvVar = EnvVar {
    name: "OTEL_EXPORTER_OTLP_ENDPOINT",
    help: "address of a collector of traces (OTLP over HTTP), for instance \
           `http://localhost:4318`; no traces without one; needs the feature `otel`",
};

/// Address of a collector of traces, with the path of the request.
pub const OTLP_TRACES_ENDPOINT: EnvVar = EnvVar {
    name: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    help: "the same with the path of the request, for instance `http://localhost:4318/v1/traces`",
};

/// Headers of requests to the collector.
pub const OTLP_HEADERS: EnvVar = EnvVar {
    name: "OTEL_EXPORTER_OTLP_HEADERS",
    help: "headers of requests to the collector, for instance `authorization=Bearer%20TOKEN`",
};

/// Protocol of requests to the collector.
pub const OTLP_PROTOCOL: EnvVar = EnvVar {
    name: "OTEL_EXPORTER_OTLP_PROTOCOL",
    help: "protocol of requests to the collector: `http/protobuf`",
};

/// Time limit of a request to the collector.
pub const OTLP_TIMEOUT: EnvVar = EnvVar {
    name: "OTEL_EXPORTER_OTLP_TIMEOUT",
    help: "milliseconds after which spans that the collector did not take are dropped \
           [default: 10000]",
};

/// Name of the service in traces.
pub const OTEL_SERVICE_NAME: EnvVar = EnvVar {
    name: "OTEL_SERVICE_NAME",
    help: "name of the service in traces [default: `rollout-coordinator` or `rollout-worker`]",
};

/// Attributes of the process in traces.
pub const OTEL_RESOURCE_ATTRIBUTES: EnvVar = EnvVar {
    name: "OTEL_RESOURCE_ATTRIBUTES",
    help: "attributes of the process in traces, for instance `deployment.environment.name=test`",
};

/// Sampler of traces.
pub const OTEL_TRACES_SAMPLER: EnvVar = EnvVar {
    name: "OTEL_TRACES_SAMPLER",
    help: "which traces are exported: `always_on`, `always_off`, `traceidratio`, or one of them \
           with the prefix `parentbased_` [default: `parentbased_always_on`]",
};

/// Argument of the sampler.
pub const OTEL_TRACES_SAMPLER_ARG: EnvVar = EnvVar {
    name: "OTEL_TRACES_SAMPLER_ARG",
    help: "share of the traces that `traceidratio` exports, from 0 to 1",
};

/// Disables traces.
pub const OTEL_SDK_DISABLED: EnvVar =
    EnvVar { name: "OTEL_SDK_DISABLED", help: "no traces when `true`" };

/// Copies of streams in a cluster of NATS servers.
pub const NATS_REPLICAS: EnvVar = EnvVar {
    name: "ROLLOUT_NATS_REPLICAS",
    help: "copies of each stream in a NATS cluster, as `--nats-replicas`",
};

/// All variables.
pub const ALL: &[EnvVar] = &[
    LOG,
    LOG_FORMAT,
    API_TOKEN,
    API_URL,
    DOCKER_HOST,
    DOCKER_CONFIG,
    DOCKER_COMPOSE,
    DOCKERFILE_FRONTEND,
    NO_COLOR,
    CACHE_HOME,
    STATE_HOME,
    RUNTIME_DIR,
    HOME,
    STORE,
    KUBERNETES_CONFIG,
    CA_BUNDLE,
    NATS_URL,
    NAMESPACE,
    LEASE,
    NATS_USER,
    NATS_PASSWORD,
    NATS_PASSWORD_FILE,
    NATS_TOKEN,
    NATS_CREDS,
    OTLP_ENDPOINT,
    OTLP_TRACES_ENDPOINT,
    OTLP_HEADERS,
    OTLP_PROTOCOL,
    OTLP_TIMEOUT,
    OTEL_SERVICE_NAME,
    OTEL_RESOURCE_ATTRIBUTES,
    OTEL_TRACES_SAMPLER,
    OTEL_TRACES_SAMPLER_ARG,
    OTEL_SDK_DISABLED,
    NATS_REPLICAS,
];
