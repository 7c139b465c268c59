#![doc = include_str!("../README.md")]

pub mod environment;
pub mod store;
pub mod supervise;
