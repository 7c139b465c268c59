//! Benchmark of farms: `tests/bench/farm_overhead`.
//!
//! The server, the worker, the NATS server and the trainer are processes of their own. The floor is
//! `rollout bench dispatch`: as many trials, dispatched and journalled in one process.

mod readers;
mod server;

use std::error::Error;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use rollout_coordinator::bench::dispatch::{self, DispatchBench};
use rollout_coordinator::events::MaterializeMode;

use self::readers::StreamReaders;
use self::server::FarmServer;

/// An error that ends the benchmark and is printed to stderr.
type FarmBenchError = Box<dyn Error + Send + Sync>;

const USAGE: &str = "usage: farm_overhead --nats-server PROGRAM --python PYTHON [--groups N] \
                     [--samples N] [--slots N] [--readers N]";

/// Requests of each kind whose latency is measured.
const REQUESTS: usize = 200;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let ended = match words.next() {
        Some(word) if word == server::WORKER_ARGUMENT => server::work(words.next()),
        first => FarmBench::parse(first.into_iter().chain(words)).and_then(|bench| measure(&bench)),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            drop(writeln!(io::stderr(), "farm_overhead: {failure}"));
            ExitCode::FAILURE
        }
    }
}

/// Parameters of the measurement.
struct FarmBench {
    /// The program of the NATS server.
    nats_server: PathBuf,
    /// A Python that has the client's dependency.
    python: PathBuf,
    /// Groups of a farm.
    groups: u32,
    /// Samples of a group.
    samples: u32,
    /// Samples at a time.
    slots: u32,
    /// Readers of the stream of completions.
    readers: usize,
}

impl FarmBench {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, FarmBenchError> {
        let (nats_server, python) = (PathBuf::new(), PathBuf::new());
        let mut bench =
            Self { nats_server, python, groups: 1000, samples: 10, slots: 64, readers: 200 };
        while let Some(word) = words.next() {
            let value = words.next().ok_or(USAGE)?;
            match word.as_str() {
                "--nats-server" => bench.nats_server = value.into(),
                "--python" => bench.python = value.into(),
                "--groups" => bench.groups = value.parse()?,
                "--samples" => bench.samples = value.parse()?,
                "--slots" => bench.slots = value.parse()?,
                "--readers" => bench.readers = value.parse()?,
                _ => return Err(USAGE.into()),
            }
        }
        let is_complete = bench.nats_server.is_file() && bench.python.is_file();
        if is_complete { Ok(bench) } else { Err(USAGE.into()) }
    }
}

fn measure(bench: &FarmBench) -> Result<(), FarmBenchError> {
    let mut out = io::stdout();
    let FarmBench { groups, samples, slots, readers, .. } = *bench;
    writeln!(out, "{groups} groups of {samples} samples, {slots} at a time")?;
    let floor = dispatch_rate(bench)?;
    writeln!(out, "trials in one process, without a farm: {floor:.0}/s")?;

    let mut server = FarmServer::start(bench)?;
    let farm = server.open_farm("steady")?;
    server.start_worker(slots)?;
    let rate = server.train(&farm, "steady", bench)?.finish(&mut out)?;
    writeln!(out, "steady, {slots} groups open at most: {}", ratio(rate, floor))?;
    server.stop_worker();

    let idle = server.memory_kib("VmRSS");
    let farm = server.open_farm("held")?;
    let mut training = server.train(&farm, "held", bench)?;
    training.stage(&mut out)?;
    let held = server.memory_kib("VmRSS");
    writeln!(out, "every group is open: {held} KiB of memory, {idle} KiB without them")?;
    for path in ["/v1/runs", "/v1/farms", &farm, "/healthz"] {
        writeln!(out, "GET {path}: {}", latency(&server, path)?)?;
    }
    let streams = StreamReaders::start(&server.client, &farm, readers);
    let began = Instant::now();
    server.start_worker(slots)?;
    training.finish(&mut out)?;
    let rate = f64::from(groups * samples) / began.elapsed().as_secs_f64();
    writeln!(out, "held, with {readers} readers of the stream: {}", ratio(rate, floor))?;
    writeln!(out, "{}", streams.summary(u64::from(groups * samples)))?;
    writeln!(out, "peak memory of the server: {} KiB", server.memory_kib("VmHWM"))?;
    Ok(())
}

fn ratio(rate: f64, floor: f64) -> String {
    format!("{rate:.0} samples/s, {:.3} of the trials in one process", rate / floor)
}

/// Trials per second of as many trials in this process.
fn dispatch_rate(bench: &FarmBench) -> Result<f64, FarmBenchError> {
    let directory = tempfile::tempdir()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let (items, window) = (bench.groups * bench.samples, bench.slots);
    let what = DispatchBench { items, window, materialize: MaterializeMode::None };
    let measured = runtime.block_on(async {
        let store = rollout_store::open(&directory.path().join("blobs").into()).await?;
        Ok::<_, FarmBenchError>(
            dispatch::dispatch(what, Arc::clone(&store), directory.path()).await?,
        )
    });
    Ok(measured?.items_per_second)
}

/// Latency of a request on a new connection, milliseconds.
fn latency(server: &FarmServer, path: &str) -> Result<String, FarmBenchError> {
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        let began = Instant::now();
        let answer = server.client.get(path);
        times.push(began.elapsed());
        if answer.status != 200 {
            return Err(format!("{path}: {}", answer.text()).into());
        }
    }
    times.sort_unstable();
    let at = |part: f64| {
        let index = ((times.len() - 1) as f64 * part).round() as usize;
        times[index].as_secs_f64() * 1000.0
    };
    Ok(format!("{:.2} ms p50, {:.2} ms p99", at(0.5), at(0.99)))
}
