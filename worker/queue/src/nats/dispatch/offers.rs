//! Publishing and deletion of offers.

use rollout_protocol::id::{ItemId, RunId, TryId};
use rollout_protocol::wire::delivery::{OfferOutcome, PublishError};
use rollout_protocol::wire::offer::{Offer, SizeClass};
use serde_json::{Value, json};

use crate::nats::client::{NatsClient, api_request, parse_api};
use crate::nats::error::{NO_MESSAGE, NatsError};
use crate::nats::names::{NatsName, OfferSubject};
use crate::nats::publish::PublishResult;
use crate::nats::replies::NatsRequest;
use crate::traits::QueueError;

/// Publishes offers unless they are in the stream already.
pub(super) async fn publish_offers(
    client: &NatsClient,
    pool: &NatsName,
    offers: &[Offer],
) -> Result<Vec<PublishResult>, NatsError> {
    let messages = offers.iter().map(|offer| {
        let Offer { run, item, try_id, class, .. } = *offer;
        let subject =
            client.names.offer(OfferSubject { pool: pool.as_str(), class, run, item, try_id });
        NatsRequest::new(subject, serde_json::to_vec(offer).expect("text keys only"))
    });
    let published = client.publish(messages.collect()).await?;
    if let Some(last) = published.iter().filter_map(|p| p.as_ref().ok()).max() {
        client.incarnation.observe_offer(*last);
    }
    Ok(published)
}

/// Checks that this user may publish offers: without the permission, a run would wait for ever.
/// Publishes a message that the stream never accepts.
pub(super) async fn check_permission(
    client: &NatsClient,
    pool: &NatsName,
) -> Result<(), NatsError> {
    let subject = client.names.offer(OfferSubject {
        pool: pool.as_str(),
        class: SizeClass::SOLO,
        run: RunId::from_bytes([0; 16]),
        item: ItemId::from_bytes([0; 16]),
        try_id: TryId { epoch: 0, n: 0 },
    });
    // No offer has this subject, so its last sequence is 0.
    let never = client.publish_after(NatsRequest::new(subject, bytes::Bytes::new()), 1, false);
    match never.await {
        Err(denied @ NatsError::Denied(_)) => Err(denied),
        // The stream refused it, or does not answer now.
        _ => Ok(()),
    }
}

/// The outcome of an offer, from the stream's answer.
pub(super) fn offer_outcome(
    published: PublishResult,
) -> Result<Result<OfferOutcome, PublishError>, QueueError> {
    match published {
        Ok(_) => Ok(Ok(OfferOutcome::Published)),
        Err(NatsError::Api(error)) if error.is_present() => Ok(Ok(OfferOutcome::AlreadyPresent)),
        Err(NatsError::Api(error)) if error.is_full() => Ok(Err(PublishError::Full)),
        Err(fault) => Err(fault.into()),
    }
}

/// Deletes offers, delivered or not, in every pool and size class.
pub(super) async fn delete_offers(
    client: &NatsClient,
    run: RunId,
    tries: &[(ItemId, TryId)],
) -> Result<(), NatsError> {
    let verb = format!("STREAM.PURGE.{}", client.names.work);
    let requests = tries.iter().map(|(item, try_id)| {
        let filter = client.names.offer_in_any_pool(run, *item, *try_id);
        api_request(&verb, &json!({ "filter": filter }))
    });
    for answer in client.request_all(requests.collect()).await? {
        match parse_api::<Value>(&answer?.payload) {
            Ok(_) => {}
            Err(NatsError::Api(error)) if error.err_code == NO_MESSAGE => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}
