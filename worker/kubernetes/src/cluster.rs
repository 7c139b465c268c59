//! The connection to a cluster.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Error, Resource};
use rollout_base::dependency::{Dependency, Probe};
use rollout_base::{regular_file, supervise};
use rollout_environment::{Failure, FailureKind};
use rollout_protocol::limits::CONFIG_FILE_BYTES;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};

use super::admission::Admission;
use super::failure;
use super::manifest::{OwnPod, PodCreator};
use super::options::{KubernetesOptions, OptionsSource};
use super::rights::{GrantedRights, Refusal, Right};
use super::server_clock::ServerClock;
use super::service_images::IMAGES_WITHIN;

/// Timeout of a call. An API server that is silent for so long is down, or behind a load balancer that
/// has lost it.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Timeout of a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Time in which a server that starts loads its rules. Until then it refuses rights that it had
/// granted.
const RULES_LOADED_WITHIN: Duration = Duration::from_secs(120);

/// Shortest and longest pause before a call is repeated that such a server refused.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// A lazy connection: an API server that is down when a worker starts may come up later.
#[derive(Debug)]
pub(super) struct KubeClient {
    source: OptionsSource,
    instance: String,
    cluster: Arc<OnceCell<Arc<Cluster>>>,
    service: Arc<Dependency>,
}

/// A cluster, with the operator's options for it.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) options: KubernetesOptions,
    /// Namespace of pods that name none.
    pub(super) namespace: String,
    pub(super) creator: PodCreator,
    pub(super) admission: Admission,
    /// Address of the API server.
    pub(super) server: String,
    client: ClientHandle,
    clock: ServerClock,
    service: Arc<Dependency>,
    rights: GrantedRights,
}

/// A client, which has no text form of its own.
#[derive(Clone)]
struct ClientHandle(Client);

impl std::fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// Asks the API server for its version.
#[derive(Debug)]
struct ApiProbe {
    source: OptionsSource,
    /// Weak, because the cluster owns the dependency that owns this.
    cluster: Weak<OnceCell<Arc<Cluster>>>,
}

#[async_trait]
impl Probe for ApiProbe {
    async fn probe(&self) -> Result<(), String> {
        let cell = self.cluster.upgrade();
        let (server, client) = match cell.as_deref().and_then(OnceCell::get) {
            Some(cluster) => (cluster.server.clone(), cluster.client.0.clone()),
            None => {
                let source = self.source.clone();
                let options = supervise::blocking(move || source.load()).await;
                let options = options.map_err(|failure| failure.chain())?;
                let config = config(&options).await.map_err(|failure| failure.chain())?;
                let server = config.cluster_url.to_string();
                let client = Client::try_from(config);
                (server, client.map_err(|error| failure::last_cause(&error))?)
            }
        };
        match client.apiserver_version().await {
            Ok(_) => Ok(()),
            // An answer that refuses is an answer.
            Err(Error::Api(status)) if status.code < 500 => Ok(()),
            Err(Error::Api(status)) => Err(format!("{server}: {}", status.message)),
            Err(error) => Err(format!("{server}: {}", failure::last_cause(&error))),
        }
    }
}

impl KubeClient {
    /// A client with the options of `source`; reads and sends nothing yet. `instance` marks the
    /// objects that it creates.
    pub(super) fn new(source: OptionsSource, instance: String) -> Self {
        let cluster = Arc::new(OnceCell::new());
        let probe = ApiProbe { source: source.clone(), cluster: Arc::downgrade(&cluster) };
        let service = Arc::new(Dependency::new("the Kubernetes API", Box::new(probe)));
        Self { source, instance, cluster, service }
    }

    /// The API server as a dependency.
    pub(super) fn service(&self) -> &Dependency {
        &self.service
    }

    /// Longest time to create a pod: its limits, images of services, and as much again for the wait
    /// behind the pods of other trials.
    pub(super) fn start_limit(&self) -> Duration {
        let connected = self.cluster.get().map(|cluster| cluster.options.start_limits());
        let limits = connected.unwrap_or_else(|| KubernetesOptions::default().start_limits());
        (limits.schedule + limits.start + IMAGES_WITHIN) * 2
    }

    /// Checks the operator's options; sends nothing.
    pub(super) fn check_options(&self) -> Result<(), Failure> {
        self.source.load().map(drop)
    }

    /// The cluster. The first call reads the options and the credentials.
    pub(super) async fn cluster(&self) -> Result<&Arc<Cluster>, Failure> {
        self.cluster.get_or_try_init(|| self.connect()).await
    }

    /// Whether the options or this host name a cluster at all.
    pub(super) async fn names_cluster(&self) -> Result<bool, Failure> {
        let source = self.source.clone();
        supervise::blocking(move || names_cluster(&source)).await
    }

    async fn connect(&self) -> Result<Arc<Cluster>, Failure> {
        let source = self.source.clone();
        let options = supervise::blocking(move || source.load()).await?;
        let config = config(&options).await?;
        let namespace = options.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = Client::try_from(config).map_err(|error| {
            let text = format!("cannot use the credentials of the Kubernetes API at {server}");
            Failure::new(FailureKind::Refused, text).with_source(error)
        })?;
        let own_pod = OwnPod::from_env(|name| std::env::var(name).ok());
        let creator = PodCreator { instance: self.instance.clone(), own_pod };
        let admission = Admission::new(options.max_pending_pods, options.starts_per_minute);
        Ok(Arc::new(Cluster {
            options,
            namespace,
            creator,
            admission,
            server,
            client: ClientHandle(client),
            clock: ServerClock::default(),
            service: Arc::clone(&self.service),
            rights: GrantedRights::default(),
        }))
    }
}

/// Whether options or this host name a cluster at all. Blocks.
fn names_cluster(source: &OptionsSource) -> Result<bool, Failure> {
    let options = source.load()?;
    let by_options = options.kubeconfig.is_some() || options.context.is_some();
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let by_default = std::env::home_dir().is_some_and(|home| home.join(".kube/config").exists());
    Ok(by_options || set("KUBECONFIG") || set("KUBERNETES_SERVICE_HOST") || by_default)
}

/// The address and the credentials.
async fn config(options: &KubernetesOptions) -> Result<Config, Failure> {
    let selection =
        KubeConfigOptions { context: options.context.clone(), ..KubeConfigOptions::default() };
    let refused = |error: &(dyn std::error::Error + 'static)| {
        let text = format!(
            "cannot find a Kubernetes cluster: {}; set KUBECONFIG, or `kubeconfig` and `context` \
             in the file of `--kubernetes-config`, or run the worker in a pod with a service account",
            failure::last_cause(error)
        );
        Failure::new(FailureKind::Refused, text)
    };
    let found = match (&options.kubeconfig, &options.context) {
        (Some(path), _) => {
            // The client would read a device without an end, and wait for the writer of a pipe.
            regular_file::read(path, CONFIG_FILE_BYTES).map_err(|error| refused(&error))?;
            let file = Kubeconfig::read_from(path).map_err(|error| refused(&error))?;
            Config::from_custom_kubeconfig(file, &selection).await.map_err(|error| refused(&error))
        }
        (None, Some(_)) => {
            Config::from_kubeconfig(&selection).await.map_err(|error| refused(&error))
        }
        (None, None) => Config::infer().await.map_err(|error| refused(&error)),
    };
    let mut config = found?;
    config.connect_timeout = Some(CONNECT_WITHIN);
    Ok(config)
}

impl Cluster {
    /// The pods of a namespace.
    pub(super) fn pods(&self, namespace: &str) -> Api<Pod> {
        self.api(namespace)
    }

    /// Objects of a namespace.
    pub(super) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.0.clone(), namespace)
    }

    /// The namespaces in which this worker may have pods.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &str> {
        let others = self.options.namespaces.iter().filter(|name| **name != self.namespace);
        std::iter::once(self.namespace.as_str()).chain(others.map(String::as_str))
    }

    /// The time on the clock of the API server; `None` while the server does not tell it.
    pub(super) async fn server_time(&self) -> Option<SystemTime> {
        self.clock.now(&self.client.0).await
    }

    /// The same, or the time on the clock of this host.
    pub(super) async fn now(&self) -> SystemTime {
        self.server_time().await.unwrap_or_else(SystemTime::now)
    }

    /// The result of a call that needs a right.
    pub(super) async fn call<T, F>(
        &self,
        right: Right,
        what: &str,
        call: impl Fn() -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.answer(right, what, call).await?.map_err(|error| self.failure(what, error))
    }

    /// The answer to a call that needs a right. The answer may be an error of the API server. The
    /// call is repeated while the server refuses rights that it has granted before.
    pub(super) async fn answer<T, F>(
        &self,
        right: Right,
        what: &str,
        call: impl Fn() -> F,
    ) -> Result<Result<T, Error>, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let deadline = Instant::now() + RULES_LOADED_WITHIN;
        let (mut pause, mut has_rules) = (MIN_PAUSE, false);
        loop {
            // A slow answer is no outage: the next call to the server decides.
            let late = |_| failure::timeout(&self.server, what, ANSWER_WITHIN);
            let answer = timeout(ANSWER_WITHIN, call()).await.map_err(late)?;
            match self.rights.judge(&right, &answer) {
                Refusal::Again | Refusal::First if Instant::now() >= deadline => {
                    return Ok(answer);
                }
                Refusal::Again => {}
                Refusal::First if !has_rules => {
                    // Its rules may have been loaded since it refused this call.
                    has_rules = !self.refuses_known_right().await;
                    if has_rules {
                        continue;
                    }
                }
                Refusal::None | Refusal::First => return Ok(answer),
            }
            drop(answer);
            tracing::debug!("{what}: the API server refuses what it has granted before; waiting");
            sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Whether the server refuses to list pods, which every worker does, and has granted it before.
    async fn refuses_known_right(&self) -> bool {
        let (pods, first) = (self.pods(&self.namespace), ListParams::default().limit(1));
        let answer = timeout(ANSWER_WITHIN, pods.list(&first)).await;
        let right = Right::to("list", &pods);
        answer.is_ok_and(|answer| self.rights.judge(&right, &answer) == Refusal::Again)
    }

    /// The failure of `what`, with the error of the client.
    pub(super) fn failure(&self, what: &str, error: Error) -> Failure {
        let cause = failure::last_cause(&error);
        let failure = failure::call_failure(&self.server, what, error);
        if failure.kind == FailureKind::Unreachable {
            self.service.mark_failed(&cause);
        }
        failure
    }

    /// The API server as a dependency.
    pub(super) fn service(&self) -> &Dependency {
        &self.service
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn kubeconfig_without_an_end_is_refused() {
        let kubeconfig = Some("/dev/zero".into());
        let options = KubernetesOptions { kubeconfig, ..KubernetesOptions::default() };
        let failure = config(&options).await.map(drop).expect_err("refused");
        assert_eq!(failure.kind, FailureKind::Refused);
        let text = failure.to_string();
        assert!(text.contains("it is no regular file"), "{text}");
    }
}
