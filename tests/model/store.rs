//! The blob store: it loses nothing, but can be unavailable.

use std::collections::BTreeMap;

use rollout_protocol::id::{ExecId, ItemId, TryId};
use rollout_protocol::wire::report::Report;

/// Result markers, each with the report it stands for.
#[derive(Debug, Default)]
pub(crate) struct ModelStore {
    pub(crate) down: bool,
    markers: BTreeMap<ExecId, Report>,
}

impl ModelStore {
    pub(crate) fn put_marker(&mut self, report: Report) {
        self.markers.insert(report.exec, report);
    }

    pub(crate) fn results_of_item(&self, item: &ItemId) -> Vec<Report> {
        self.markers.values().filter(|report| report.item == *item).cloned().collect()
    }

    pub(crate) fn has_marker(&self, item: &ItemId, try_id: TryId) -> bool {
        self.markers.values().any(|r| (r.item, r.try_id) == (*item, try_id))
    }
}
