//! Result markers: documents in the blob store that show which executions have a record, in case
//! the queue loses their reports.

use std::fmt;

use crate::digest::Digest;
use crate::id::{ExecId, ItemId, RunId, TryId};

/// A result marker. Its path contains all its fields; its content is the
/// [`BlobRef`](crate::blob::BlobRef) of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultMarker {
    /// Run.
    pub run: RunId,
    /// Item.
    pub item: ItemId,
    /// Try.
    pub try_id: TryId,
    /// Execution.
    pub exec: ExecId,
    /// Digest of the record.
    pub record: Digest,
}

impl ResultMarker {
    /// Path prefix of every marker of the item.
    pub fn prefix_of_item(run: RunId, item: ItemId) -> String {
        format!("results/{run}/{item}/")
    }

    /// Path prefix of every marker of the try.
    pub fn prefix_of_try(run: RunId, item: ItemId, try_id: TryId) -> String {
        format!("results/{run}/{item}/{try_id}-")
    }

    /// The marker with this path.
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts = path.strip_prefix("results/")?.split('/');
        let (run, item, name) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let mut words = name.rsplitn(3, '-');
        let (record, exec, try_id) = (words.next()?, words.next()?, words.next()?);
        Some(Self {
            run: run.parse().ok()?,
            item: item.parse().ok()?,
            try_id: try_id.parse().ok()?,
            exec: exec.parse().ok()?,
            record: format!("sha256:{record}").parse().ok()?,
        })
    }
}

/// The path of the document.
impl fmt::Display for ResultMarker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, item, try_id, exec, record } = self;
        write!(f, "results/{run}/{item}/{try_id}-{exec}-{}", record.hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_path_malformed_is_not_parsed() {
        let marker = ResultMarker {
            run: RunId::from_bytes([1; 16]),
            item: ItemId::from_bytes([2; 16]),
            try_id: TryId { epoch: 3, n: 12 },
            exec: ExecId::from_bytes([4; 16]),
            record: Digest::sha256(b"record"),
        };
        let path = marker.to_string();
        assert_eq!(ResultMarker::parse(&path), Some(marker));
        assert!(path.starts_with(&ResultMarker::prefix_of_item(marker.run, marker.item)));
        assert!(path.starts_with(&ResultMarker::prefix_of_try(
            marker.run,
            marker.item,
            marker.try_id
        )));
        for bad in
            ["", "results/1/2/3", &path[1..], &format!("{path}/x"), &path.replace("3-12", "12")]
        {
            assert_eq!(ResultMarker::parse(bad), None, "{bad}");
        }
    }
}
