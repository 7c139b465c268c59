//! Foundations of the data plane. Nothing here knows a queue, a store, an environment or a
//! kind of work.
//!
//! * `supervise`: the only place that spawns tasks and threads
//! * `backoff`, `dependency`: retries, and outages of services; `common_times`: times at which periodic
//!   work is done together; `warning_limiter`: warnings of which one line a minute stands for many
//! * `rate_limit`, `shared_limit`, `open_files`, `removal_limits`, `shortage`: limits of a run, of users
//!   and of the host, and errors that mean that the host ran out of something
//! * `secrets`: variables for trials, and redaction of their values in everything that is stored
//! * `durable`, `fs_make`, `fs_remove`, `digest_line`, `write_check`: files and directories that survive
//!   a power failure, their creation and removal, small files with a digest, checks by a write
//! * `confined`, `regular_file`, `glob`, `shown_path`: paths and files of others
//! * `tls_files` (feature `tls`): certificates and keys in files; `hop_by_hop` (feature `http`): headers
//!   of one connection
//! * `metrics`, `traces`: what a worker counts, and spans of its work

pub mod backoff;
pub mod common_times;
pub mod confined;
pub mod dependency;
pub mod digest_line;
pub mod durable;
pub mod fs_make;
pub mod fs_remove;
pub mod glob;
#[cfg(feature = "http")]
pub mod hop_by_hop;
pub mod metrics;
pub mod open_files;
pub mod rate_limit;
pub mod regular_file;
pub mod removal_limits;
pub mod secrets;
pub mod shared_limit;
pub mod shortage;
pub mod shown_path;
pub mod supervise;
#[cfg(feature = "tls")]
pub mod tls_files;
pub mod traces;
pub mod warning_limiter;
pub mod write_check;
