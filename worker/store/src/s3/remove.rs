//! Listing and removal of objects.
//!
//! A service cannot compare the age of an object and remove it in one request. Content that is
//! stored again in the milliseconds between both requests is lost, if no run names it by then.

use std::time::SystemTime;

use aws_sdk_s3::config::Config;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::types::Object;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use rollout_protocol::digest::Digest;

use super::super::identity::IDENTITY_FILE;
use super::super::{StoreError, StoredBlob, check_document_path, digest_of_hex};
use super::{S3StoreInner, blob_path, time};

/// Removals that are sent concurrently.
const PARALLEL_REMOVALS: usize = 16;

impl S3StoreInner {
    pub(super) async fn list_blobs(&self, first_byte: u8) -> Result<Vec<StoredBlob>, StoreError> {
        let start = format!("{first_byte:02x}");
        let below = format!("blobs/{start}/");
        let mut found = Vec::new();
        let listed = self.each_object(&below, |path, object| {
            let name = path.strip_prefix(&below).unwrap_or_default();
            let Some(digest) = digest_of_hex(&format!("{start}{name}")) else { return };
            let size = object.size().and_then(|size| u64::try_from(size).ok());
            let modified = time(object.last_modified());
            found.push(StoredBlob { digest, size_bytes: size.unwrap_or(0), modified });
        });
        listed.await?;
        Ok(found)
    }

    pub(super) async fn list_damaged(&self) -> Result<Vec<Digest>, StoreError> {
        let mut found = Vec::new();
        let listed = self.each_object("damaged/", |path, _| {
            found.extend(path.strip_prefix("damaged/").and_then(digest_of_hex));
        });
        listed.await?;
        found.sort_unstable();
        Ok(found)
    }

    pub(super) async fn remove_blob(
        &self,
        digest: &Digest,
        limit: SystemTime,
    ) -> Result<bool, StoreError> {
        let path = blob_path(digest);
        if self.head(&path).await?.is_none_or(|found| found.modified > limit) {
            return Ok(false);
        }
        self.delete(&path).await?;
        Ok(true)
    }

    pub(super) async fn remove_document(&self, path: &str) -> Result<bool, StoreError> {
        check_document_path(path)?;
        let path = format!("docs/{path}");
        let exists = self.head(&path).await?.is_some();
        if exists {
            self.delete(&path).await?;
        }
        Ok(exists)
    }

    pub(super) async fn remove_store(&self) -> Result<(), StoreError> {
        for content in ["blobs/", "docs/"] {
            let mut objects = 0_u64;
            self.each_object(content, |_, _| objects += 1).await?;
            if objects > 0 {
                let (store, reason) = (self.url.clone(), "it has blobs or documents");
                return Err(StoreError::InUse { store, reason });
            }
        }
        // The identity first: without it the rest is no store.
        self.delete(IDENTITY_FILE).await?;
        let mut paths = Vec::new();
        self.each_object("damaged/", |path, _| paths.push(path.to_owned())).await?;
        let removals: Vec<_> = paths.iter().map(|path| self.delete(path)).collect();
        stream::iter(removals).buffer_unordered(PARALLEL_REMOVALS).try_collect().await
    }

    /// Calls a function for each object whose path begins with `prefix`.
    pub(super) async fn each_object(
        &self,
        prefix: &str,
        mut each: impl FnMut(&str, &Object),
    ) -> Result<(), StoreError> {
        let root = self.location.key("");
        let request = self.client.list_objects_v2().bucket(&self.location.bucket);
        let mut pages = request.prefix(format!("{root}{prefix}")).into_paginator().send();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| self.failed(error, "list"))?;
            for object in page.contents() {
                if let Some(path) = object.key().and_then(|key| key.strip_prefix(&root)) {
                    each(path, object);
                }
            }
        }
        Ok(())
    }

    /// Removes an object. Not repeated when the answer is lost: content may be stored again before
    /// the second request.
    pub(super) async fn delete(&self, path: &str) -> Result<(), StoreError> {
        let request = self.client.delete_object().bucket(&self.location.bucket);
        let once = Config::builder().retry_config(RetryConfig::disabled());
        let request = request.key(self.location.key(path)).customize().config_override(once);
        let removed = request.send().await;
        removed.map(drop).map_err(|error| self.failed(error, "remove from"))
    }
}
