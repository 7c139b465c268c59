//! Test harness: runs the real program in temporary projects and inspects result trees, processes
//! and containers.
//!
//! Nothing here sleeps for a fixed time: [`wait::until`] polls a condition up to a deadline. The
//! files of a failed test are kept, and their path is printed.

use std::io::{self, Write};

pub mod audit;
pub mod chaos;
pub mod cluster;
pub mod docker;
pub mod engine_proxy;
pub mod executor;
pub mod expected;
pub mod farm;
pub mod formats;
pub mod gate;
pub mod hidden_commands;
pub mod hook_events;
pub mod http;
pub mod ignored;
pub mod journal_replay;
pub mod kube;
pub mod leak_check;
pub mod live_counter;
pub mod live_output;
pub mod load;
pub mod metrics;
pub mod model_calls;
pub mod model_server;
pub mod nats;
pub mod nats_cluster;
pub mod net;
pub mod noop_worker;
pub mod otlp_collector;
pub mod power_disk;
pub mod process_lock;
pub mod processes;
pub mod program;
pub mod project;
pub mod python;
pub mod read_only_mount;
pub mod results;
pub mod s3_process;
pub mod s3_server;
pub mod sandbox;
pub mod screen;
pub mod search;
pub mod tcp_proxy;
pub mod terminal;
pub mod test_engine;
pub mod test_registry;
pub mod wait;

/// Prints to the terminal whether the test passes or not. The test runner shows `eprintln!` output
/// only for tests that fail.
pub fn print_notice(text: &str) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // A closed terminal must not fail the test.
    drop(writeln!(io::stderr(), "{name}: {text}"));
}
