#![doc = include_str!("../README.md")]

pub mod bench;
pub mod check;
pub mod cli;
pub mod config;
pub mod core;
pub mod dataset;
pub mod export;
pub mod host;
pub mod journal;
pub mod metrics;
pub mod plan;
pub mod registry;
pub mod report;
pub mod run;
pub mod tree;
