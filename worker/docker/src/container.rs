//! One container: its properties, its state, its removal.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{
    InspectContainerOptions, LogsOptions, RemoveContainerOptions, RenameContainerOptions,
    StopContainerOptions,
};
use futures_util::StreamExt as _;
use rollout_base::supervise::Task;
use rollout_environment::service_hosts::ServiceHosts;
use rollout_environment::{Failure, FailureKind};

use super::client::DockerClient;
use super::failure::{has_status, says};
use super::network::ContainerNetwork;
use super::storage::StorageLimit;

/// Lines and bytes of a container's own output that a failure quotes.
const OUTPUT_LINES: &str = "20";
const OUTPUT_BYTES: usize = 4 * 1024;

/// Prefix of the names of preserved containers, which reapers skip. Labels cannot be changed after
/// the creation, the name can.
pub(super) const PRESERVED_PREFIX: &str = "rollout-kept-";

/// Prefix of the names of all containers of this program.
pub(super) const PREFIX: &str = "rollout-";

/// Time between the signals of a stop. The keep-alive ends at the first one at once, so this is for
/// images whose ENTRYPOINT does not pass the signal on.
const STOP_GRACE_SECONDS: i32 = 1;

/// Timeout of a removal, which the engine does in the background for large layers.
const REMOVE_WITHIN: Duration = Duration::from_secs(600);

/// One container at its engine.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) client: Arc<DockerClient>,
    /// The engine's identifier.
    pub(super) engine_id: String,
    /// The name it was created with.
    pub(super) name: String,
    /// Its network.
    pub(super) network: ContainerNetwork,
    /// Hosts that its commands reach without a proxy.
    pub(super) service_hosts: ServiceHosts,
    /// The lists of such hosts among its own variables.
    pub(super) own_lists: BTreeMap<String, String>,
    /// Its storage limit, if there is one.
    pub(super) storage: OnceLock<StorageLimit>,
    /// The reason why its storage limit ended it, if it did.
    pub(super) over_storage: OnceLock<String>,
    /// Whether a kill by the memory limit was observed.
    pub(super) oom_seen: AtomicBool,
    /// The kernel's file that counts such kills, if this host can read it.
    pub(super) oom_count: OnceLock<PathBuf>,
    readers: Mutex<Vec<Task<()>>>,
}

impl Container {
    /// The container that the engine calls `engine_id`.
    pub(super) fn new(
        client: Arc<DockerClient>,
        engine_id: String,
        name: String,
        network: ContainerNetwork,
    ) -> Self {
        Self {
            client,
            engine_id,
            name,
            network,
            service_hosts: ServiceHosts::default(),
            own_lists: BTreeMap::new(),
            storage: OnceLock::new(),
            over_storage: OnceLock::new(),
            oom_seen: AtomicBool::new(false),
            oom_count: OnceLock::new(),
            readers: Mutex::default(),
        }
    }

    /// The failure of `what` in this container.
    pub(super) fn failure(&self, what: &str, error: bollard::errors::Error) -> Failure {
        self.client.failure(&format!("{what} in the container {}", self.name), error)
    }

    /// Keeps a task that reads a command's output until its streams end.
    pub(super) fn track_reader(&self, reader: Task<()>) {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|reader| !reader.is_finished());
        readers.push(reader);
    }

    /// The engine's description of the container.
    pub(super) async fn inspect(&self) -> Result<ContainerInspectResponse, Failure> {
        let docker = self.client.docker().await?;
        docker
            .inspect_container(&self.engine_id, None::<InspectContainerOptions>)
            .await
            .map_err(|e| self.failure("cannot inspect the state", e))
    }

    /// Whether its first process is running.
    pub(super) async fn is_running(&self) -> Result<bool, Failure> {
        Ok(self.inspect().await?.state.and_then(|state| state.running) == Some(true))
    }

    /// Checks that its first process is running.
    ///
    /// # Errors
    /// The reason why it is not, with its output.
    pub(super) async fn check_running(&self) -> Result<(), Failure> {
        if self.is_running().await? { Ok(()) } else { Err(self.exit_failure().await) }
    }

    /// The reason why it is not running, with its output.
    pub(super) async fn exit_failure(&self) -> Failure {
        if let Err(failure) = self.check_storage_exceeded() {
            return failure;
        }
        let state = match self.inspect().await {
            Ok(found) => found.state.unwrap_or_default(),
            Err(failure) => return failure,
        };
        let mut message = format!(
            "the container {} exited with code {}",
            self.name,
            state.exit_code.unwrap_or_default()
        );
        if state.oom_killed == Some(true) {
            message.push_str(" when its memory limit was reached");
        }
        if let Some(error) = state.error.filter(|error| !error.is_empty()) {
            message.push_str(": ");
            message.push_str(&error);
        }
        let output = self.output().await;
        if output.is_empty() {
            message.push_str("; an ENTRYPOINT must run the command it is given and not exit");
        } else {
            message.push_str("; it printed:\n");
            message.push_str(&output);
        }
        Failure::new(FailureKind::NotStarted, message)
    }

    /// The last output of the first process.
    pub(super) async fn output(&self) -> String {
        let Ok(docker) = self.client.docker().await else { return String::new() };
        let options = LogsOptions {
            stdout: true,
            stderr: true,
            tail: OUTPUT_LINES.to_owned(),
            ..Default::default()
        };
        let mut lines = docker.logs(&self.engine_id, Some(options));
        let mut text = Vec::new();
        while let Some(Ok(line)) = lines.next().await {
            text.extend_from_slice(&line.into_bytes());
            if text.len() > OUTPUT_BYTES {
                text.truncate(OUTPUT_BYTES);
                break;
            }
        }
        String::from_utf8_lossy(&text).trim().to_owned()
    }

    /// Ends all its processes.
    pub(super) async fn stop(&self) -> Result<(), Failure> {
        let docker = self.client.docker().await?;
        let options = StopContainerOptions { t: Some(STOP_GRACE_SECONDS), signal: None };
        docker
            .stop_container(&self.engine_id, Some(options))
            .await
            .map_err(|e| self.failure("cannot end all processes", e))
    }

    /// Removes it with its volumes. Success if it no longer exists.
    pub(super) async fn remove(&self) -> Result<(), Failure> {
        remove(&self.client, &self.engine_id, &self.name).await
    }

    /// Gives it a name that reapers skip; returns the name.
    pub(super) async fn preserve(&self) -> Result<String, Failure> {
        let rest = self.name.strip_prefix(PREFIX).unwrap_or(&self.name);
        let kept = format!("{PRESERVED_PREFIX}{rest}");
        let docker = self.client.docker().await?;
        let options = RenameContainerOptions { name: kept.clone() };
        match docker.rename_container(&self.engine_id, options).await {
            Ok(()) => Ok(kept),
            Err(error) if says(&error, "same name") => Ok(kept),
            Err(error) => Err(self.failure("cannot set the preserved name", error)),
        }
    }
}

/// Removes the container `id` with its volumes and waits until the engine has removed it.
pub(super) async fn remove(client: &DockerClient, id: &str, name: &str) -> Result<(), Failure> {
    let what = format!("cannot remove the container {name}");
    match tokio::time::timeout(REMOVE_WITHIN, remove_and_wait(client, id, &what)).await {
        Ok(result) => result,
        Err(_) => {
            let message = format!("{what}: it still exists after {REMOVE_WITHIN:?}");
            Err(Failure::new(FailureKind::LeftBehind, message))
        }
    }
}

async fn remove_and_wait(client: &DockerClient, id: &str, what: &str) -> Result<(), Failure> {
    let docker = client.slow().await?;
    let options = RemoveContainerOptions { force: true, v: true, link: false };
    match docker.remove_container(id, Some(options)).await {
        Ok(()) => return Ok(()),
        Err(error) if has_status(&error, 404) => return Ok(()),
        // Another process is removing it, or an earlier request of this one still is.
        Err(error) if has_status(&error, 409) => {}
        Err(error) => return Err(client.failure(what, error)),
    }
    let mut pause = Duration::from_millis(20);
    loop {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
        match docker.inspect_container(id, None::<InspectContainerOptions>).await {
            Ok(_) => {}
            Err(error) if has_status(&error, 404) => return Ok(()),
            Err(error) => return Err(client.failure(what, error)),
        }
    }
}
