#![doc = include_str!("../README.md")]

#[cfg(feature = "serve")]
pub mod api;
pub mod bench;
pub mod cli;
pub mod config;
#[cfg(feature = "serve")]
pub mod daemon;
pub mod events;
pub mod executor;
mod https;
pub mod launch;
pub mod plan;
mod providers;
pub mod results;
pub mod serve;
pub mod sources;
pub mod traces;
pub mod workloads;
