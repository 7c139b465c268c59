//! Runs the real program in projects of its own and looks at what it leaves: result trees,
//! processes, containers.
//!
//! Nothing here waits by sleeping a fixed time: [`wait::until`] polls a condition up to a deadline.
//! What a failed test used is kept, and its path printed.

use std::io::{self, Write};

pub mod audit;
pub mod chaos;
pub mod cluster;
pub mod docker;
pub mod engine_proxy;
pub mod expected;
pub mod formats;
pub mod journal_replay;
pub mod leak_check;
pub mod live_counter;
pub mod load;
pub mod nats;
pub mod net;
pub mod processes;
pub mod program;
pub mod project;
pub mod results;
pub mod sandbox;
pub mod search;
pub mod tcp_proxy;
pub mod terminal;
pub mod test_engine;
pub mod test_registry;
pub mod wait;

/// Tells the person at the terminal, whether the test passes or not: the test runner shows what
/// `eprintln!` prints only for tests that fail.
pub fn print_notice(text: &str) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // A closed terminal is no reason to fail.
    drop(writeln!(io::stderr(), "{name}: {text}"));
}
