//! Settings and environment of git calls, by the owner of the repository.

use std::path::{Path, PathBuf};

use tokio::process::Command;

/// Settings of every call: no program configured in a repository runs, and git does nothing on its
/// own initiative.
const COMMON_SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.detachedHead=false",
];

/// Calls run next to trials, which need the processors.
const BACKGROUND_SETTINGS: &[&str] = &["pack.threads=1"];

/// Settings of calls on repositories made by Rollout, where the user's own settings do not apply.
///
/// Git syncs what it writes there. Git before 2.36 ignores both settings of that: a power failure may
/// then leave references empty, and the repository is made again. No version syncs `HEAD` and `config`
/// of a new repository, nor the files of a checkout. References are files, which are checked for damage.
const OWN_REPOSITORY_SETTINGS: &[&str] = &[
    "core.fsync=all",
    "core.fsyncMethod=fsync",
    "init.defaultRefFormat=files",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.untrackedCache=false",
    "core.autocrlf=false",
    "core.symlinks=true",
    "core.protectHFS=true",
    "core.protectNTFS=true",
];

/// Settings of calls to remote servers: files arrive as they are stored, git prompts for nothing,
/// and the connection to a server that sends nothing for a minute is closed.
const REMOTE_SETTINGS: &[&str] = &[
    "core.untrackedCache=false",
    "core.autocrlf=false",
    "core.attributesFile=/dev/null",
    "protocol.ext.allow=never",
    "filter.lfs.smudge=",
    "filter.lfs.process=",
    "filter.lfs.required=false",
    "credential.interactive=false",
    "http.lowSpeedLimit=100",
    "http.lowSpeedTime=60",
];

/// Settings of calls to remote servers for somebody other than the user of this process.
const PUBLIC_SETTINGS: &[&str] = &["credential.helper=", "core.askPass="];

/// Variables that such calls keep: programs and the certificates of the host.
const PUBLIC_VARIABLES: &[&str] =
    &["PATH", "TMPDIR", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "SSL_CERT_FILE", "SSL_CERT_DIR"];

/// Variables through which a caller's repository would affect the call.
const LOCAL_VARIABLES: &[&str] = &[
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_CONFIG_PARAMETERS",
    "GIT_TEMPLATE_DIR",
    "GIT_EXTERNAL_DIFF",
    "GIT_LFS_SKIP_SMUDGE",
];

/// Location and owner of the repository.
#[derive(Debug, Clone)]
pub(super) enum RepositoryLocation {
    /// The git directory of a repository made by Rollout.
    Own(PathBuf),
    /// A directory in a repository that the user owns and configured.
    User(PathBuf),
    /// A directory whose repository is filled from remote servers, or any directory if the call
    /// only queries a server.
    Remote(PathBuf),
    /// The same for somebody other than the user of this process: all connections are those of a proxy.
    Public {
        /// The directory.
        dir: PathBuf,
        /// URL of the proxy.
        proxy: String,
    },
}

impl RepositoryLocation {
    pub(super) fn dir(&self) -> &Path {
        match self {
            Self::Own(dir) | Self::User(dir) | Self::Remote(dir) | Self::Public { dir, .. } => dir,
        }
    }

    /// Whether git's processes get a separate process group, so that they can be killed together.
    /// Not if the user waits for them at a terminal: an interrupt of this process must reach them.
    pub(super) const fn has_own_process_group(&self) -> bool {
        !matches!(self, Self::Remote(_))
    }

    /// Whether calls wait for servers.
    pub(super) const fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_) | Self::Public { .. })
    }

    /// Puts the settings before the arguments.
    pub(super) fn apply_settings(&self, command: &mut Command) {
        let more = match self {
            Self::Own(_) => [BACKGROUND_SETTINGS, OWN_REPOSITORY_SETTINGS],
            Self::User(_) => [BACKGROUND_SETTINGS, &[]],
            Self::Remote(_) => [REMOTE_SETTINGS, &[]],
            Self::Public { .. } => [REMOTE_SETTINGS, PUBLIC_SETTINGS],
        };
        for setting in COMMON_SETTINGS.iter().chain(more.into_iter().flatten()) {
            command.args(["-c", setting]);
        }
        if let Self::Public { proxy, .. } = self {
            command.args(["-c", &format!("http.proxy={proxy}")]);
        }
    }

    pub(super) fn apply_environment(&self, command: &mut Command) {
        match self {
            Self::Own(dir) => {
                isolate_environment(command, &["PATH"]);
                without_configuration(command);
                command.env("GIT_DIR", dir);
            }
            Self::User(_) => isolate_environment(command, &["PATH", "HOME", "XDG_CONFIG_HOME"]),
            Self::Remote(dir) => inherit_environment(command, dir),
            Self::Public { dir, .. } => {
                isolate_environment(command, PUBLIC_VARIABLES);
                without_configuration(command);
                command
                    .env_remove("GIT_NO_LAZY_FETCH")
                    .env("GIT_ALLOW_PROTOCOL", "http:https")
                    .env("GIT_CEILING_DIRECTORIES", dir.parent().unwrap_or(dir));
            }
        }
        command
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_NO_REPLACE_OBJECTS", "1")
            .env("LC_ALL", "C");
    }
}

/// Leaves out the configuration and the credentials of the user and of the host.
fn without_configuration(command: &mut Command) {
    command
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_ATTR_NOSYSTEM", "1");
}

/// Keeps only these variables of the caller's environment, and blocks all remote access.
fn isolate_environment(command: &mut Command, kept: &[&str]) {
    command.env_clear();
    for name in kept {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_OPTIONAL_LOCKS", "0")
        // No protocol at all, unless the call sets one.
        .env("GIT_ALLOW_PROTOCOL", "");
}

/// Keeps the caller's environment and configuration, because they hold credentials and proxies, but
/// nothing that leads to another repository.
fn inherit_environment(command: &mut Command, dir: &Path) {
    for variable in LOCAL_VARIABLES {
        command.env_remove(variable);
    }
    command
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_ATTR_NOSYSTEM", "1")
        .env("GIT_ALLOW_PROTOCOL", "file:git:http:https:ssh")
        .env("GIT_CEILING_DIRECTORIES", dir.parent().unwrap_or(dir));
    let has = |name: &str| std::env::var_os(name).is_some();
    if !has("GIT_SSH_COMMAND") && !has("GIT_SSH") {
        command.env("GIT_SSH_COMMAND", "ssh -oBatchMode=yes -oConnectTimeout=30");
    }
}
