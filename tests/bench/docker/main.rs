//! Benchmark of the program's overhead per Docker trial: `tests/bench/docker_overhead`.
//!
//! `floor` runs trials with the minimum number of Engine API calls, `product` runs the same trials
//! with `rollout run`. They alternate, so that noise affects both alike.

mod floor;
mod product;
mod report;

use std::error::Error;
use std::io::{self, Write as _};
use std::process::ExitCode;

use rustix::time::{ClockId, clock_gettime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::floor::EngineFloor;
use self::product::ProductBench;
use self::report::{BenchFigures, BenchRow};

/// An error that ends the benchmark and is printed to stderr.
type BenchError = Box<dyn Error>;

const USAGE: &str =
    "usage: docker_overhead [--trials N] [--rounds N] [--concurrency N,N,...] [--json]";

fn main() -> ExitCode {
    // The benchmark binary is also the measured program, so that both are built alike.
    if std::env::args().nth(1).is_some_and(|word| word == "run") {
        return rollout_coordinator::cli::main();
    }
    let measured = BenchOptions::parse(std::env::args().skip(1)).and_then(|options| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(measure(&options))
    });
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            drop(writeln!(io::stderr(), "docker_overhead: {failure}"));
            ExitCode::FAILURE
        }
    }
}

/// Benchmark parameters.
struct BenchOptions {
    /// Trials of each side per round.
    trials: u32,
    /// Number of rounds.
    rounds: u32,
    concurrency: Vec<u32>,
    json: bool,
}

impl BenchOptions {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, BenchError> {
        let mut options = Self { trials: 24, rounds: 2, concurrency: vec![1, 4, 8], json: false };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(USAGE);
            match word.as_str() {
                "--trials" => options.trials = number(&value()?)?,
                "--rounds" => options.rounds = number(&value()?)?,
                "--concurrency" => {
                    options.concurrency =
                        value()?.split(',').map(number).collect::<Result<_, _>>()?;
                }
                "--json" => options.json = true,
                _ => return Err(USAGE.into()),
            }
        }
        Ok(options)
    }
}

fn number(text: &str) -> Result<u32, BenchError> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| USAGE.into())
}

async fn measure(options: &BenchOptions) -> Result<(), BenchError> {
    let mut stops = StopSignals::listen()?;
    let floor = EngineFloor::connect().await?;
    floor.sweep().await?;
    let measured = alternate(options, &floor, &mut stops).await;
    let swept = floor.sweep().await;
    let report = measured?;
    swept?;
    let text = if options.json { report.json() } else { report.table() };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

async fn alternate(
    options: &BenchOptions,
    floor: &EngineFloor,
    stops: &mut StopSignals,
) -> Result<report::BenchReport, BenchError> {
    let product = ProductBench::new()?;
    // This also pulls the image.
    product.trials(1, 1, "none", stops).await?;
    floor.trials(1, 1, stops).await?;
    let load_before = report::load();
    let mut rows = Vec::new();
    for &concurrency in &options.concurrency {
        let mut row = BenchRow::new(concurrency);
        for _ in 0..options.rounds {
            row.floor.push(floor.trials(options.trials, concurrency, stops).await?);
            row.none.push(product.trials(options.trials, concurrency, "none", stops).await?);
            row.full.push(product.trials(options.trials, concurrency, "full", stops).await?);
        }
        drop(writeln!(io::stderr(), "measured concurrency {concurrency}"));
        rows.push(row);
    }
    let figures = BenchFigures { trials: options.trials, rounds: options.rounds };
    let load = [load_before, report::load()];
    let calls = product.calls(stops).await?;
    Ok(report::BenchReport { figures, rows, calls, floor_calls: floor::CALLS, load })
}

/// Signals by which the user stops the benchmark.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Processor time of this process, in seconds.
fn own_cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
