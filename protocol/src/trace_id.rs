//! Ids of traces and spans, derived from the identity of work.
//!
//! A coordinator and its workers derive the same ids without a message between them, and a process
//! that continues a run continues its traces. A span that is exported twice has the same id.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::id::{ExecId, ItemId, RunId};

/// The trace of an item of a run: all its tries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceId([u8; 16]);

/// A span of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpanId([u8; 8]);

impl TraceId {
    /// The trace of an item.
    pub fn for_item(run: RunId, item: ItemId) -> Self {
        Self(derive("trace", &[run.as_bytes(), item.as_bytes()]))
    }

    /// The bytes, of which at least one is not zero.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl SpanId {
    /// The item, from its place in the queue to its result: the root of its trace.
    pub fn for_item(run: RunId, item: ItemId) -> Self {
        Self(derive("item", &[run.as_bytes(), item.as_bytes()]))
    }

    /// The item again, from its return to the queue to the result of this execution.
    pub fn for_retried_item(exec: ExecId) -> Self {
        Self(derive("retried item", &[exec.as_bytes()]))
    }

    /// The wait of an item before an execution.
    pub fn for_wait(exec: ExecId) -> Self {
        Self(derive("wait", &[exec.as_bytes()]))
    }

    /// An execution.
    pub fn for_execution(exec: ExecId) -> Self {
        Self(derive("execution", &[exec.as_bytes()]))
    }

    /// A part of an execution: its `number`th, from 0, which has this name.
    pub fn for_part(exec: ExecId, name: &str, number: u32) -> Self {
        Self(derive("part", &[exec.as_bytes(), &number.to_be_bytes(), name.as_bytes()]))
    }

    /// The bytes, of which at least one is not zero.
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0
    }
}

/// The first bytes of the SHA-256 over the length-prefixed parts. An id of zeros is invalid.
fn derive<const N: usize>(kind: &str, parts: &[&[u8]]) -> [u8; N] {
    let mut hasher = Sha256::new();
    for part in [kind.as_bytes()].iter().chain(parts) {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let mut bytes = [0; N];
    bytes.copy_from_slice(&hasher.finalize()[..N]);
    if bytes == [0; N] {
        bytes[N - 1] = 1;
    }
    bytes
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceId({self})")
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanId({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const RUN: RunId = RunId::from_bytes([1; 16]);
    const ITEM: ItemId = ItemId::from_bytes([2; 16]);
    const EXEC: ExecId = ExecId::from_bytes([3; 16]);

    #[test]
    fn derived_ids_stay_as_they_are() {
        // Processes of different versions must derive the same ids.
        assert_eq!(TraceId::for_item(RUN, ITEM).to_string(), "520cf1948f4cb183ee57d0ea0963a504");
        assert_eq!(SpanId::for_item(RUN, ITEM).to_string(), "b3be00a9bccef472");
        assert_eq!(SpanId::for_execution(EXEC).to_string(), "fd1eaaa994c1343a");
        assert_eq!(SpanId::for_part(EXEC, "verification", 4).to_string(), "71b20f5d9044f99a");
    }

    #[test]
    fn trace_differs_for_every_run_and_item() {
        let (other_run, other_item) = (RunId::from_bytes([2; 16]), ItemId::from_bytes([1; 16]));
        let traces = [(RUN, ITEM), (other_run, ITEM), (RUN, other_item), (other_run, other_item)];
        let traces = traces.map(|(run, item)| TraceId::for_item(run, item));
        assert_eq!(BTreeSet::from(traces).len(), 4, "{traces:?}");
    }

    #[test]
    fn span_differs_for_every_kind_and_part() {
        let spans = [
            SpanId::for_item(RUN, ITEM),
            SpanId::for_retried_item(EXEC),
            SpanId::for_wait(EXEC),
            SpanId::for_execution(EXEC),
            SpanId::for_part(EXEC, "verification", 0),
            SpanId::for_part(EXEC, "verification", 1),
            SpanId::for_part(EXEC, "collection", 1),
            SpanId::for_execution(ExecId::from_bytes([4; 16])),
        ];
        assert_eq!(BTreeSet::from(spans).len(), spans.len(), "{spans:?}");
    }
}
