//! Benchmark of the model gateway: `tests/bench/gateway_overhead`.
//!
//! The same streams are read from a model server directly and through the gateway, by the same bare
//! client in the same process. Calls go out in rounds, direct and through the gateway in turns, so
//! that load of the machine meets both.

mod client;

use std::error::Error;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rollout_protocol::id::RunId;
use rollout_protocol::spec::gateway::{ModelDialect, UpstreamSpec};
use rollout_tests::model_server::ModelServer;
use rollout_worker::environment::ListenerRoute;
use rollout_worker::gateway::proxy::Gateway;
use rollout_worker::gateway::{
    ModelGateway as _, TrajectoryAgent, TryGateway, TryRequest, Upstream,
};
use rollout_worker::secrets::Redactor;

use self::client::{BenchEndpoint, CallTimes, ModelClient};

/// An error that ends the benchmark and is printed to stderr.
type LatencyError = Box<dyn Error>;

/// Calls of each kind that are made one after the other.
const SEQUENTIAL_CALLS: usize = 400;

/// Calls of each kind at once, and rounds of them.
const CONCURRENT_CALLS: usize = 32;
const ROUNDS: usize = 8;

/// Streams through the gateway at once.
const STREAMS: usize = 500;

/// Events of a stream.
const EVENTS: u32 = 20;

fn main() -> ExitCode {
    let ended = tokio::runtime::Runtime::new().map_err(LatencyError::from);
    match ended.and_then(|runtime| runtime.block_on(measure())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            drop(writeln!(io::stderr(), "gateway_overhead: {failure}"));
            ExitCode::FAILURE
        }
    }
}

async fn measure() -> Result<(), LatencyError> {
    let directory = tempfile::tempdir()?;
    let server = ModelServer::start(Duration::from_millis(1));
    let gateway = Gateway::new();
    let opened = open(&gateway, &server, directory.path()).await?;
    let route = ListenerRoute::HostAddress((Ipv4Addr::LOCALHOST, 0).into());
    let variables = opened.serve(route).await?;
    let mut out = io::stdout();
    writeln!(out, "{EVENTS} events per stream, 1 ms before each; milliseconds p50 / p99")?;
    let v1 = format!("{}/v1", server.origin());
    for (endpoint, base, variable) in [
        (BenchEndpoint::Chat, &v1, "OPENAI_BASE_URL"),
        (BenchEndpoint::Responses, &v1, "OPENAI_BASE_URL"),
        (BenchEndpoint::Gemini, &server.origin(), "GOOGLE_GEMINI_BASE_URL"),
    ] {
        let direct = ModelClient::new(endpoint, base, "key");
        let proxied =
            ModelClient::new(endpoint, &variables[variable], &variables["OPENAI_API_KEY"]);
        writeln!(out, "{}", endpoint.as_str())?;
        compare(&direct, &proxied, &mut out).await?;
        many_streams(&proxied, &mut out).await?;
    }
    let calls = opened.close().await;
    writeln!(out, "recorded calls: {}, cut: {}", calls.summary.calls, calls.summary.cut_calls)?;
    Ok(())
}

/// Reads the same streams directly and through the gateway.
async fn compare(
    direct: &ModelClient,
    proxied: &ModelClient,
    out: &mut impl io::Write,
) -> Result<(), LatencyError> {
    let (mut alone, mut together) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for number in 0..SEQUENTIAL_CALLS {
        for (times, client) in alone.iter_mut().zip([direct, proxied]) {
            times.push(client.stream(number, EVENTS).await?);
        }
    }
    for _ in 0..ROUNDS {
        for (times, client) in together.iter_mut().zip([direct, proxied]) {
            let calls = (0..CONCURRENT_CALLS).map(|number| client.stream(number, EVENTS));
            for ended in join_all(calls).await {
                times.push(ended?);
            }
        }
    }
    for (name, [direct, proxied]) in [("one at a time", &alone), ("32 at a time", &together)] {
        writeln!(out, "{name}: direct {}", summary(direct))?;
        writeln!(out, "{name}: gateway {}", summary(proxied))?;
    }
    Ok(())
}

async fn open(
    gateway: &Gateway,
    server: &ModelServer,
    directory: &std::path::Path,
) -> Result<Arc<dyn TryGateway>, LatencyError> {
    let upstream = |name: &str, dialect, url: String| {
        let spec = UpstreamSpec { max_retries: 0, ..UpstreamSpec::new(name, dialect, &url) };
        Upstream { spec, key: Some("key".to_owned()) }
    };
    let request = TryRequest {
        budget: None,
        run: RunId::from_bytes([1; 16]),
        upstreams: vec![
            upstream("main", ModelDialect::Openai, format!("{}/v1", server.origin())),
            upstream("google", ModelDialect::Gemini, server.origin()),
        ],
        only: None,
        is_leased: false,
        directory: directory.join("gateway"),
        redactor: Redactor::default(),
        agent: TrajectoryAgent::default(),
    };
    Ok(gateway.open(request).await?)
}

/// Many streams at once: all must be whole.
async fn many_streams(client: &ModelClient, out: &mut impl io::Write) -> Result<(), LatencyError> {
    let before = peak_memory_kib()?;
    let calls = (0..STREAMS).map(|number| client.stream(number, EVENTS));
    let mut times = Vec::new();
    for ended in join_all(calls).await {
        times.push(ended?);
    }
    let grown = peak_memory_kib()?.saturating_sub(before);
    writeln!(out, "{STREAMS} at a time: gateway {}", summary(&times))?;
    writeln!(out, "{STREAMS} whole streams, peak memory of all parts grew by {grown} KiB")?;
    Ok(())
}

fn summary(times: &[CallTimes]) -> String {
    let first = percentiles(times.iter().map(|times| times.first).collect());
    let total = percentiles(times.iter().map(|times| times.total).collect());
    format!("first event {first}, whole {total}")
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: f64| {
        let index = ((times.len() - 1) as f64 * part).round() as usize;
        times[index].as_secs_f64() * 1000.0
    };
    format!("{:.2} / {:.2}", at(0.5), at(0.99))
}

fn peak_memory_kib() -> Result<u64, LatencyError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")).ok_or("no VmHWM")?;
    Ok(number.trim().parse()?)
}
