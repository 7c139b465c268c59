//! Lengths of the metadata of completions.

use std::sync::Arc;

use rollout_protocol::farm::Completion;
use serde_json::{Map, Value};

/// Lengths of the metadata of completions one after the other. Those of a group share theirs, which may
/// be long: it is written once.
#[derive(Debug, Default)]
pub(super) struct MetadataLengths {
    last: Option<(Arc<Map<String, Value>>, u64)>,
}

impl MetadataLengths {
    /// The length of the metadata as JSON, bytes.
    pub(super) fn of(&mut self, completion: &Completion) -> u64 {
        let metadata = &completion.metadata;
        if let Some((last, bytes)) = &self.last
            && Arc::ptr_eq(last, metadata)
        {
            return *bytes;
        }
        let bytes = completion.metadata_bytes();
        self.last = Some((Arc::clone(metadata), bytes));
        bytes
    }
}
