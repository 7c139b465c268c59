//! The offers of a run in the stream, and whether they were ever delivered.
//!
//! The subjects of a run come with the stream's state. A message was delivered when its sequence is
//! not above the last one that its consumer delivered: each class has its own consumer, which
//! delivers in the order of the stream. The sequence of each message costs one request; they are
//! sent in batches, about 30,000 a second. A server that was killed may have forgotten its last
//! deliveries. Then a few delivered offers are listed as not delivered, never the other way round.

use std::collections::{BTreeSet, HashMap};

use rollout_protocol::id::RunId;
use rollout_protocol::wire::delivery::QueuedOffer;
use serde::Deserialize;
use serde_json::json;

use crate::nats::client::{NatsClient, api_request, parse_api};
use crate::nats::error::NatsError;
use crate::nats::names;
use crate::nats::replies::NatsRequest;
use crate::nats::snapshot;

#[derive(Deserialize)]
struct ConsumerProgress {
    delivered: ConsumerSequences,
}

#[derive(Deserialize)]
struct ConsumerSequences {
    stream_seq: u64,
}

/// The offers of the run in all pools.
pub(super) async fn list_offers(
    client: &NatsClient,
    run: RunId,
) -> Result<Vec<QueuedOffer>, NatsError> {
    let filter = client.names.run_offers(run);
    let (subjects, _) = snapshot::matching_subjects(client, &client.names.work, &filter).await?;
    let offers: Vec<_> = subjects.iter().filter_map(|s| client.names.parse_offer(s)).collect();
    let consumers: BTreeSet<String> =
        offers.iter().map(|offer| format!("{}-{}", offer.pool, offer.class)).collect();
    let delivered = delivered_sequences(client, consumers).await?;
    let sequences = message_sequences(client, &subjects).await?;
    let mut listed: Vec<(u64, QueuedOffer)> = Vec::with_capacity(offers.len());
    for (subject, sequence) in subjects.iter().zip(sequences) {
        let Some(offer) = client.names.parse_offer(subject) else { continue };
        let last = delivered.get(&format!("{}-{}", offer.pool, offer.class)).copied().unwrap_or(0);
        let delivered = sequence <= last;
        listed.push((sequence, QueuedOffer { item: offer.item, try_id: offer.try_id, delivered }));
    }
    listed.sort_unstable_by_key(|(sequence, _)| *sequence);
    Ok(listed.into_iter().map(|(_, listed)| listed).collect())
}

/// The last sequence that each of these consumers delivered.
async fn delivered_sequences(
    client: &NatsClient,
    consumers: BTreeSet<String>,
) -> Result<HashMap<String, u64>, NatsError> {
    let stream = &client.names.work;
    let info = |name: &String| api_request(&format!("CONSUMER.INFO.{stream}.{name}"), &json!({}));
    let answers = client.request_all(consumers.iter().map(info).collect()).await?;
    let mut delivered = HashMap::new();
    for (name, answer) in consumers.into_iter().zip(answers) {
        let consumer: ConsumerProgress = parse_api(&answer?.payload)?;
        delivered.insert(name, consumer.delivered.stream_seq);
    }
    Ok(delivered)
}

/// The sequence of each subject's message; the maximum for a message that was removed meanwhile.
async fn message_sequences(
    client: &NatsClient,
    subjects: &[String],
) -> Result<Vec<u64>, NatsError> {
    let stream = &client.names.work;
    let get = |subject: &String| {
        NatsRequest::new(format!("$JS.API.DIRECT.GET.{stream}.{subject}"), bytes::Bytes::new())
    };
    let mut sequences = Vec::with_capacity(subjects.len());
    for answer in client.request_all(subjects.iter().map(get).collect()).await? {
        let answer = answer?;
        let header =
            answer.headers.as_ref().and_then(|headers| headers.get(names::SEQUENCE_HEADER));
        sequences.push(header.and_then(|text| text.as_str().parse().ok()).unwrap_or(u64::MAX));
    }
    Ok(sequences)
}
