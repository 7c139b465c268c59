//! Lookup of results of missing items, by their markers in the blob store.

use std::sync::Arc;

use bytes::Bytes;
use rollout_base::backoff::OutageLog;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::id::{ItemId, RunId};
use rollout_protocol::limits::DOCUMENT_BYTES;
use rollout_protocol::record::ExecutionRecord;
use rollout_protocol::wire::marker::ResultMarker;
use rollout_protocol::wire::report::Report;
use rollout_store::{BlobStore, StoreError};
use tokio::sync::mpsc;

use crate::event_loop::EngineMessage;

/// Looks up the results of requested items, until either channel is closed.
pub(super) async fn look_up_results(
    run: RunId,
    store: Arc<dyn BlobStore>,
    mut items: mpsc::UnboundedReceiver<ItemId>,
    to: mpsc::Sender<EngineMessage>,
) {
    let outage = OutageLog::new("looking for results in the blob store");
    while let Some(item) = items.recv().await {
        let mut backoff = outage.backoff();
        let reports = loop {
            match find_reports(run, item, &*store).await {
                Ok(reports) => break reports,
                Err(error) => backoff.wait_after_failure(&error).await,
            }
        };
        backoff.succeeded();
        if to.send(EngineMessage::Found { item, reports }).await.is_err() {
            return;
        }
    }
}

/// The results that the item's markers name.
async fn find_reports(
    run: RunId,
    item: ItemId,
    store: &dyn BlobStore,
) -> Result<Vec<Report>, StoreError> {
    let mut reports = Vec::new();
    for path in store.list_documents(&ResultMarker::prefix_of_item(run, item)).await? {
        let Some(marker) = ResultMarker::parse(&path) else { continue };
        let Some(content) = store.get_document(&path).await? else { continue };
        if let Some(report) = read_report(&marker, &content, store).await? {
            reports.push(report);
        }
    }
    Ok(reports)
}

/// The report of a marker; `None` when marker and record do not match: others write to the store,
/// too.
async fn read_report(
    marker: &ResultMarker,
    content: &Bytes,
    store: &dyn BlobStore,
) -> Result<Option<Report>, StoreError> {
    let Ok(blob) = serde_json::from_slice::<BlobRef>(content) else { return Ok(None) };
    if blob.digest != marker.record || !store.contains(&blob.digest).await? {
        return Ok(None);
    }
    let bytes = store.get_bytes(&blob.digest, DOCUMENT_BYTES).await?;
    let Ok(record) = serde_json::from_slice::<ExecutionRecord>(&bytes) else { return Ok(None) };
    let ResultMarker { run, item, try_id, exec, .. } = *marker;
    let fits = record.ids() == (run, item, try_id, exec);
    Ok(fits.then(|| record.result_report(blob)))
}
