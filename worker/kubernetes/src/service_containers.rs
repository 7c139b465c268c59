//! The containers of a pod's services: whether they have started, and calls to them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use kube::api::LogParams;
use rollout_environment::{
    ByteStream, CommandExit, Environment, ExecCommand, Failure, FailureKind, OutputSink, Upload,
    with_words,
};
use rollout_protocol::record::EnforcedLimits;
use rollout_protocol::spec::task::NetworkPolicy;
use tokio::sync::OnceCell;

use super::pod::KubePod;
use super::pod_state::{ContainerState, PodState};
use super::rights::Right;
use super::services::{ServiceContainer, ServiceRole};

/// Lines and bytes of a service's output that are read: the server cuts off their end, so the bytes
/// are many more than a failure quotes.
const READ_LINES: i64 = 50;
const READ_BYTES: i64 = 1024 * 1024;

/// Bytes of a service's output that a failure quotes, from its end.
const QUOTED_BYTES: usize = 4 * 1024;

/// How far the start of a service is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServiceStart {
    /// As far as it will be.
    Done,
    /// Not yet: it is made, or its check has not succeeded.
    Pending,
    /// It waits because of an error: reason and message.
    Waiting(String, String),
    /// It ended, with this description.
    Ended(String),
}

impl ServiceContainer {
    /// How far its start is in a state of its pod.
    pub(super) fn start(&self, state: &PodState) -> ServiceStart {
        let Some(status) = state.services.iter().find(|status| status.name == self.container)
        else {
            return ServiceStart::Pending;
        };
        let ended = |state: &ContainerState| match state {
            ContainerState::Ended(code, reason, message) => {
                let why = [reason, message].map(String::as_str).join(" ");
                Some(ServiceStart::Ended(with_words(format!("exited with code {code}"), &why)))
            }
            _ => None,
        };
        if !self.restarts
            && let Some(before) = &status.before
        {
            let restarted = ServiceStart::Ended("ended and was restarted".to_owned());
            return ended(before).unwrap_or(restarted);
        }
        match &status.state {
            ContainerState::Ended(0, ..) if self.role == ServiceRole::Init => ServiceStart::Done,
            ContainerState::Ended(..) if self.restarts => ServiceStart::Pending,
            ContainerState::Ended(..) => ended(&status.state).unwrap_or(ServiceStart::Pending),
            ContainerState::Waiting(reason, _) if self.restarts && reason == "CrashLoopBackOff" => {
                ServiceStart::Pending
            }
            ContainerState::Waiting(reason, message) => {
                ServiceStart::Waiting(reason.clone(), message.clone())
            }
            ContainerState::Running if self.role != ServiceRole::Init && status.has_started => {
                ServiceStart::Done
            }
            ContainerState::Running | ContainerState::Unknown => ServiceStart::Pending,
        }
    }
}

impl KubePod {
    /// The output of the services that have not started.
    pub(super) async fn output_of_failed_services(&self) -> String {
        let Some(state) = self.watched.state() else { return String::new() };
        let mut text = String::new();
        for service in self.services.iter() {
            if service.start(&state) == ServiceStart::Done {
                continue;
            }
            let status = state.services.iter().find(|status| status.name == service.container);
            let params = LogParams {
                container: Some(service.container.clone()),
                tail_lines: Some(READ_LINES),
                limit_bytes: Some(READ_BYTES),
                previous: status.is_some_and(|status| status.before.is_some()),
                ..LogParams::default()
            };
            let pods = self.cluster.pods(&self.namespace);
            // It only explains the failure.
            let right = Right::to("log", &pods);
            let reading = || pods.logs(&self.name, &params);
            let printed = self.cluster.call(right, "cannot read a log", reading);
            match printed.await {
                Ok(printed) if printed.trim().is_empty() => {}
                Ok(printed) => {
                    let printed = quoted(&printed);
                    text.push_str(&format!("\nservice `{}` printed:\n{printed}", service.service));
                }
                Err(failure) => tracing::debug!("{}", failure.chain()),
            }
        }
        text
    }

    /// The failure of calls to the container of a service that has ended.
    pub(super) fn ended_service(&self, state: &PodState) -> Option<Failure> {
        let service = self.services.iter().find(|service| service.container == self.container)?;
        let status = state.services.iter().find(|status| status.name == self.container)?;
        // A container that is restarted is waited for.
        let ContainerState::Ended(code, ..) = status.state else { return None };
        (service.role != ServiceRole::Sidecar).then(|| {
            let text = format!("the service `{}` has ended with code {code}", service.service);
            Failure::new(FailureKind::Unusable, text)
        })
    }
}

/// The end of an output.
fn quoted(printed: &str) -> &str {
    let printed = printed.trim_end();
    let start = printed.ceil_char_boundary(printed.len().saturating_sub(QUOTED_BYTES));
    &printed[start..]
}

/// A service of an environment, for commands and files.
#[derive(Debug)]
pub(super) struct PodService {
    pub(super) service: String,
    pod: Arc<KubePod>,
    /// Known after the first call.
    workdir: OnceCell<String>,
}

impl PodService {
    /// The services of a pod.
    pub(super) fn all(pod: &KubePod) -> Vec<Self> {
        let service = |service: &ServiceContainer| Self {
            service: service.service.clone(),
            pod: Arc::new(pod.for_container(&service.container, service.own_lists.clone())),
            workdir: OnceCell::new(),
        };
        pod.services.iter().map(service).collect()
    }

    /// Prepares the container at the first call.
    async fn prepared(&self) -> Result<&str, Failure> {
        let prepare = || async {
            let prepared = self.pod.prepare(None, &[]).await?;
            Ok::<_, Failure>(prepared.workdir)
        };
        self.workdir.get_or_try_init(prepare).await.map(String::as_str)
    }
}

#[async_trait]
impl Environment for PodService {
    fn id(&self) -> &str {
        &self.pod.container
    }

    fn workdir(&self) -> &str {
        self.workdir.get().map_or("/", String::as_str)
    }

    fn limits(&self) -> EnforcedLimits {
        EnforcedLimits::default()
    }

    async fn copy_to(&self, uploads: Vec<Upload>) -> Result<(), Failure> {
        self.prepared().await?;
        self.pod.copy_to(uploads).await
    }

    async fn copy_from(&self, path: &str) -> Result<Option<ByteStream>, Failure> {
        self.prepared().await?;
        self.pod.copy_from(path).await
    }

    async fn exec(
        &self,
        command: ExecCommand,
        output: Arc<dyn OutputSink>,
    ) -> Result<CommandExit, Failure> {
        let workdir = self.prepared().await?;
        self.pod.exec(command, workdir, output).await
    }

    /// Ends the processes of commands. Those of the service stay.
    async fn kill_processes(&self) -> Result<(), Failure> {
        self.pod.kill_commands().await
    }

    /// Changed with the environment.
    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), Failure> {
        super::network::is_open(policy).map(drop)
    }

    async fn oom_killed(&self) -> bool {
        let (before, now) = (&self.pod.oom_before, &self.pod.oom_now);
        now.load(Ordering::Relaxed) > before.load(Ordering::Relaxed)
    }

    async fn stop(&self) -> Result<(), Failure> {
        self.pod.is_stopped.store(true, Ordering::Release);
        self.pod.kill_commands().await
    }

    /// Removed with the environment.
    async fn destroy(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Preserved with the environment.
    async fn preserve(&self) -> Result<String, Failure> {
        let (namespace, name, container) =
            (&self.pod.namespace, &self.pod.name, &self.pod.container);
        Ok(format!("kubectl exec -it -n {namespace} {name} -c {container} -- {}", self.pod.shell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_output_is_end_of_long_output() {
        assert_eq!(quoted("short\n"), "short");
        let printed = format!("begin {} end\n", "\u{e4}".repeat(QUOTED_BYTES));
        let quoted = quoted(&printed);
        assert!(quoted.ends_with(" end") && quoted.len() <= QUOTED_BYTES);
        assert!(quoted.len() > QUOTED_BYTES - 2 && !quoted.contains("begin"));
    }
}
