//! Sandboxes: environments made of namespaces of this host's kernel. Nothing has to be installed:
//! the running program is its own supervisor.
//!
//! A sandbox has its own users, mounts, processes, IPC and host name, and a network of its own when
//! the job says so. Its root is a directory on disk in which the host's `/usr` and a little
//! configuration are shown read-only; everything else in it is empty, private and writable.
//! Nothing of the host's data is visible: no datasets, run directories, stores or sockets.
//!
//! It is not a security boundary: code inside shares the host's kernel and runs as the worker's
//! user, and unless its network is `none` it reaches whatever listens on the host's loopback.
//!
//! * [`ProcessProvider`] makes sandboxes.
//! * [`supervisor`] is what runs inside; the program that holds the provider calls it first thing.
//! * [`dockerfile`] says what of a task's Dockerfile a sandbox can honour.

pub mod dockerfile;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod unsupported;

use std::ffi::OsString;
use std::path::PathBuf;

#[cfg(target_os = "linux")]
pub use linux::{ProcessProvider, supervisor};
#[cfg(not(target_os = "linux"))]
pub use unsupported::{ProcessProvider, supervisor};

/// Processes of one sandbox, threads included, unless the operator says otherwise.
pub const DEFAULT_PIDS: u64 = 512;

/// What a provider of sandboxes needs to know.
#[derive(Debug, Clone)]
pub struct ProcessConfig {
    /// Directory for the files of all sandboxes; made when it does not exist. It must be on a disk
    /// that allows programs to be run.
    pub base: PathBuf,
    /// Program and first arguments that end up in [`supervisor::main`]: usually this program and a
    /// hidden word.
    pub helper: Vec<OsString>,
    /// Most processes of one sandbox, threads included.
    pub pids: u64,
}
