//! An executor whose trials run on a server of `rollout serve`. Everything comes over HTTP, by
//! reference: this host needs no blob store and no file of the server.
//!
//! * `transport`: calls, and their repetition
//! * `errors`: errors of the server
//! * `event_stream`: events of a trial

mod errors;
mod event_stream;
mod transport;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::executor::{StartTrial, TrialHandle, TrialStatus};
use rollout_protocol::harness::ControlRequest;
use rollout_protocol::id::ItemId;
use rollout_protocol::reference::{ArtifactRef, OutputRef};
use rollout_protocol::wire::trial_control::TrialControlReceipt;
use rollout_store::{StoreError, VerifyingReader};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::io::StreamReader;

use self::transport::{ApiCall, ApiTransport, CallError};
use super::{BlobReader, ExecutorError, TrialEventStream, TrialExecutor};

/// How much longer than the harness the server may take to answer a control.
const CONTROL_MARGIN: Duration = Duration::from_secs(90);

/// Time between two looks at a run that is finished.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteExecutorOptions {
    /// Its URL, such as `https://host:4280`.
    pub endpoint: String,
    /// Where the token is; without a place, none is sent.
    pub token: Option<TokenSource>,
    /// How long a call is repeated while the server is out of reach.
    pub patience: Duration,
}

/// Where a token is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// In this variable of this process.
    Variable(String),
    /// In this file, such as `token` in the directory of a server of this host.
    File(PathBuf),
}

impl RemoteExecutorOptions {
    /// The options of a server, without a token and with a minute of patience.
    pub fn new(endpoint: impl Into<String>) -> Self {
        let patience = Duration::from_secs(60);
        Self { endpoint: endpoint.into(), token: None, patience }
    }
}

/// A run to submit.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteSubmission {
    /// The job.
    pub document: Value,
    /// Idempotency key: the same submission with the same key is the same run.
    pub key: String,
    /// Name for people.
    pub name: Option<String>,
    /// Runs with a higher priority start first.
    pub priority: i32,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRunEnd {
    /// `completed`, `cancelled` or `failed`.
    pub state: String,
    /// The exit code that `rollout run` has for this end.
    pub code: Option<u8>,
    /// Why it failed.
    pub failure: Option<String>,
}

/// Runs the trials of a job on a server when they are requested.
///
/// The run lives on the server: it goes on when this is dropped or this process ends, until
/// [`finish`](Self::finish). Every call but a control may be repeated, and is repeated while the
/// server is out of reach.
#[derive(Debug, Clone)]
pub struct RemoteExecutor {
    transport: Arc<ApiTransport>,
    id: String,
}

impl RemoteExecutor {
    /// Submits a run, or finds the one that was submitted before under the key.
    ///
    /// # Errors
    /// [`ExecutorError`].
    pub async fn submit(
        options: &RemoteExecutorOptions,
        submission: RemoteSubmission,
    ) -> Result<Self, ExecutorError> {
        let transport = Arc::new(ApiTransport::new(options)?);
        let RemoteSubmission { document, key, name, priority } = submission;
        let body = json!({
            "kind": "executor", "document": document, "name": name, "priority": priority,
        });
        let call = ApiCall::post("/v1/runs", body).with_key(&key);
        let run = transport.call(call).await.map_err(errors::of_call)?;
        let id = run["id"].as_str().map(str::to_owned);
        let id = id.ok_or_else(|| unreadable("the answer has no id of a run"))?;
        Ok(Self { transport, id })
    }

    /// The executor of a run that was submitted before.
    ///
    /// # Errors
    /// [`ExecutorError`].
    pub fn attach(options: &RemoteExecutorOptions, id: &str) -> Result<Self, ExecutorError> {
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            let reason = format!("`{id}` is not the id of a run");
            return Err(ExecutorError::Remote { reason });
        }
        Ok(Self { transport: Arc::new(ApiTransport::new(options)?), id: id.to_owned() })
    }

    /// The id of the run on the server.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The trials that can be started, in the plan's order.
    ///
    /// # Errors
    /// [`ExecutorError`].
    pub async fn planned(&self) -> Result<Vec<StartTrial>, ExecutorError> {
        #[derive(Deserialize)]
        struct Page {
            trials: Vec<StartTrial>,
            next: Option<u64>,
        }
        let (mut trials, mut cursor) = (Vec::new(), 0);
        loop {
            let path = self.run_path(&format!("/trials?limit=1000&cursor={cursor}"));
            let page: Page = self.call(ApiCall::get(path)).await?;
            trials.extend(page.trials);
            match page.next {
                Some(next) => cursor = next,
                None => return Ok(trials),
            }
        }
    }

    /// Ends the run when every started trial has a result, and waits for that.
    ///
    /// # Errors
    /// [`ExecutorError`]; results are kept.
    pub async fn finish(self) -> Result<RemoteRunEnd, ExecutorError> {
        let _closed: Value =
            self.call(ApiCall::post(self.run_path("/finish"), Value::Null)).await?;
        self.wait_end().await
    }

    /// Cancels the run with all its trials, and waits for its end.
    ///
    /// # Errors
    /// [`ExecutorError`]; results are kept.
    pub async fn cancel(self) -> Result<RemoteRunEnd, ExecutorError> {
        let _cancelled: Value =
            self.call(ApiCall::post(self.run_path("/cancel"), Value::Null)).await?;
        self.wait_end().await
    }

    async fn wait_end(&self) -> Result<RemoteRunEnd, ExecutorError> {
        loop {
            let run: Value = self.call(ApiCall::get(self.run_path(""))).await?;
            if has_stopped(&run) {
                let failure = run["failure"]["message"].as_str().map(str::to_owned);
                let state = run["state"].as_str().unwrap_or_default().to_owned();
                let code = run["code"].as_u64().and_then(|code| code.try_into().ok());
                return Ok(RemoteRunEnd { state, code, failure });
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    fn run_path(&self, rest: &str) -> String {
        format!("/v1/runs/{}{rest}", self.id)
    }

    fn trial_path(&self, trial: ItemId, rest: &str) -> String {
        self.run_path(&format!("/trials/{trial}{rest}"))
    }

    async fn call<T: DeserializeOwned>(&self, call: ApiCall) -> Result<T, ExecutorError> {
        read(self.transport.call(call).await.map_err(errors::of_call)?)
    }

    async fn call_about<T: DeserializeOwned>(
        &self,
        trial: ItemId,
        call: ApiCall,
    ) -> Result<T, ExecutorError> {
        let answer = self.transport.call(call).await;
        read(answer.map_err(|error| errors::of_trial(error, trial))?)
    }
}

/// Whether a run has ended, or waits for its user. One that failed with the disk of the server continues.
fn has_stopped(run: &Value) -> bool {
    let waits = run["state"] == "failed" && run["failure"]["is_temporary"] != true;
    run["is_final"] == true || waits
}

fn read<T: DeserializeOwned>(document: Value) -> Result<T, ExecutorError> {
    serde_json::from_value(document).map_err(|error| unreadable(&error.to_string()))
}

/// The error of an answer of another version of the server.
fn unreadable(reason: &str) -> ExecutorError {
    ExecutorError::Remote { reason: format!("its answer cannot be read: {reason}") }
}

#[async_trait]
impl TrialExecutor for RemoteExecutor {
    async fn start_trial(&self, request: StartTrial) -> Result<TrialHandle, ExecutorError> {
        let (trial, item) = (request.trial.clone(), request.item());
        let call = ApiCall::post(self.run_path("/trials"), json!(request));
        match self.transport.call(call).await {
            Ok(handle) => read(handle),
            Err(CallError::Problem(problem)) if problem.kind == "other-spec" => {
                Err(ExecutorError::OtherSpec { trial })
            }
            Err(error) => Err(errors::of_trial(error, item)),
        }
    }

    async fn trial_status(&self, trial: ItemId) -> Result<TrialStatus, ExecutorError> {
        self.call_about(trial, ApiCall::get(self.trial_path(trial, ""))).await
    }

    fn trial_events(&self, trial: ItemId, from: u64) -> TrialEventStream {
        let path = self.trial_path(trial, "");
        event_stream::trial_events(Arc::clone(&self.transport), &path, trial, from)
    }

    async fn send_control(
        &self,
        trial: ItemId,
        control: ControlRequest,
    ) -> Result<TrialControlReceipt, ExecutorError> {
        let ControlRequest { action, label, requested_by, timeout, grace } = control;
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let document = json!({
            "action": action, "label": label, "requested_by": requested_by,
            "timeout_ms": milliseconds(timeout), "grace_ms": milliseconds(grace),
        });
        let limit = timeout.saturating_add(CONTROL_MARGIN);
        let call = ApiCall::post(self.trial_path(trial, "/control"), document).once(limit);
        self.call_about(trial, call).await
    }

    async fn trial_output(&self, trial: ItemId) -> Result<Option<OutputRef>, ExecutorError> {
        #[derive(Deserialize)]
        struct OutputAnswer {
            output: Option<OutputRef>,
        }
        let call = ApiCall::get(self.trial_path(trial, "/output"));
        let answer: OutputAnswer = self.call_about(trial, call).await?;
        Ok(answer.output)
    }

    async fn trial_artifacts(&self, trial: ItemId) -> Result<Vec<ArtifactRef>, ExecutorError> {
        #[derive(Deserialize)]
        struct ArtifactsAnswer {
            artifacts: Vec<ArtifactRef>,
        }
        let call = ApiCall::get(self.trial_path(trial, "/artifacts"));
        let answer: ArtifactsAnswer = self.call_about(trial, call).await?;
        Ok(answer.artifacts)
    }

    async fn read_artifact(&self, blob: &BlobRef) -> Result<BlobReader, ExecutorError> {
        let (digest, store) = (blob.digest, self.transport.base().to_owned());
        let path = self.run_path(&format!("/blobs/{digest}"));
        let content = match self.transport.open(&path).await {
            Ok(content) => content,
            Err(CallError::Problem(problem)) if problem.status == 404 => {
                return Err(StoreError::Missing { digest, store }.into());
            }
            Err(error) => return Err(errors::of_call(error)),
        };
        let pieces = content.into_data_stream().map_err(std::io::Error::other);
        let reader = StreamReader::new(pieces);
        Ok(Box::new(VerifyingReader::new(reader, digest, &store, || {})))
    }

    async fn cancel_trial(&self, trial: ItemId) -> Result<(), ExecutorError> {
        let call = ApiCall::post(self.trial_path(trial, "/cancel"), Value::Null);
        let _status: Value = self.call_about(trial, call).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_that_waits_for_the_disk_of_the_server_has_not_stopped() {
        let run = |state, is_final, is_temporary| {
            has_stopped(&json!({
                "state": state, "is_final": is_final, "failure": {"is_temporary": is_temporary},
            }))
        };
        assert!(!run("failed", false, true));
        assert!(run("failed", false, false) && run("failed", true, false));
        assert!(!has_stopped(&json!({"state": "running", "is_final": false})));
        // A server of an earlier version.
        assert!(has_stopped(&json!({"state": "failed", "is_final": false})));
    }
}
