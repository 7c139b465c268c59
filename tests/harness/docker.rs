//! Direct queries to the Docker engine, independent of the program under test.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::Instant;

use bollard::Docker;
use bollard::models::EventMessage;
use bollard::query_parameters::{
    EventsOptionsBuilder, ListContainersOptionsBuilder, ListImagesOptionsBuilder,
};
use futures_util::StreamExt as _;
use rollout_base::supervise;
use rollout_docker::find_compose;
use tokio::runtime::Runtime;

use crate::ignored::or_ignored;

/// Label of everything the program creates: its owner as JSON.
const OWNER: &str = "dev.rollout.owner";

/// Reason of tests that are ignored with `ROLLOUT_TEST_DOCKER=no`.
pub const NO_ENGINE: &str = "needs a Docker engine, and ROLLOUT_TEST_DOCKER=no disables it";

/// A connection to the engine that the program under test also uses.
pub struct DockerEngine {
    runtime: Runtime,
    docker: Docker,
}

impl fmt::Debug for DockerEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Engine")
    }
}

impl DockerEngine {
    /// Connects to the engine; without one, the test is ignored.
    ///
    /// # Panics
    /// As [`Self::connect`].
    pub fn available() -> Option<Self> {
        or_ignored(Self::connect())
    }

    /// Connects to the engine.
    ///
    /// # Errors
    /// The reason, without an engine.
    ///
    /// # Panics
    /// When `tests/run` has set `ROLLOUT_TEST_DOCKER` and the engine does not answer.
    pub fn connect() -> Result<Self, String> {
        let promise = std::env::var("ROLLOUT_TEST_DOCKER").ok();
        if promise.as_deref() == Some("no") {
            return Err(NO_ENGINE.to_owned());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let connect = async {
            let docker = Docker::connect_with_defaults()?.negotiate_version().await?;
            docker.ping().await.map(|_| docker)
        };
        match runtime.block_on(connect) {
            Ok(docker) => Ok(Self { runtime, docker }),
            Err(error) => {
                assert!(promise.is_none(), "the Docker engine does not answer: {error}");
                Err(format!("needs a Docker engine: {error}"))
            }
        }
    }

    /// Address of the registry that `tests/run` has started.
    ///
    /// # Errors
    /// The reason, without one.
    pub fn registry() -> Result<String, String> {
        let registry = std::env::var("ROLLOUT_TEST_REGISTRY");
        registry.map_err(|_| "needs the image registry that tests/run starts".to_owned())
    }

    fn block_on<T>(&self, future: impl Future<Output = Result<T, bollard::errors::Error>>) -> T {
        self.runtime.block_on(future).expect("the Docker engine answers")
    }

    /// Names of containers, stopped ones included, whose owner label contains `text`.
    pub fn containers(&self, text: &str) -> Vec<String> {
        self.list_containers(text, true)
    }

    /// Number of running containers whose owner label contains `text`.
    pub fn running_containers(&self, text: &str) -> usize {
        self.list_containers(text, false).len()
    }

    fn list_containers(&self, text: &str, all: bool) -> Vec<String> {
        let filters = HashMap::from([("label", vec![OWNER])]);
        let options = ListContainersOptionsBuilder::new().all(all).filters(&filters).build();
        let containers = self.block_on(self.docker.list_containers(Some(options)));
        containers
            .into_iter()
            .filter(|c| c.labels.iter().flatten().any(|(k, v)| k == OWNER && v.contains(text)))
            .map(|c| c.names.unwrap_or_default().join(","))
            .collect()
    }

    /// Waits in the background until so many containers whose owner label contains `text` have been
    /// removed, and returns when the last one was. It asks nothing of the engine meanwhile.
    ///
    /// # Panics
    /// When the engine does not answer.
    pub fn last_removal(text: &str, count: usize) -> JoinHandle<Instant> {
        let text = text.to_owned();
        let (listening, listens) = std::sync::mpsc::channel();
        let watch = move || {
            let engine = Self::connect().expect("it answered before");
            let filters = HashMap::from([("type", vec!["container"]), ("event", vec!["destroy"])]);
            let options = EventsOptionsBuilder::new().filters(&filters).build();
            let events = engine.docker.events(Some(options));
            let is_one = |event: &EventMessage| {
                let attributes = event.actor.iter().flat_map(|actor| &actor.attributes).flatten();
                attributes.into_iter().any(|(name, value)| name == OWNER && value.contains(&text))
            };
            let removed = events.filter_map(async |event| event.ok().filter(is_one)).take(count);
            // The engine sends what happens after the request has arrived.
            engine.runtime.block_on(async {
                engine.docker.ping().await.expect("the engine answers");
                listening.send(()).expect("the caller waits");
                removed.collect::<Vec<_>>().await
            });
            Instant::now()
        };
        let watching = supervise::thread("removals", watch).expect("a thread");
        listens.recv().expect("it listens");
        watching
    }

    /// Names of networks whose owner label contains `text`.
    pub fn networks(&self, text: &str) -> Vec<String> {
        let networks = self.block_on(self.docker.list_networks(None)).into_iter();
        networks
            .filter(|n| n.labels.iter().flatten().any(|(k, v)| k == OWNER && v.contains(text)))
            .filter_map(|network| network.name)
            .collect()
    }

    /// Ids of the images with a label.
    pub fn images(&self, label: &str) -> Vec<String> {
        let filters = HashMap::from([("label", vec![label])]);
        let options = ListImagesOptionsBuilder::new().filters(&filters).build();
        self.block_on(self.docker.list_images(Some(options))).into_iter().map(|i| i.id).collect()
    }
}

/// Path of `docker compose`: that of `tests/run`, else the installed one. The program under test
/// cannot find a plugin of the user: its home is in the project.
pub fn compose_program() -> Option<PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || match std::env::var_os("ROLLOUT_TEST_COMPOSE") {
        Some(program) => (program != "no").then(|| PathBuf::from(program)),
        // The caller may be in a runtime.
        None => {
            let search = supervise::thread("compose", installed_compose).expect("a thread");
            search.join().expect("no panic")
        }
    };
    FOUND.get_or_init(find).clone()
}

fn installed_compose() -> Option<PathBuf> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(find_compose())
}

/// Checks that tasks with services can run.
///
/// # Errors
/// The reason, if they cannot.
pub fn find_compose_program() -> Result<PathBuf, String> {
    compose_program().ok_or_else(|| "needs docker compose".to_owned())
}
