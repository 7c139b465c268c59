//! `store.json`: the object that makes a prefix a store.

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;

use super::super::identity::{IDENTITY_FILE, MAX_IDENTITY_BYTES, StoreIdentity};
use super::super::{S3Location, StoreError};
use super::error::{RequestError, ServiceAnswer};
use super::read_limited;

/// Reads the identity of the store at `location`, creating the store if there is none.
pub(super) async fn open(
    client: &Client,
    location: &S3Location,
    url: &str,
) -> Result<String, StoreError> {
    if let Some(identity) = read(client, location, url).await? {
        return Ok(identity.id);
    }
    let text = Bytes::from(StoreIdentity::random().to_bytes());
    let created = client
        .put_object()
        .bucket(&location.bucket)
        .key(location.key(IDENTITY_FILE))
        .content_type("application/json")
        .if_none_match("*")
        .body(ByteStream::from(text))
        .send()
        .await;
    match created.map_err(RequestError::from) {
        Err(error) if !error.answer().is_some_and(ServiceAnswer::is_conflict) => {
            return Err(error.into_store_error(url, "create"));
        }
        // Also after success: of two processes that create it, the last may have won.
        Ok(_) | Err(_) => {}
    }
    let identity = read(client, location, url).await?.ok_or_else(|| StoreError::Unusable {
        path: url.to_owned(),
        reason: "its store.json disappeared while it was opened".into(),
    })?;
    Ok(identity.id)
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
        Err(error) => return Err(error.into_store_error(url, "open")),
    };
    let text = read_limited(object.body, MAX_IDENTITY_BYTES).await.map_err(|source| {
        let source = Box::new(source);
        StoreError::Unanswered { store: url.to_owned(), action: "open", source }
    })?;
    StoreIdentity::parse(&text, &format!("{url} ({IDENTITY_FILE})")).map(Some)
}
