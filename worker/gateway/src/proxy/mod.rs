//! The gateway as an HTTP/1.1 proxy.
//!
//! * `listener`: listeners, one for each address of this host and one for each environment with a
//!   network of its own;
//! * `route`: which call a request is; `headers`: those that are passed on; `request_body`: its body,
//!   decompressed; `request_memory`: the memory for it;
//! * `call`: one call, from its record to the last byte of its reply; `answer`: its sendings;
//!   `refusal`: replies that ask to call again later;
//!   `reply_body`: the body that the agent gets;
//! * `server`: a model server, its limits and its state, shared by all executions, and the calls to it
//!   by execution; `upstreams`: those of an execution, and the choice among them;
//! * `leased_limits`: limits that a run shares with other workers; `run_guards`: counts of its calls;
//! * `client`: connections to model servers;
//! * `dialect`, `sse`, `reply`, `raw_object`, `capture`, `reply_stream`: protocols of model servers,
//!   without IO;
//! * `call_log`, `recorder`: a line in a file before a call is sent, and another before the agent
//!   gets the end of the reply; `token_file`: long lists of tokens, beside these lines;
//! * `open_calls`: the pauses that a try waits for;
//! * `budget`: what the calls of an execution use, and the refusal of those beyond its budget;
//! * `session`: the calls by the agent's own session; `unanswered`: conversations whose last request
//!   no model server answered;
//! * `messages`, `trajectory`: calls merged into trajectories; `bounded_json`: their JSON; `atif`: the
//!   trajectory of a try in the form of other tools.

mod answer;
mod atif;
mod bounded_json;
mod budget;
mod call;
mod call_log;
mod capture;
mod client;
mod dialect;
mod headers;
mod leased_limits;
mod listener;
mod messages;
mod open_calls;
mod raw_object;
mod recorder;
mod refusal;
mod reply;
mod reply_body;
mod reply_stream;
mod request_body;
mod request_memory;
mod route;
mod run_guards;
mod server;
mod session;
mod sse;
#[cfg(test)]
mod tests;
mod token_file;
mod trajectory;
mod unanswered;
mod upstreams;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use data_encoding::HEXLOWER;
use lru::LruCache;
use rollout_base::supervise::Task;
use rollout_environment::ListenerRoute;
use rollout_protocol::digest::Digest;
use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use rollout_protocol::record::SessionCalls;
use rollout_protocol::spec::budget::ModelUse;
use rollout_protocol::spec::gateway::ModelDialect;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use self::budget::BudgetMeter;
use self::client::Clients;
use self::leased_limits::LeasedLimits;
use self::listener::{HostListeners, Listener};
use self::open_calls::OpenCalls;
use self::recorder::Recorder;
use self::request_memory::{RequestMemory, TryMemory};
use self::server::{HeldPlaces, ModelServer};
use self::upstreams::Upstreams;
use crate::run_calls::RunCallTable;
use crate::{
    CallFailure, GatewayError, GatewayReply, ModelGateway, SessionFiles, TrajectoryAgent, TryCalls,
    TryGateway, TryRequest, Upstream,
};

/// Prefix of the keys of executions.
const KEY_PREFIX: &str = "rollout-";

/// Model servers whose limits and back-off are kept although no execution uses them.
const RECENT_SERVERS: NonZeroUsize = NonZeroUsize::new(32).expect("it is not zero");

/// How long calls may take to end after their agent.
const CALLS_END_LIMIT: Duration = Duration::from_secs(2);

/// Time between two looks at them.
const CALLS_END_PAUSE: Duration = Duration::from_millis(10);

/// The gateway of a worker. It listens when the first execution needs it.
#[derive(Debug, Default)]
pub struct Gateway {
    tries: Arc<TryTable>,
    run_calls: Arc<RunCallTable>,
    listeners: HostListeners,
    clients: Clients,
    servers: Mutex<ServerTable>,
    /// For the requests of all executions.
    memory: RequestMemory,
}

/// Model servers by what defines them.
#[derive(Debug)]
struct ServerTable {
    /// All that are used.
    used: HashMap<Digest, Weak<ModelServer>>,
    /// Those that were used last.
    recent: LruCache<Digest, Arc<ModelServer>>,
}

impl Default for ServerTable {
    fn default() -> Self {
        Self { used: HashMap::new(), recent: LruCache::new(RECENT_SERVERS) }
    }
}

impl Gateway {
    /// A gateway without executions.
    pub fn new() -> Self {
        Self::default()
    }

    fn servers(&self) -> MutexGuard<'_, ServerTable> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server of an upstream, shared with the executions that use the same one; with leased
    /// limits only those of the run, whose calls are given with the place of the server.
    fn server(
        &self,
        upstream: &Upstream,
        leased: Option<(RunId, usize)>,
    ) -> Result<Arc<ModelServer>, GatewayError> {
        let key = upstream.key.as_deref().unwrap_or_default();
        // A digest, as it contains the key.
        let identity = format!("{:?} {leased:?} {key}", upstream.spec);
        let identity = Digest::sha256(identity.as_bytes());
        let mut servers = self.servers();
        let known = servers.used.get(&identity).and_then(Weak::upgrade);
        let server = match known {
            Some(server) => server,
            None => {
                servers.used.retain(|_, server| server.strong_count() > 0);
                let leased = leased.and_then(|(run, place)| {
                    LeasedLimits::new(self.run_calls.of(run), place, &upstream.spec)
                });
                let server = Arc::new(ModelServer::new(upstream, leased, &self.clients)?);
                servers.used.insert(identity, Arc::downgrade(&server));
                server
            }
        };
        servers.recent.put(identity, Arc::clone(&server));
        Ok(server)
    }
}

#[async_trait]
impl ModelGateway for Gateway {
    async fn open(&self, request: TryRequest) -> Result<Arc<dyn TryGateway>, GatewayError> {
        let TryRequest { run, upstreams, only, budget, is_leased, .. } = request;
        let TryRequest { directory, redactor, agent, .. } = request;
        let server = |(place, upstream)| self.server(upstream, is_leased.then_some((run, place)));
        let usable = usable(&upstreams, only.as_deref());
        let servers = usable.into_iter().map(server).collect::<Result<_, _>>()?;
        let recorder = Recorder::create(&directory, redactor).await;
        let recorder = recorder.map_err(|source| GatewayError::Records { directory, source })?;
        let key = format!("{KEY_PREFIX}{}", HEXLOWER.encode(&rand::random::<[u8; 24]>()));
        let opened = Arc::new(OpenTry {
            key: key.clone(),
            upstreams: Upstreams::new(servers),
            open_calls: OpenCalls::new(self.run_calls.of(run)),
            recorder,
            budget: Arc::new(BudgetMeter::new(budget)),
            agent,
            memory: self.memory.of_try(run),
            places: HeldPlaces::default(),
            connections: Arc::new(Semaphore::new(limits::GATEWAY_TRY_CONNECTIONS)),
            calls: Mutex::default(),
            closed: watch::Sender::new(false),
        });
        self.tries.insert(key, &opened);
        Ok(Arc::new(TryHandle {
            opened,
            tries: Arc::clone(&self.tries),
            listeners: self.listeners.clone(),
            own_listeners: Mutex::default(),
        }))
    }

    fn run_calls(&self) -> Arc<RunCallTable> {
        Arc::clone(&self.run_calls)
    }
}

/// The servers that an execution may use, with their places: all, or the one with this name and those
/// that it falls back to.
fn usable<'a>(upstreams: &'a [Upstream], only: Option<&str>) -> Vec<(usize, &'a Upstream)> {
    let all = upstreams.iter().enumerate();
    let Some(only) = only else { return all.collect() };
    let mut usable: Vec<(usize, &Upstream)> = Vec::new();
    for (place, upstream) in all {
        let is_wanted = match usable.last() {
            None => upstream.spec.name == only,
            Some((_, before)) => {
                before.spec.fallback && before.spec.dialect == upstream.spec.dialect
            }
        };
        if is_wanted {
            usable.push((place, upstream));
        }
    }
    usable
}

/// The executions of a worker by their keys.
#[derive(Default)]
struct TryTable(Mutex<HashMap<String, Weak<OpenTry>>>);

impl fmt::Debug for TryTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TryTable({})", self.entries().len())
    }
}

impl TryTable {
    fn entries(&self) -> MutexGuard<'_, HashMap<String, Weak<OpenTry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, key: String, opened: &Arc<OpenTry>) {
        self.entries().insert(key, Arc::downgrade(opened));
    }

    fn find(&self, key: &str) -> Option<Arc<OpenTry>> {
        self.entries().get(key).and_then(Weak::upgrade)
    }
}

/// The state of an execution. Its debug output has no key.
struct OpenTry {
    key: String,
    upstreams: Upstreams,
    /// Its calls that wait for their replies.
    open_calls: OpenCalls,
    recorder: Recorder,
    budget: Arc<BudgetMeter>,
    agent: TrajectoryAgent,
    /// Memory for its requests.
    memory: TryMemory,
    /// Its calls that wait for limits of servers, or that these are answering.
    places: HeldPlaces,
    /// Connections with its key that it may have besides the present ones.
    connections: Arc<Semaphore>,
    /// Its calls that may still run.
    calls: Mutex<Vec<Task<()>>>,
    closed: watch::Sender<bool>,
}

impl fmt::Debug for OpenTry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenTry").field("upstreams", &self.upstreams).finish_non_exhaustive()
    }
}

impl OpenTry {
    /// Keeps a call that runs.
    fn keep(&self, call: Task<()>) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.retain(|call| !call.is_finished());
        calls.push(call);
    }

    /// Whether a call runs.
    fn has_open_calls(&self) -> bool {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.iter().any(|call| !call.is_finished())
    }

    /// Whether a model server does not answer, or the agent waits for the end of a pause.
    fn is_stopped(&self) -> bool {
        self.open_calls.is_waiting() || self.upstreams.are_down()
    }

    /// Writes the trajectory of the calls; returns its file. A try is valid without one.
    async fn write_trajectory(&self, session: Option<SessionCalls>) -> Option<PathBuf> {
        let directory = self.recorder.directory().to_owned();
        match atif::write(directory, self.agent.clone(), session).await {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!("cannot make the trajectory of a try: {error}");
                None
            }
        }
    }

    /// Waits until it is closed.
    async fn wait_until_closed(&self) {
        let mut closed = self.closed.subscribe();
        let reached = closed.wait_for(|closed| *closed).await.is_ok();
        debug_assert!(reached, "this holds the sender");
    }
}

/// The gateway of an execution, which it closes when it is dropped.
#[derive(Debug)]
struct TryHandle {
    opened: Arc<OpenTry>,
    tries: Arc<TryTable>,
    listeners: HostListeners,
    /// Listeners in its environments' own networks.
    own_listeners: Mutex<Vec<Listener>>,
}

impl TryHandle {
    fn forget(&self) {
        self.tries.entries().remove(&self.opened.key);
        self.opened.closed.send_replace(true);
        self.own_listeners.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for TryHandle {
    fn drop(&mut self) {
        self.forget();
    }
}

#[async_trait]
impl TryGateway for TryHandle {
    async fn serve(&self, route: ListenerRoute) -> Result<BTreeMap<String, String>, GatewayError> {
        let address = match route {
            ListenerRoute::HostAddress(wanted) => self.listeners.at(wanted, &self.tries).await?,
            ListenerRoute::OwnLoopback(socket) => {
                let listener = Listener::of_try(socket, &self.opened)?;
                let address = listener.address();
                self.own_listeners.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
                address
            }
        };
        let origin = format!("http://{address}");
        let dialects = self.opened.upstreams.dialects().into_iter();
        let variables = dialects
            .flat_map(|dialect| dialect::client_variables(dialect, &origin, &self.opened.key));
        Ok(variables.map(|(name, value)| (name.to_owned(), value)).collect())
    }

    async fn call(&self, dialect: ModelDialect, path: &str, body: Bytes) -> GatewayReply {
        route::call_directly(&self.opened, dialect, path, body).await
    }

    fn stopped_time(&self) -> Duration {
        let OpenTry { upstreams, open_calls, memory, .. } = &*self.opened;
        upstreams.downtime() + open_calls.waited() + memory.waited()
    }

    fn is_stopped(&self) -> bool {
        self.opened.is_stopped() || self.opened.memory.is_waiting()
    }

    async fn wait_for_calls(&self) {
        let limit = Instant::now() + CALLS_END_LIMIT;
        while self.opened.has_open_calls() && Instant::now() < limit {
            tokio::time::sleep(CALLS_END_PAUSE).await;
        }
    }

    fn call_failure(&self) -> Option<CallFailure> {
        let OpenTry { recorder, memory, .. } = &*self.opened;
        // The records have no call whose body had no memory.
        let refused = || memory.is_refused().then_some(CallFailure::Unanswered);
        recorder.call_failure().or_else(refused)
    }

    fn exceeded_budget(&self) -> Option<String> {
        self.opened.budget.exceeded()
    }

    async fn close(&self, session: Option<SessionFiles>) -> TryCalls {
        self.forget();
        let calls = {
            let mut calls = self.opened.calls.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *calls)
        };
        for call in calls {
            if let Err(panic) = call.await {
                tracing::error!("a model call ended by a bug: {panic}");
            }
        }
        let (mut summary, mut files) = self.opened.recorder.finish().await;
        let measured = self.opened.budget.used();
        let (unpriced_calls, without_ids) = (summary.unpriced_calls, summary.calls_without_ids);
        let used = ModelUse { unpriced_calls, calls_without_ids: without_ids, ..measured };
        summary.open_sec = used.sec;
        summary.session = match session.map(session::read) {
            Some(reading) => reading.await.unwrap_or_else(|error| {
                tracing::warn!("cannot count the session files of an agent: {error}");
                None
            }),
            None => None,
        };
        if summary.calls > 0 {
            files.extend(self.opened.write_trajectory(summary.session).await);
        }
        TryCalls { summary, used, files }
    }
}
