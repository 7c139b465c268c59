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
use rollout_base::secrets::Redactor;
use rollout_environment::ListenerRoute;
use rollout_gateway::proxy::Gateway;
use rollout_gateway::{ModelGateway as _, TrajectoryAgent, TryGateway, TryRequest, Upstream};
use rollout_protocol::id::RunId;
use rollout_protocol::spec::gateway::{ModelDialect, UpstreamSpec};
use rollout_tests::model_server::ModelServer;

use self::client::{BenchCall, BenchEndpoint, CallTimes, ModelClient, SlowReader};

/// An error that ends the benchmark and is printed to stderr.
type LatencyError = Box<dyn Error>;

/// Calls of each kind that are made one after the other.
const SEQUENTIAL_CALLS: usize = 400;

/// Calls of each kind at once, and rounds of them.
const CONCURRENT_CALLS: usize = 32;
const ROUNDS: usize = 8;

/// Streams through the gateway at once.
const STREAMS: usize = 500;

/// An ordinary call.
const CALL: BenchCall = BenchCall { prompt: 20_000, events: 20, slow: None };

/// A call whose request has 10 MB.
const LARGE_REQUEST: BenchCall = BenchCall { prompt: 10_000_000, events: 20, slow: None };

/// Calls with large requests that are made one after the other.
const LARGE_CALLS: usize = 20;

/// A call whose agent reads 4 KiB each 20 ms, slower than the server sends.
const SLOW_CALL: BenchCall = BenchCall {
    prompt: 1_000,
    events: 2_000,
    slow: Some(SlowReader { part: 4096, pause: Duration::from_millis(20) }),
};

/// Slow readers at once.
const SLOW_READERS: usize = 100;

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
    writeln!(out, "{} events per stream, 1 ms before each; ms p50 / p99", CALL.events)?;
    let v1 = format!("{}/v1", server.origin());
    let origin = server.origin();
    for (endpoint, base, variable) in [
        (BenchEndpoint::Chat, &v1, "OPENAI_BASE_URL"),
        (BenchEndpoint::Responses, &v1, "OPENAI_BASE_URL"),
        (BenchEndpoint::Messages, &origin, "ANTHROPIC_BASE_URL"),
        (BenchEndpoint::Gemini, &origin, "GOOGLE_GEMINI_BASE_URL"),
    ] {
        let direct = ModelClient::new(endpoint, base, "key");
        let proxied =
            ModelClient::new(endpoint, &variables[variable], &variables["OPENAI_API_KEY"]);
        writeln!(out, "{}", endpoint.as_str())?;
        compare(&direct, &proxied, &mut out).await?;
        at_once("streams", &direct, &proxied, (STREAMS, CALL), &mut out).await?;
        one_by_one("with 10 MB, one at a time", &direct, &proxied, &mut out).await?;
        at_once("slow readers", &direct, &proxied, (SLOW_READERS, SLOW_CALL), &mut out).await?;
    }
    let calls = opened.close(None).await;
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
            times.push(client.stream(number, CALL).await?);
        }
    }
    for _ in 0..ROUNDS {
        for (times, client) in together.iter_mut().zip([direct, proxied]) {
            let calls = (0..CONCURRENT_CALLS).map(|number| client.stream(number, CALL));
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

/// Calls with large requests.
async fn one_by_one(
    name: &str,
    direct: &ModelClient,
    proxied: &ModelClient,
    out: &mut impl io::Write,
) -> Result<(), LatencyError> {
    let mut all = [Vec::new(), Vec::new()];
    for number in 0..LARGE_CALLS {
        for (times, client) in all.iter_mut().zip([direct, proxied]) {
            times.push(client.stream(number, LARGE_REQUEST).await?);
        }
    }
    writeln!(out, "{name}: direct {}", summary(&all[0]))?;
    writeln!(out, "{name}: gateway {}", summary(&all[1]))?;
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
            upstream("claude", ModelDialect::Anthropic, server.origin()),
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

/// Many streams at once: all must be whole. The memory is that of the client, the server and, in the
/// second line, the gateway; what the first line made the process keep is not part of the second.
async fn at_once(
    name: &str,
    direct: &ModelClient,
    proxied: &ModelClient,
    (count, call): (usize, BenchCall),
    out: &mut impl io::Write,
) -> Result<(), LatencyError> {
    for (way, client) in [("direct", direct), ("gateway", proxied)] {
        let before = forget_peak_memory()?;
        let calls = (0..count).map(|number| client.stream(number, call));
        let mut times = Vec::new();
        for ended in join_all(calls).await {
            times.push(ended?);
        }
        let grown = memory_kib("VmHWM:")?.saturating_sub(before);
        let times = summary(&times);
        writeln!(out, "{count} {name}: {way} {times}, all whole, memory grew by {grown} KiB")?;
    }
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

/// Forgets the peak of the process's memory; returns its present size, KiB.
fn forget_peak_memory() -> Result<u64, LatencyError> {
    std::fs::write("/proc/self/clear_refs", "5")?;
    memory_kib("VmRSS:")
}

fn memory_kib(name: &str) -> Result<u64, LatencyError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")).ok_or("no such size")?;
    Ok(number.trim().parse()?)
}
