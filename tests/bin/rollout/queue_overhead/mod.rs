//! Benchmark of runs over a NATS server: `tests/bench/queue_overhead`.
//!
//! Trials that do nothing are offered by this process, run by a worker process and reported back
//! over the server, and each result is journalled. The floor is a bare loop of the same messages
//! and bytes over the same server. Streams have unique names and are removed afterwards, also after
//! an interruption.

mod comparison;
mod floor;
mod helper;
mod product;
mod table;
mod usage;

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use rollout_coordinator::launch::signals;

use self::comparison::QueueBench;

/// An error that ends the benchmark and is printed to stderr.
type BenchError = Box<dyn Error>;

const USAGE: &str = "usage: queue_overhead --nats URL [--items N] [--window N,N,...] [--rounds N] \
                     [--server-pid PID] [--dir DIR] [--json]";

/// Exit code after a stop by a signal.
const STOPPED: u8 = 130;

/// Measures with these options, or is the worker process of a measurement.
pub(crate) fn run(arguments: Vec<OsString>) -> ExitCode {
    let ended = tokio::runtime::Runtime::new().map_err(BenchError::from).and_then(|runtime| {
        if arguments.first().is_some_and(|word| word == helper::HELPER_ARGUMENT) {
            runtime.block_on(helper::serve())?;
            return Ok(ExitCode::SUCCESS);
        }
        let words = arguments.into_iter().map(OsString::into_string);
        let words = words.collect::<Result<Vec<_>, _>>().map_err(|_| USAGE)?;
        runtime.block_on(measure_all(&BenchOptions::parse(words.into_iter())?))
    });
    ended.unwrap_or_else(|failure| {
        drop(writeln!(io::stderr(), "queue_overhead: {failure}"));
        ExitCode::FAILURE
    })
}

/// Benchmark parameters.
struct BenchOptions {
    /// The server.
    nats: String,
    /// Trials per measurement.
    items: u32,
    /// Trials at a time; one comparison each.
    windows: Vec<u32>,
    /// Measurements of product and floor each.
    rounds: u32,
    /// The server's process id, to measure its processor time as well.
    server: Option<u32>,
    /// Where a directory to write to is created.
    directory: PathBuf,
    json: bool,
}

impl BenchOptions {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, BenchError> {
        let mut options = Self {
            nats: String::new(),
            items: 10_000,
            windows: vec![4, 64, 1024],
            rounds: 3,
            server: None,
            directory: PathBuf::from("."),
            json: false,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(USAGE);
            match word.as_str() {
                "--nats" => options.nats = value()?,
                "--items" => options.items = number(&value()?)?,
                "--window" => {
                    options.windows = value()?.split(',').map(number).collect::<Result<_, _>>()?;
                }
                "--rounds" => options.rounds = number(&value()?)?,
                "--server-pid" => options.server = Some(number(&value()?)?),
                "--dir" => options.directory = value()?.into(),
                "--json" => options.json = true,
                _ => return Err(USAGE.into()),
            }
        }
        if options.nats.is_empty() { Err(USAGE.into()) } else { Ok(options) }
    }
}

fn number(text: &str) -> Result<u32, BenchError> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| USAGE.into())
}

async fn measure_all(options: &BenchOptions) -> Result<ExitCode, BenchError> {
    let directory =
        tempfile::Builder::new().prefix(".queue-overhead-").tempdir_in(&options.directory)?;
    let queue = QueueBench {
        url: options.nats.clone(),
        server: options.server,
        items: options.items,
        rounds: options.rounds,
        directory: directory.path().to_owned(),
    };
    let (mut stops, _listening) = signals::listen()?;
    let namespace = comparison::namespace();
    let measured = tokio::select! {
        measured = measure(&queue, &namespace, options) => measured.map(|()| ExitCode::SUCCESS),
        _ = stops.recv() => Ok(ExitCode::from(STOPPED)),
    };
    // The error of the measurement takes precedence over that of the clean-up.
    let cleared = comparison::clear(&options.nats, &namespace).await;
    let code = measured?;
    cleared?;
    Ok(code)
}

async fn measure(
    queue: &QueueBench,
    namespace: &str,
    options: &BenchOptions,
) -> Result<(), BenchError> {
    let mut all = Vec::new();
    for &window in &options.windows {
        let compared = comparison::measure(queue, namespace, window).await?;
        if options.json {
            writeln!(io::stdout(), "{}", serde_json::to_string(&compared)?)?;
        }
        all.push(compared);
    }
    if !options.json {
        io::stdout().write_all(table::render(&all).as_bytes())?;
    }
    Ok(())
}
