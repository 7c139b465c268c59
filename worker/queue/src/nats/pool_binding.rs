//! Bindings of pools to blob stores. A worker with another store could not read the files of
//! trials, and coordinators could not find its results.

use rollout_protocol::limits;
use serde::{Deserialize, Serialize};

use super::client::NatsClient;
use super::connect::Nats;
use super::error::NatsError;
use super::kv_store::{POOL_KEY_PREFIX, read_key, write_key};
use super::names::NatsName;
use crate::traits::QueueError;

/// The binding of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolBinding {
    /// Identity of the blob store.
    pub store: String,
}

/// Why a pool was not bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Runs of the pool may be using another store.
    #[error("pool {pool} uses the blob store {found}, this run would use {wanted}")]
    OtherStore {
        /// Pool.
        pool: NatsName,
        /// The store that the pool is bound to.
        found: String,
        /// The requested store.
        wanted: String,
    },
    /// The request to the server failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// Maximum length of a store's identity.
const STORE_BYTES: usize = 4096;

impl Nats {
    /// Binds a pool to a blob store. A pool that is bound to another one is rebound only if the
    /// caller states that no live run of the pool uses that.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn bind_pool(
        &self,
        pool: &NatsName,
        store: &str,
        unused: bool,
    ) -> Result<(), BindError> {
        let key = format!("{POOL_KEY_PREFIX}{pool}");
        let (client, bucket) = (self.client(), &self.client().names.runs);
        let value = serde_json::to_vec(&PoolBinding { store: store.to_owned() });
        let value = value.expect("text keys only");
        loop {
            let found = read_key(client, bucket, &key).await.map_err(QueueError::from)?;
            let found = found.filter(|stored| !stored.deletion);
            let revision = match found {
                None => None,
                Some(stored) => match parse_binding(&stored.payload) {
                    Some(bound) if bound.store == store => return Ok(()),
                    Some(bound) if !unused => {
                        let (pool, wanted) = (pool.clone(), store.to_owned());
                        return Err(BindError::OtherStore { pool, found: bound.store, wanted });
                    }
                    Some(_) | None => Some(stored.sequence),
                },
            };
            let written = write_key(client, bucket, &key, value.clone().into(), revision).await;
            if written.map_err(QueueError::from)?.is_some() {
                return Ok(());
            }
        }
    }

    /// The binding of a pool, if it has one.
    ///
    /// # Errors
    /// [`QueueError`].
    pub async fn pool_binding(&self, pool: &NatsName) -> Result<Option<PoolBinding>, QueueError> {
        Ok(read_binding(self.client(), pool).await?)
    }
}

/// The binding of a pool. A pool that was not set up has none.
pub(super) async fn read_binding(
    client: &NatsClient,
    pool: &NatsName,
) -> Result<Option<PoolBinding>, NatsError> {
    match read_key(client, &client.names.runs, &format!("{POOL_KEY_PREFIX}{pool}")).await {
        Ok(found) => Ok(found
            .filter(|stored| !stored.deletion)
            .and_then(|stored| parse_binding(&stored.payload))),
        Err(fault) if fault.is_missing() => Ok(None),
        Err(fault) => Err(fault),
    }
}

fn parse_binding(payload: &[u8]) -> Option<PoolBinding> {
    let bound: PoolBinding = serde_json::from_slice(payload).ok()?;
    let store = limits::shorten(bound.store, STORE_BYTES);
    Some(PoolBinding { store })
}
