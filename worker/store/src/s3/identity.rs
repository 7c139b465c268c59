//! `store.json`: the object that makes a prefix a store.

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;

use super::super::identity::{IDENTITY_FILE, MAX_IDENTITY_BYTES, StoreIdentity};
use super::super::{S3Location, StoreError};
use super::error::{RequestError, ServiceAnswer};
use super::read_limited;

/// Reads the identity of the store at `location`, creating the store if there is none. Who creates it
/// is told if the service ignores conditional writes.
pub(super) async fn open(
    client: &Client,
    location: &S3Location,
    url: &str,
) -> Result<StoreIdentity, StoreError> {
    if let Some(identity) = read(client, location, url).await? {
        return Ok(identity);
    }
    create(client, location, url, &StoreIdentity::random()).await?;
    // Also after success: of two processes that create it, the last may have won.
    let identity = read(client, location, url).await?.ok_or_else(|| StoreError::Unusable {
        path: url.to_owned(),
        reason: "its store.json disappeared while it was opened".into(),
    })?;
    if !has_conditional_writes(client, location, url, &identity).await? {
        tracing::warn!(
            "the service of the blob store {url} ignores conditional writes: of two workers that \
             resolve the tag of an image at the same moment, each may use its own answer"
        );
    }
    Ok(identity)
}

/// Whether the service honours the condition of a write that must create its object. Writes the
/// identity that is already there.
pub(super) async fn has_conditional_writes(
    client: &Client,
    location: &S3Location,
    url: &str,
    identity: &StoreIdentity,
) -> Result<bool, StoreError> {
    Ok(!create(client, location, url, identity).await?)
}

/// Writes the identity unless there is one; returns whether it was written.
async fn create(
    client: &Client,
    location: &S3Location,
    url: &str,
    identity: &StoreIdentity,
) -> Result<bool, StoreError> {
    let created = client
        .put_object()
        .bucket(&location.bucket)
        .key(location.key(IDENTITY_FILE))
        .content_type("application/json")
        .if_none_match("*")
        .body(ByteStream::from(Bytes::from(identity.to_bytes())))
        .send()
        .await;
    match created.map_err(RequestError::from) {
        Ok(_) => Ok(true),
        Err(error) if error.answer().is_some_and(ServiceAnswer::is_conflict) => Ok(false),
        Err(error) => Err(error.into_opening_error(url, "create")),
    }
}

/// Reads the identity of the store at `location`; `None` without a store.
pub(super) async fn read(
    client: &Client,
    location: &S3Location,
    url: &str,
) -> Result<Option<StoreIdentity>, StoreError> {
    let request = client.get_object().bucket(&location.bucket).key(location.key(IDENTITY_FILE));
    let object = match request.send().await.map_err(RequestError::from) {
        Ok(object) => object,
        Err(error) if error.answer().is_some_and(ServiceAnswer::is_no_object) => return Ok(None),
        Err(error) => return Err(error.into_opening_error(url, "open")),
    };
    let text = read_limited(object.body, MAX_IDENTITY_BYTES).await.map_err(|source| {
        let source = Box::new(source);
        StoreError::Unanswered { store: url.to_owned(), action: "open", source }
    })?;
    StoreIdentity::parse(&text, &format!("{url} ({IDENTITY_FILE})")).map(Some)
}
