//! Runs that their coordinators show over NATS: copies for readers on other hosts.

use std::path::Path;
use std::time::Duration;

use clap::Parser;
use rollout_engine::RunEntry;
use rollout_engine::journal::RunLayout;
use rollout_protocol::id::RunId;
use rollout_protocol::wire::command::{RunCommand, RunFile, RunFilePart};
use rollout_queue::nats::Nats;
use rollout_queue::traits::{KvStore as _, QueueError, RunControl as _};

use super::options::NatsAccessArgs;
use crate::cli::error::CliError;

/// Schemes of servers. Those of WebSockets are refused at the connection, as an address and not as a
/// directory that does not exist.
const SCHEMES: [&str; 4] = ["nats://", "tls://", "ws://", "wss://"];

/// Fewest characters of a run id that select it.
const MIN_ID_PREFIX: usize = 6;

/// A run on a server, as a user names it: `nats://host:4222#RUN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct ServerAddress {
    url: String,
    /// Id or job of the run, after `#`.
    run: Option<String>,
}

/// The options of a server, from the environment alone.
#[derive(Debug, Parser)]
struct ServerOptions {
    #[command(flatten)]
    access: NatsAccessArgs,
}

/// A run on a server.
#[derive(Debug)]
pub(in crate::cli) struct ServedRun {
    pub(in crate::cli) run: RunId,
    pub(in crate::cli) entry: RunEntry,
    /// Time since its coordinator wrote the entry, by the server's clock.
    pub(in crate::cli) age: Duration,
}

impl ServerAddress {
    /// The run on a server that a text means; `None` for another text.
    pub(in crate::cli) fn parse(text: &Path) -> Option<Self> {
        let text = text.to_str()?;
        let is_server = SCHEMES.iter().any(|scheme| text.starts_with(scheme));
        let (url, run) = match text.split_once('#') {
            Some((url, run)) => (url, Some(run.to_owned()).filter(|run| !run.is_empty())),
            None => (text, None),
        };
        is_server.then(|| Self { url: url.to_owned(), run })
    }

    /// The address of another run on the server.
    pub(in crate::cli) fn of_run(&self, run: RunId) -> String {
        format!("{}#{run}", self.url)
    }

    /// Connects with the credentials and the namespace in the environment.
    pub(in crate::cli) async fn connect(&self) -> Result<Nats, CliError> {
        let options = ServerOptions::try_parse_from(["rollout"]);
        let options = options
            .map_err(|error| CliError::usage(format!("cannot use the environment: {error}")))?;
        options.access.connect(&self.url).await
    }

    /// The runs that the server knows, the newest last.
    pub(in crate::cli) async fn runs(&self, nats: &Nats) -> Result<Vec<ServedRun>, CliError> {
        let entries = nats.kv_store().entries().await?;
        let mut runs: Vec<ServedRun> = entries
            .into_iter()
            .filter_map(|listed| {
                let run = listed.key.parse().ok()?;
                let entry = RunEntry::parse(&listed.entry.value)?;
                Some(ServedRun { run, entry, age: listed.age })
            })
            .collect();
        runs.sort_by_key(|served| (served.entry.started_at, served.run));
        Ok(runs)
    }

    /// The run that the address means: by its id, the beginning of its id, or the name of its job.
    pub(in crate::cli) async fn find(&self, nats: &Nats) -> Result<ServedRun, CliError> {
        let mut runs = self.runs(nats).await?;
        if let Some(run) = &self.run {
            let is_id = run.len() >= MIN_ID_PREFIX;
            runs.retain(|served| {
                served.entry.job == *run || is_id && served.run.to_string().starts_with(run)
            });
        }
        match runs.len() {
            1 => Ok(runs.remove(0)),
            0 => Err(CliError::refused("cannot find the run: the server knows no such run")
                .hint("`rollout list nats://HOST:PORT` shows the runs of a server")),
            count => {
                Err(CliError::refused(format!("cannot find the run: the server has {count} runs"))
                    .hint("name one, as in `nats://HOST:PORT#RUN`: its id or its job"))
            }
        }
    }
}

/// Makes or completes the copy of a run in a directory, from its coordinator.
pub(in crate::cli) async fn copy_run(
    nats: &Nats,
    run: RunId,
    directory: &Path,
) -> Result<(), CliError> {
    let layout = RunLayout::new(directory);
    let failed = |error: std::io::Error| CliError::failure("cannot copy the run", &error);
    std::fs::create_dir_all(layout.journal()).map_err(failed)?;
    let documents = [
        (RunFile::Owner, layout.lock_info()),
        (RunFile::Manifest, layout.manifest()),
        (RunFile::Plan, layout.plan()),
        (RunFile::Store, layout.store()),
    ];
    let mut epochs = Vec::new();
    for (file, path) in documents {
        let (text, known) = read_from(nats, run, file, 0).await?;
        epochs = known;
        if let Some(text) = text {
            std::fs::write(path, text).map_err(failed)?;
        }
    }
    for epoch in epochs {
        let path = layout.segment(epoch);
        let length = std::fs::metadata(&path).map_or(0, |found| found.len());
        let (bytes, _) = read_from(nats, run, RunFile::Segment(epoch), length).await?;
        let appended = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        let appended = appended
            .and_then(|mut file| std::io::Write::write_all(&mut file, &bytes.unwrap_or_default()));
        appended.map_err(failed)?;
    }
    Ok(())
}

/// The bytes of a file from a position on, and the epochs of the journal; `None` without the file.
async fn read_from(
    nats: &Nats,
    run: RunId,
    file: RunFile,
    from: u64,
) -> Result<(Option<Vec<u8>>, Vec<u32>), CliError> {
    let mut read = Vec::new();
    let max_bytes = Some(nats.part_bytes());
    loop {
        let offset = from + read.len() as u64;
        let part = part(nats, run, RunCommand::ReadFile { file, offset, max_bytes }).await?;
        let bytes =
            part.bytes().ok_or_else(|| CliError::refused("cannot read the run: damaged"))?;
        let epochs = part.epochs;
        let Some(length) = part.file_bytes else { return Ok((None, epochs)) };
        let is_over = bytes.is_empty() || offset + bytes.len() as u64 >= length;
        read.extend(bytes);
        if is_over {
            return Ok((Some(read), epochs));
        }
    }
}

async fn part(nats: &Nats, run: RunId, command: RunCommand) -> Result<RunFilePart, CliError> {
    let receipt = match nats.command(run, command).await {
        Ok(receipt) => receipt,
        Err(QueueError::NoAnswer { .. }) => {
            return Err(CliError::refused("cannot read the run: its coordinator does not run")
                .hint("read its run directory, or its catalog: `s3://bucket/prefix#RUN`"));
        }
        Err(error) => return Err(error.into()),
    };
    match (receipt.part, receipt.refused) {
        (Some(part), None) => Ok(part),
        (_, reason) => {
            let reason =
                reason.unwrap_or_else(|| "its coordinator is of an earlier version".into());
            Err(CliError::refused(format!("cannot read the run: {reason}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_on_a_server_is_named_by_url_and_fragment() {
        let parse = |text: &str| ServerAddress::parse(Path::new(text));
        let named = parse("nats://far:4222#demo").expect("a server");
        assert_eq!((named.url.as_str(), named.run.as_deref()), ("nats://far:4222", Some("demo")));
        assert_eq!(parse("tls://far").expect("a server").run, None);
        for other in ["jobs/nats", "s3://bucket#run", "nats:/far"] {
            assert_eq!(parse(other), None, "{other}");
        }
        let run = RunId::from_bytes([1; 16]);
        assert_eq!(named.of_run(run), format!("nats://far:4222#{run}"));
    }
}
