//! Where the hook events of a harness go while it runs.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;

/// A piece of a log of hook events, to be stored and announced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEventChunk {
    /// The log, see [`EventLogSink::begin_log`].
    pub log: u32,
    /// Index of the task's step, from 0.
    pub step: u32,
    /// Offset of the first byte in the log.
    pub offset: u64,
    /// The bytes, without secrets; at least one.
    pub bytes: Bytes,
    /// The largest `seq` so far; absent if there is none, or if the bytes do not end with a line.
    pub last_seq: Option<u64>,
    /// Valid events so far.
    pub total: u64,
    /// Violations so far.
    pub violations: u64,
}

/// Stores and announces the hook events of one execution.
#[async_trait]
pub trait EventLogSink: Send + Sync + fmt::Debug {
    /// Begins a log; returns its number. The numbers of an execution increase from 1.
    fn begin_log(&self) -> u32;

    /// Stores a chunk and announces it. Returns when both are durable, however long an outage
    /// lasts. When it is dropped, the chunk may be announced or not.
    async fn append(&self, chunk: NewEventChunk);
}

/// Drops all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEventLog;

#[async_trait]
impl EventLogSink for NoEventLog {
    fn begin_log(&self) -> u32 {
        1
    }

    async fn append(&self, chunk: NewEventChunk) {
        drop(chunk);
    }
}
