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

/// Disables colour on the terminal when set and not empty.
pub const NO_COLOR: EnvVar = EnvVar { name: "NO_COLOR", help: "no colour when set and not empty" };

/// Where caches of the user are; below it lie the locks of image builds.
pub const CACHE_HOME: EnvVar = EnvVar {
    name: "XDG_CACHE_HOME",
    help: "directory in which runs share the locks of image builds [default: ~/.cache]",
};

/// Where state of the user is; below it lie the directories of workers.
pub const STATE_HOME: EnvVar = EnvVar {
    name: "XDG_STATE_HOME",
    help: "directory in which workers keep what is not reported yet [default: ~/.local/state]",
};

/// Where [`CACHE_HOME`] and [`STATE_HOME`] are when they are not set.
pub const HOME: EnvVar = EnvVar { name: "HOME", help: "where `.cache` and `.local/state` are" };

/// All of them.
pub const ALL: &[EnvVar] = &[LOG, DOCKER_HOST, NO_COLOR, CACHE_HOME, STATE_HOME, HOME];
