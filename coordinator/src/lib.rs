#![doc = include_str!("../README.md")]

pub mod bench;
pub mod cli;
pub mod config;
pub mod engine;
pub mod events;
pub mod executor;
pub mod launch;
pub mod plan;
pub mod results;
pub mod serve;
pub mod sources;
pub mod workloads;
