//! A model server that speaks the dialects of OpenAI, Anthropic and Gemini, streams, fails on
//! command, and keeps a log of its own of every call.

mod replies;
mod script;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use rollout_base::supervise;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};

pub use self::script::{ScriptedTask, Turn};

/// An answer on command, in place of the usual one.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelAnswer {
    /// A status, and seconds to wait; the body quotes the key.
    Status(u16, Option<u64>),
    /// A stream that breaks off after this number of events.
    Cut(usize),
    /// A redirect to this address.
    Redirect(String),
    /// The usual one.
    Usual,
    /// That of the scripted model.
    Scripted,
}

/// A call that the server had.
#[derive(Debug, Clone)]
pub struct LoggedCall {
    /// Path and query.
    pub path: String,
    /// Headers.
    pub headers: HeaderMap,
    /// The request's body.
    pub request: Bytes,
    /// Status of the answer.
    pub status: u16,
    /// The part of the answer's body that was sent.
    pub reply: Vec<u8>,
    /// Whether all of it was taken.
    pub finished: bool,
}

#[derive(Debug)]
struct ServerShared {
    calls: Mutex<Vec<LoggedCall>>,
    commands: Mutex<VecDeque<ModelAnswer>>,
    /// Answers that may begin, while it holds them back.
    answers: Mutex<Option<Arc<Semaphore>>>,
    /// Pause before each event of a stream.
    pause: Duration,
    /// The task that it solves, in place of its usual replies.
    task: Option<ScriptedTask>,
}

/// A running server. Dropped, it stops.
#[derive(Debug)]
pub struct ModelServer {
    address: SocketAddr,
    shared: Arc<ServerShared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ModelServer {
    /// Starts a server on a free port, with a pause before each event of a stream.
    ///
    /// # Panics
    /// When the system refuses a port or a thread.
    pub fn start(pause: Duration) -> Self {
        Self::start_at(0, pause)
    }

    /// Like [`Self::start`], on a port.
    ///
    /// # Panics
    /// When the system refuses the port or a thread.
    pub fn start_at(port: u16, pause: Duration) -> Self {
        Self::start_with(port, pause, None)
    }

    /// Starts a server whose model solves a task.
    ///
    /// # Panics
    /// When the system refuses a port or a thread.
    pub fn start_scripted(task: ScriptedTask) -> Self {
        Self::start_with(0, Duration::ZERO, Some(task))
    }

    /// Like [`Self::start_scripted`], on a port.
    ///
    /// # Panics
    /// When the system refuses the port or a thread.
    pub fn start_scripted_at(port: u16, task: ScriptedTask) -> Self {
        Self::start_with(port, Duration::ZERO, Some(task))
    }

    fn start_with(port: u16, pause: Duration, task: Option<ScriptedTask>) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let listener = listener.expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("an address");
        let (calls, commands, answers) = (Mutex::default(), Mutex::default(), Mutex::default());
        let shared = Arc::new(ServerShared { calls, commands, answers, pause, task });
        let (stop, stopped) = oneshot::channel::<()>();
        let state = Arc::clone(&shared);
        let thread = supervise::thread("model-server", move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let router = Router::new().fallback(answer).with_state(state);
                let router = router.layer(axum::extract::DefaultBodyLimit::disable());
                let listener = TcpListener::from_std(listener).expect("a socket");
                use axum::serve::ListenerExt as _;
                let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
                tokio::select! {
                    _ = stopped => {}
                    ended = axum::serve(listener, router) => ended.expect("it serves"),
                }
            });
        });
        let thread = Some(thread.expect("a thread"));
        Self { address, shared, stop: Some(stop), thread }
    }

    /// Its address, without a path.
    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Answers the next calls in this way.
    pub fn command(&self, answers: impl IntoIterator<Item = ModelAnswer>) {
        lock(&self.shared.commands).extend(answers);
    }

    /// Answers no call from now on.
    pub fn hold_answers(&self) {
        *lock(&self.shared.answers) = Some(Arc::new(Semaphore::new(0)));
    }

    /// Answers so many of the calls that it has not answered, and those that come later.
    pub fn answer(&self, calls: usize) {
        if let Some(answers) = &*lock(&self.shared.answers) {
            answers.add_permits(calls);
        }
    }

    /// The calls so far.
    pub fn calls(&self) -> Vec<LoggedCall> {
        lock(&self.shared.calls).clone()
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was printed, and calls are missing in the test.
            drop(thread.join());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(
    State(shared): State<Arc<ServerShared>>,
    uri: Uri,
    headers: HeaderMap,
    request: Bytes,
) -> Response {
    let body: Value = serde_json::from_slice(&request).unwrap_or_default();
    let command = lock(&shared.commands).pop_front();
    let sent_headers = headers.clone();
    let index = {
        let path = uri.path_and_query().map_or_else(String::new, ToString::to_string);
        let mut calls = lock(&shared.calls);
        let (reply, finished) = (Vec::new(), false);
        calls.push(LoggedCall {
            path,
            headers: sent_headers,
            request,
            status: 200,
            reply,
            finished,
        });
        calls.len() - 1
    };
    let answers = lock(&shared.answers).clone();
    if let Some(answers) = answers {
        answers.acquire().await.expect("it is never closed").forget();
    }
    let sent = |status: u16, reply: &[u8]| {
        let call = &mut lock(&shared.calls)[index];
        (call.status, call.reply, call.finished) = (status, reply.to_vec(), true);
    };
    if let (None | Some(ModelAnswer::Scripted), Some(task)) = (&command, &shared.task) {
        return script::answer(&shared, index, task, uri.path(), &body);
    }
    let events = match command {
        Some(ModelAnswer::Status(status, wait)) => {
            let key = ["authorization", "x-api-key", "x-goog-api-key"]
                .iter()
                .find_map(|name| headers.get(*name)?.to_str().ok());
            let message = format!("refused {}", key.unwrap_or_default());
            let text = json!({"error": {"message": message}}).to_string();
            sent(status, text.as_bytes());
            let code = StatusCode::from_u16(status).expect("a status");
            let wait = wait.map(|seconds| [("retry-after", seconds.to_string())]);
            return (code, wait, [("content-type", "application/json")], text).into_response();
        }
        Some(ModelAnswer::Redirect(to)) => {
            sent(307, b"");
            return (StatusCode::TEMPORARY_REDIRECT, [("location", to)]).into_response();
        }
        Some(ModelAnswer::Cut(after)) => {
            let mut events = replies::stream(uri.path(), &body);
            events.truncate(after);
            events.into_iter().map(Some).chain([None]).collect()
        }
        None | Some(ModelAnswer::Usual | ModelAnswer::Scripted)
            if replies::is_stream(uri.path(), &body) =>
        {
            replies::stream(uri.path(), &body).into_iter().map(Some).collect::<Vec<_>>()
        }
        None | Some(ModelAnswer::Usual | ModelAnswer::Scripted) => {
            let text = replies::whole(uri.path(), &body).to_string();
            sent(200, text.as_bytes());
            return ([("content-type", "application/json")], text).into_response();
        }
    };
    let body = Body::from_stream(event_stream(Arc::clone(&shared), index, events));
    ([("content-type", "text/event-stream")], body).into_response()
}

/// The events as a body that keeps the log; `None` breaks the connection off.
fn event_stream(
    shared: Arc<ServerShared>,
    index: usize,
    events: Vec<Option<String>>,
) -> impl futures_util::Stream<Item = Result<Bytes, std::io::Error>> {
    stream::unfold((shared, VecDeque::from(events)), move |(shared, mut events)| async move {
        let Some(event) = events.pop_front() else {
            lock(&shared.calls)[index].finished = true;
            return None;
        };
        tokio::time::sleep(shared.pause).await;
        let Some(event) = event else {
            return Some((Err(std::io::ErrorKind::ConnectionReset.into()), (shared, events)));
        };
        lock(&shared.calls)[index].reply.extend_from_slice(event.as_bytes());
        Some((Ok(Bytes::from(event)), (shared, events)))
    })
}
