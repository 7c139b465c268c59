//! Every environment variable that the program itself reads. What agents and tasks use is named by
//! job files, not here.

/// A variable and what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvVar {
    /// Name.
    pub name: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// Filter of log output, in the syntax of `tracing-subscriber`; wins over `log_level`.
pub const LOG: EnvVar =
    EnvVar { name: "ROLLOUT_LOG", help: "filter of log output, for instance `rollout=debug`" };

/// Where the Docker engine listens.
pub const DOCKER_HOST: EnvVar = EnvVar {
    name: "DOCKER_HOST",
    help: "address of the Docker engine, for instance `unix:///run/docker.sock`",
};

/// The program that understands compose files.
pub const DOCKER_COMPOSE: EnvVar = EnvVar {
    name: "ROLLOUT_DOCKER_COMPOSE",
    help: "the program `docker-compose`, when it is in none of the usual places",
};

/// The frontend that reads Dockerfiles which name none.
pub const DOCKERFILE_FRONTEND: EnvVar = EnvVar {
    name: "ROLLOUT_DOCKERFILE_FRONTEND",
    help: "image of the BuildKit frontend for Dockerfiles without a `# syntax=` line, for instance \
           `docker/dockerfile:1`",
};

/// Disables colour on the terminal when set and not empty.
pub const NO_COLOR: EnvVar = EnvVar { name: "NO_COLOR", help: "no colour when set and not empty" };

/// Where caches of the user are; below it lie fetched tasks and the locks of image builds.
pub const CACHE_HOME: EnvVar = EnvVar {
    name: "XDG_CACHE_HOME",
    help: "directory in which runs share fetched tasks and the locks of image builds [default: ~/.cache]",
};

/// Where state of the user is; below it lie the directories of workers.
pub const STATE_HOME: EnvVar = EnvVar {
    name: "XDG_STATE_HOME",
    help: "directory in which workers keep what is not reported yet [default: ~/.local/state]",
};

/// Where [`CACHE_HOME`] and [`STATE_HOME`] are when they are not set.
pub const HOME: EnvVar = EnvVar { name: "HOME", help: "where `.cache` and `.local/state` are" };

/// Where the NATS server is.
pub const NATS_URL: EnvVar = EnvVar {
    name: "ROLLOUT_NATS_URL",
    help: "address of the NATS server, as `--nats`; it may hold a user and a password",
};

/// Keeps deployments apart.
pub const NAMESPACE: EnvVar =
    EnvVar { name: "ROLLOUT_NAMESPACE", help: "namespace on the NATS server, as `--namespace`" };

/// How long workers may be silent.
pub const LEASE: EnvVar = EnvVar {
    name: "ROLLOUT_LEASE",
    help: "how long a worker may say nothing before its work is given to others, as `--lease`",
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

/// All of them.
pub const ALL: &[EnvVar] = &[
    LOG,
    DOCKER_HOST,
    DOCKER_COMPOSE,
    DOCKERFILE_FRONTEND,
    NO_COLOR,
    CACHE_HOME,
    STATE_HOME,
    HOME,
    NATS_URL,
    NAMESPACE,
    LEASE,
    NATS_USER,
    NATS_PASSWORD,
    NATS_TOKEN,
    NATS_CREDS,
];
