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

/// Format of log output.
pub const LOG_FORMAT: EnvVar =
    EnvVar { name: "ROLLOUT_LOG_FORMAT", help: "format of log output: `text` or `json`" };

/// Address of the Docker engine.
pub const DOCKER_HOST: EnvVar = EnvVar {
    name: "DOCKER_HOST",
    help: "address of the Docker engine, for instance `unix:///run/docker.sock`",
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

/// Parent of the defaults of [`CACHE_HOME`] and [`STATE_HOME`].
pub const HOME: EnvVar = EnvVar { name: "HOME", help: "directory of `.cache` and `.local/state`" };

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

/// Token for the NATS server.
pub const NATS_TOKEN: EnvVar =
    EnvVar { name: "ROLLOUT_NATS_TOKEN", help: "token for the NATS server" };

/// File with credentials for the NATS server.
pub const NATS_CREDS: EnvVar = EnvVar {
    name: "ROLLOUT_NATS_CREDS",
    help: "`.creds` file for the NATS server, as `--nats-creds`",
};

/// All variables.
pub const ALL: &[EnvVar] = &[
    LOG,
    LOG_FORMAT,
    DOCKER_HOST,
    DOCKER_COMPOSE,
    DOCKERFILE_FRONTEND,
    NO_COLOR,
    CACHE_HOME,
    STATE_HOME,
    RUNTIME_DIR,
    HOME,
    NATS_URL,
    NAMESPACE,
    LEASE,
    NATS_USER,
    NATS_PASSWORD,
    NATS_TOKEN,
    NATS_CREDS,
];
