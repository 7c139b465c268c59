//! The blob store: it loses nothing, but it can be out of reach.

use std::collections::BTreeMap;

use rollout_protocol::id::{ExecId, ItemId, TryId};
use rollout_protocol::wire::report::Report;

/// Result markers, each with the report that it stands for.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) down: bool,
    markers: BTreeMap<ExecId, Report>,
}

impl Store {
    pub(crate) fn mark(&mut self, report: Report) {
        self.markers.insert(report.exec, report);
    }

    pub(crate) fn of_item(&self, item: &ItemId) -> Vec<Report> {
        self.markers.values().filter(|report| report.item == *item).cloned().collect()
    }

    pub(crate) fn has_try(&self, item: &ItemId, try_id: TryId) -> bool {
        self.markers.values().any(|r| (r.item, r.try_id) == (*item, try_id))
    }
}
