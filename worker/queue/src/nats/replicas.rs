//! Copies of streams on the servers of a cluster.

use serde_json::json;

use super::client::NatsClient;
use super::error::{ApiError, NatsError};
use super::setup::{NatsSetupError, RequiredResource, ResourceInfo};

/// Setting of a stream: its number of copies.
pub(super) const SETTING: &str = "num_replicas";

/// Copies of new streams in a cluster: one server may fail, and the others still agree.
const CLUSTER_DEFAULT: u8 = 3;

/// Copies of new streams: those that were asked for, else three in a cluster, else one.
pub(super) fn of_new_streams(client: &NatsClient) -> u8 {
    let default = if client.inner.server_info().cluster.is_some() { CLUSTER_DEFAULT } else { 1 };
    client.options.replicas.unwrap_or(default)
}

/// Why a stream cannot have that many copies, if that is the server's reason.
pub(super) fn refusal(
    stream: &RequiredResource,
    wanted: u8,
    error: &ApiError,
) -> Option<NatsSetupError> {
    /// No suitable peers; not enough resources on them; not a cluster; too many; cannot be changed.
    const REFUSED: [u32; 4] = [10005, 10023, 10074, 10125];
    REFUSED.contains(&error.err_code).then(|| NatsSetupError::Copies {
        name: stream.name.clone(),
        wanted,
        reason: error.description.clone(),
    })
}

/// Gives an existing stream `wanted` copies. Returns whether that was a change.
pub(super) async fn change(
    client: &NatsClient,
    stream: &RequiredResource,
    wanted: u8,
) -> Result<bool, NatsSetupError> {
    let name = &stream.name;
    let info = format!("STREAM.INFO.{name}");
    let mut found = client.api_call::<ResourceInfo>(&info, &json!({})).await?;
    if found.config.get(SETTING).and_then(serde_json::Value::as_u64) == Some(wanted.into()) {
        return Ok(false);
    }
    found.config.insert(SETTING.to_owned(), wanted.into());
    let changed =
        client.api_call::<ResourceInfo>(&format!("STREAM.UPDATE.{name}"), &found.config).await;
    match changed {
        Ok(_) => Ok(true),
        Err(NatsError::Api(error)) => {
            Err(refusal(stream, wanted, &error).unwrap_or(NatsError::Api(error).into()))
        }
        Err(fault) => Err(fault.into()),
    }
}
