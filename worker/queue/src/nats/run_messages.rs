//! Messages of runs in the queue of all pools: which runs have some, and their removal.

use std::collections::BTreeMap;

use rollout_protocol::id::RunId;
use serde::Deserialize;
use serde_json::json;

use super::client::NatsClient;
use super::connect::Nats;
use super::error::NatsError;
use super::incarnation::{StreamInfo, StreamState};
use super::snapshot;
use crate::traits::QueueError;

/// Last sequences of the streams at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueEnds {
    offers: u64,
    reports: u64,
}

#[derive(Deserialize)]
struct PurgeAnswer {
    #[serde(default)]
    purged: u64,
}

impl Nats {
    /// The current ends of the streams: a removal up to them leaves what is published later.
    ///
    /// # Errors
    /// [`QueueError`].
    pub async fn queue_ends(&self) -> Result<QueueEnds, QueueError> {
        let names = &self.client().names;
        let offers = stream_state(self.client(), &names.work).await?.last_seq;
        let reports = stream_state(self.client(), &names.reports).await?.last_seq;
        Ok(QueueEnds { offers, reports })
    }

    /// The runs that have reports or offers in the queue, with the number of these messages. If there are
    /// more than `max_offers`, offers are left out: each has a subject of its own, and the server lists all
    /// of them. A run has few subjects of reports.
    ///
    /// # Errors
    /// [`QueueError`].
    pub async fn runs_in_queue(&self, max_offers: u64) -> Result<BTreeMap<RunId, u64>, QueueError> {
        let client = self.client();
        let names = &client.names;
        let mut found = BTreeMap::new();
        let mut add = |run: Option<RunId>, messages: u64| {
            if let Some(run) = run {
                *found.entry(run).or_insert(0) += messages;
            }
        };
        let see_offers = |subject: String, messages: u64| {
            add(names.parse_offer(&subject).map(|offer| offer.run), messages);
        };
        if stream_state(client, &names.work).await?.messages <= max_offers {
            snapshot::count_messages(client, &names.work, &names.all_offers(), see_offers).await?;
        }
        let [_, subjects] = names.report_subjects();
        let see_reports =
            |subject: String, messages: u64| add(names.run_of_report(&subject), messages);
        snapshot::count_messages(client, &names.reports, &subjects, see_reports).await?;
        Ok(found)
    }

    /// Removes the offers and reports of a run that were published before these ends. Returns their
    /// number.
    ///
    /// # Errors
    /// [`QueueError`]; some may have been removed.
    pub async fn remove_messages(&self, run: RunId, ends: QueueEnds) -> Result<u64, QueueError> {
        let names = &self.client().names;
        let mut removed = 0;
        for (stream, filter, last) in [
            (&names.work, names.run_offers(run), ends.offers),
            (&names.reports, names.run_reports(run), ends.reports),
        ] {
            let verb = format!("STREAM.PURGE.{stream}");
            let which = json!({ "filter": filter, "seq": last.saturating_add(1) });
            let answer: PurgeAnswer = self.client().api_call(&verb, &which).await?;
            removed += answer.purged;
        }
        Ok(removed)
    }
}

async fn stream_state(client: &NatsClient, stream: &str) -> Result<StreamState, NatsError> {
    let info: StreamInfo = client.api_call(&format!("STREAM.INFO.{stream}"), &json!({})).await?;
    Ok(info.state)
}
