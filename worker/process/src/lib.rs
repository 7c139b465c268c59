//! Process sandboxes: environments made of namespaces of this host's kernel. Nothing has to be
//! installed: the running program is its own supervisor.
//!
//! A sandbox has its own users, mounts, processes, IPC and host name, and its own network if the
//! job requests it. Its root is a directory on disk in which the host's `/usr` and some
//! configuration are shown read-only; everything else in it is empty, private and writable. None of
//! the host's data is visible: no datasets, run directories, stores or sockets.
//!
//! A sandbox is not a security boundary: code inside shares the host's kernel and runs as the
//! worker's user. Unless its network is `none`, it reaches every service on the host's loopback.
//!
//! * [`ProcessProvider`] makes sandboxes.
//! * [`supervisor`] runs inside; the program that holds the provider calls it first.
//! * `dockerfile` defines the part of a task's Dockerfile that a sandbox supports.

mod dockerfile;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod unsupported;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use rollout_environment::CaBundle;
use rollout_environment::descriptor::BuiltProvider;
use rollout_protocol::spec::environment::ProviderKind;

pub use self::dockerfile::DEFAULT_PATH;
#[cfg(target_os = "linux")]
pub use linux::{ProcessProvider, supervisor};
#[cfg(not(target_os = "linux"))]
pub use unsupported::{ProcessProvider, supervisor};

/// The provider, for the table of a program.
pub static PROVIDER: BuiltProvider = BuiltProvider {
    kind: ProviderKind::Process,
    make: |paths| {
        Arc::new(ProcessProvider::new(ProcessConfig {
            base: paths.sandboxes.to_owned(),
            helper: paths.sandbox_helper.to_vec(),
            pids: DEFAULT_PIDS,
            ca_bundle: paths.ca_bundle.cloned(),
        }))
    },
    check_services: None,
    check_dockerfile: Some(dockerfile::check),
};

/// Default limit of processes in one sandbox, threads included.
pub const DEFAULT_PIDS: u64 = 512;

/// Configuration of the provider.
#[derive(Debug, Clone)]
pub struct ProcessConfig {
    /// Directory for the files of all sandboxes; made if absent. Its disk must allow the execution
    /// of programs.
    pub base: PathBuf,
    /// Program and first arguments that lead to [`supervisor::main`]: usually this program and a
    /// hidden subcommand.
    pub helper: Vec<OsString>,
    /// Most processes of one sandbox, threads included.
    pub pids: u64,
    /// The CA bundle of environments.
    pub ca_bundle: Option<CaBundle>,
}
