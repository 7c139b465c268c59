#![doc = include_str!("../README.md")]
//!
//! # Reading order
//! [`id`], [`digest`] and [`blob`] hold the names; [`spec`] describes the work; [`phase`],
//! [`error`] and [`record`] describe its results; [`wire`] holds the messages between processes;
//! [`event`] is the stream that all outputs consume.

pub mod artifact;
pub mod blob;
mod cost;
pub mod dependency;
pub mod digest;
pub mod error;
pub mod event;
pub mod executor;
pub mod exit;
pub mod farm;
pub mod harness;
pub mod id;
pub mod item_name;
pub mod limits;
pub mod name;
pub mod phase;
pub mod record;
pub mod reference;
pub mod retry;
pub mod sample_key;
pub mod search;
pub mod spec;
pub mod template;
mod text_form;
pub mod trace_id;
pub mod version;
pub mod wire;
pub mod workspace_diff;

/// A point of wall-clock time, UTC; written as RFC 3339.
pub use jiff::Timestamp;
