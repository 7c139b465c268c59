//! A collector of traces that speaks OTLP over HTTP, on a free port, in the test process.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as SpanStatus;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message as _;
use rollout_base::supervise;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// The parts of an execution of a trial without steps that reaches its verifier.
const TRIAL_PARTS: [&str; 9] = [
    "queued",
    "environment_setup",
    "agent_setup",
    "agent_execution",
    "verification",
    "collection",
    "teardown",
    "upload",
    "report",
];

/// How the collector answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectorAnswer {
    /// It takes every span.
    Takes,
    /// It refuses every request.
    Refuses,
    /// It never answers.
    Hangs,
}

/// A span that was received.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedSpan {
    /// `service.name` of the process.
    pub service: String,
    /// Id of the trace, hexadecimal.
    pub trace: String,
    /// Its id, hexadecimal.
    pub id: String,
    /// Id of its parent; empty for a root.
    pub parent: String,
    /// Its name.
    pub name: String,
    /// Its attributes, as text.
    pub attributes: BTreeMap<String, String>,
    /// Names of its events.
    pub events: Vec<String>,
    /// Start and end, nanoseconds since 1970.
    pub times: (u64, u64),
    /// Whether its status is an error.
    pub is_error: bool,
}

/// All that was received.
#[derive(Debug, Default)]
struct Received {
    requests: Vec<(HeaderMap, Bytes)>,
    spans: Vec<ReceivedSpan>,
}

/// A running collector. Dropped, it stops.
#[derive(Debug)]
pub struct OtlpCollector {
    address: SocketAddr,
    received: Arc<Mutex<Received>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OtlpCollector {
    /// Starts a collector.
    ///
    /// # Panics
    /// When the system refuses a port or a thread.
    pub fn start(answer: CollectorAnswer) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("an address");
        let received = Arc::<Mutex<Received>>::default();
        let (stop, stopped) = oneshot::channel::<()>();
        let shared = (Arc::clone(&received), answer);
        let thread = supervise::thread("otlp-collector", move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let router = Router::new().route("/v1/traces", post(take)).with_state(shared);
                let listener = TcpListener::from_std(listener).expect("a socket");
                tokio::select! {
                    _ = stopped => {}
                    ended = axum::serve(listener, router) => ended.expect("it serves"),
                }
            });
        });
        let thread = Some(thread.expect("a thread"));
        Self { address, received, stop: Some(stop), thread }
    }

    /// The variables that send traces to it.
    pub fn environment(&self) -> [(String, String); 2] {
        [
            ("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), format!("http://{}", self.address)),
            ("OTEL_EXPORTER_OTLP_HEADERS".to_owned(), "authorization=Bearer%20word".to_owned()),
        ]
    }

    /// The spans so far.
    pub fn spans(&self) -> Vec<ReceivedSpan> {
        self.lock().spans.clone()
    }

    /// Number of requests so far.
    pub fn requests(&self) -> usize {
        self.lock().requests.len()
    }

    /// Values of a header of all requests.
    pub fn headers(&self, name: &str) -> Vec<String> {
        let values = self.lock();
        let values = values.requests.iter().filter_map(|(headers, _)| headers.get(name));
        values.map(|value| value.to_str().expect("text").to_owned()).collect()
    }

    /// Whether `text` is in the body of a request.
    pub fn has_seen(&self, text: &str) -> bool {
        let contains =
            |body: &Bytes| body.windows(text.len()).any(|window| window == text.as_bytes());
        self.lock().requests.iter().any(|(_, body)| contains(body))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OtlpCollector {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was printed, and spans are missing in the test.
            drop(thread.join());
        }
    }
}

async fn take(
    State((received, answer)): State<(Arc<Mutex<Received>>, CollectorAnswer)>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, Vec<u8>) {
    let request = ExportTraceServiceRequest::decode(body.clone()).expect("a request of OTLP");
    {
        let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
        received.requests.push((headers, body));
        if answer == CollectorAnswer::Takes {
            received.spans.extend(request.resource_spans.into_iter().flat_map(spans));
        }
    }
    match answer {
        CollectorAnswer::Takes => {
            (StatusCode::OK, ExportTraceServiceResponse::default().encode_to_vec())
        }
        CollectorAnswer::Refuses => (StatusCode::BAD_REQUEST, Vec::new()),
        CollectorAnswer::Hangs => std::future::pending().await,
    }
}

fn spans(of_process: ResourceSpans) -> Vec<ReceivedSpan> {
    let resource = of_process.resource.expect("a resource");
    let service = attributes(&resource.attributes).remove("service.name").unwrap_or_default();
    let spans = of_process.scope_spans.into_iter().flat_map(|scope| scope.spans);
    spans.map(|span| received(service.clone(), &span)).collect()
}

fn received(service: String, span: &Span) -> ReceivedSpan {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8), "{span:?}");
    ReceivedSpan {
        service,
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        name: span.name.clone(),
        attributes: attributes(&span.attributes),
        events: span.events.iter().map(|event| event.name.clone()).collect(),
        times: (span.start_time_unix_nano, span.end_time_unix_nano),
        is_error: span.status.as_ref().is_some_and(|status| status.code() == SpanStatus::Error),
    }
}

fn attributes(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |of: &KeyValue| match of.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(any_value::Value::DoubleValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|of| (of.key.clone(), text(of))).collect()
}

/// Fails unless the spans of a trace have the parts of one trial that ran once: returns its root.
///
/// # Panics
/// When a span is missing, is twice in the trace or has another parent.
#[track_caller]
pub fn assert_trial_tree<'a>(spans: &[&'a ReceivedSpan]) -> &'a ReceivedSpan {
    let named = |name: &str| {
        let found: Vec<_> = spans.iter().copied().filter(|span| span.name == name).collect();
        assert_eq!(found.len(), 1, "spans `{name}` in {spans:#?}");
        found[0]
    };
    let (root, wait, execution) = (named("trial"), named("wait"), named("execution"));
    assert_eq!(root.parent, "");
    assert_eq!((&wait.parent, &execution.parent), (&root.id, &root.id));
    for part in TRIAL_PARTS {
        let part = named(part);
        assert_eq!(part.parent, execution.id, "{part:?}");
        let (began, ended) = (part.times.0 >= execution.times.0, part.times.1 <= execution.times.1);
        assert!(began && ended && part.times.0 <= part.times.1, "{part:?} in {execution:?}");
    }
    assert_eq!(spans.len(), TRIAL_PARTS.len() + 3, "{spans:#?}");
    root
}
