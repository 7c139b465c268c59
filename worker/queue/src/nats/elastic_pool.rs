//! Declarations of elastic pools: workers of a kind that a pool does not have at present may still be
//! started, by an autoscaler.
//!
//! A key of its own: coordinators of earlier versions, which know no such pools, replace bindings.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::client::NatsClient;
use super::connect::Nats;
use super::error::NatsError;
use super::kv_store::{POOL_KEY_PREFIX, read_key, write_key};
use super::names::NatsName;
use crate::traits::QueueError;

/// Whether items of a pool wait for workers that do not exist yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PoolElasticity {
    /// Items that no worker of the pool could run fail after the timeout of their run.
    #[default]
    Fixed,
    /// They wait for a worker that could, at most for this time if there is one.
    Elastic(Option<Duration>),
}

#[derive(Debug, Serialize, Deserialize)]
struct ElasticityEntry {
    elastic: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_wait_sec: Option<u64>,
}

impl Nats {
    /// Whether a pool is elastic. A pool without a declaration is not.
    ///
    /// # Errors
    /// [`QueueError`].
    pub async fn pool_elasticity(&self, pool: &NatsName) -> Result<PoolElasticity, QueueError> {
        let client = self.client();
        match read_key(client, &client.names.runs, &key(pool)).await {
            Ok(stored) => {
                let stored = stored.filter(|stored| !stored.deletion);
                Ok(stored.map_or(PoolElasticity::Fixed, |stored| parse(&stored.payload)))
            }
            Err(error) if error.is_missing() => Ok(PoolElasticity::Fixed),
            Err(error) => Err(error.into()),
        }
    }

    /// Declares whether a pool is elastic. Sessions of runs that begin later observe it.
    ///
    /// # Errors
    /// [`QueueError`].
    pub async fn declare_elasticity(
        &self,
        pool: &NatsName,
        elasticity: PoolElasticity,
    ) -> Result<(), QueueError> {
        while !write(self.client(), pool, elasticity).await? {}
        Ok(())
    }
}

/// Writes the declaration once; `false` if another process wrote it meanwhile.
async fn write(
    client: &NatsClient,
    pool: &NatsName,
    elasticity: PoolElasticity,
) -> Result<bool, NatsError> {
    let (bucket, key) = (&client.names.runs, key(pool));
    let stored = read_key(client, bucket, &key).await?;
    let revision = stored.filter(|stored| !stored.deletion).map(|stored| stored.sequence);
    let written = write_key(client, bucket, &key, encode(elasticity).into(), revision).await?;
    Ok(written.is_some())
}

fn key(pool: &NatsName) -> String {
    format!("{POOL_KEY_PREFIX}{pool}.elastic")
}

fn encode(elasticity: PoolElasticity) -> Vec<u8> {
    let entry = match elasticity {
        PoolElasticity::Fixed => ElasticityEntry { elastic: false, max_wait_sec: None },
        PoolElasticity::Elastic(max_wait) => {
            ElasticityEntry { elastic: true, max_wait_sec: max_wait.map(|wait| wait.as_secs()) }
        }
    };
    serde_json::to_vec(&entry).expect("text keys only")
}

fn parse(payload: &[u8]) -> PoolElasticity {
    match serde_json::from_slice(payload) {
        Ok(ElasticityEntry { elastic: true, max_wait_sec }) => {
            PoolElasticity::Elastic(max_wait_sec.map(Duration::from_secs))
        }
        Ok(ElasticityEntry { elastic: false, .. }) | Err(_) => PoolElasticity::Fixed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elasticity_is_read_as_it_was_written() {
        let longest = PoolElasticity::Elastic(Some(Duration::from_secs(7200)));
        for elasticity in [PoolElasticity::Fixed, PoolElasticity::Elastic(None), longest] {
            assert_eq!(parse(&encode(elasticity)), elasticity);
        }
        assert_eq!(parse(b"not JSON"), PoolElasticity::Fixed);
        let newer = br#"{"elastic": true, "field_of_newer_version": 1}"#;
        assert_eq!(parse(newer), PoolElasticity::Elastic(None));
    }
}
