//! Requests of users: commands to coordinators, and requests about trials to their workers.

use std::time::Duration;

use async_nats::{Message, StatusCode};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use rollout_protocol::id::RunId;
use rollout_protocol::wire::command::{CommandReceipt, RunCommand};
use rollout_protocol::wire::output::{OutputAnswer, OutputRequest, TrialRequest};
use rollout_protocol::wire::trial_control::{TrialControlReceipt, TrialControlRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::request_coordinator;
use crate::nats::connect::Nats;
use crate::nats::dispatch::requests::is_inbox;
use crate::traits::{PendingTrialRequest, QueueError, RunControl};

#[async_trait]
impl RunControl for Nats {
    async fn command(&self, run: RunId, command: RunCommand) -> Result<CommandReceipt, QueueError> {
        request_coordinator(self.client(), self.client().names.command(run), run, &command).await
    }

    async fn trial_control(
        &self,
        request: &TrialControlRequest,
        wait: Duration,
    ) -> Result<Option<TrialControlReceipt>, QueueError> {
        self.ask_workers(request.run, request, wait).await
    }
}

impl Nats {
    /// Asks the worker of a trial for output, and waits this long for it; `None` when no worker
    /// answers.
    ///
    /// # Errors
    /// [`QueueError`] when the request could not be sent.
    pub async fn trial_output(
        &self,
        request: &OutputRequest,
        wait: Duration,
    ) -> Result<Option<OutputAnswer>, QueueError> {
        self.ask_workers(request.run, request, wait).await
    }

    async fn ask_workers<A: DeserializeOwned>(
        &self,
        run: RunId,
        request: &impl Serialize,
        wait: Duration,
    ) -> Result<Option<A>, QueueError> {
        let client = self.client();
        client.connection()?;
        let unreachable = |reason: String| QueueError::Unreachable { reason };
        let inbox = client.inner.new_inbox();
        let subscribed = client.inner.subscribe(inbox.clone()).await;
        let mut answers = subscribed.map_err(|error| unreachable(error.to_string()))?;
        let payload = serde_json::to_vec(request).expect("text keys only");
        let subject = client.names.control(run);
        let sent = client.inner.publish_with_reply(subject, inbox, payload.into()).await;
        sent.map_err(|error| unreachable(error.to_string()))?;
        let receipt = async {
            while let Some(message) = answers.next().await {
                if message.status == Some(StatusCode::NO_RESPONDERS) {
                    return None;
                }
                if let Ok(receipt) = serde_json::from_slice(&message.payload) {
                    return Some(receipt);
                }
            }
            None
        };
        Ok(tokio::time::timeout(wait, receipt).await.ok().flatten())
    }
}

/// Passes on a request.
pub(super) fn forward(message: Message, requests: &mpsc::Sender<PendingTrialRequest>) {
    let Message { subject, reply, payload, .. } = message;
    // The answer is sent with the permissions of this worker.
    let Some(reply_to) = reply.filter(|reply| is_inbox(reply)) else {
        tracing::warn!("{subject}: ignored a request whose reply subject is not an inbox");
        return;
    };
    match serde_json::from_slice::<TrialRequest>(&payload) {
        Ok(request) => {
            let pending = PendingTrialRequest { request, reply_to: reply_to.into_string() };
            if requests.try_send(pending).is_err() {
                tracing::warn!("{subject}: ignored a request about a trial: too many of them wait");
            }
        }
        Err(error) => tracing::warn!("{subject}: cannot parse a request about a trial: {error}"),
    }
}
