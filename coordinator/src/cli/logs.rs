//! `rollout logs`.

use std::path::PathBuf;

use bytes::Bytes;
use clap::Args;
use rollout_protocol::digest::Digest;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::limits::INLINE_FILE_BYTES;
use rollout_protocol::record::TrialRecord;
use rollout_store::BlobStore;
use serde::Serialize;
use tokio::sync::mpsc;

use super::error::CliError;
use super::output::{Printer, quoted};
use super::remote_api::{self, RunUrl};
use super::run_place::RunPlace;
use super::{follow_logs, search_dir, store_url};
use crate::events::sinks::terminal::format::plural;
use crate::events::sinks::terminal::table;
use crate::results::escape;
use crate::results::view::{
    self, CapturedError, CapturedFile, CapturedSource, LogFile, TrialDetail, find_trial,
};

/// Hint for the directory of a search.
const SEARCH_HINT: &str = "the output of an eval is in `eval/` of the search's directory";

/// Pieces of a file that wait to be printed.
const WAITING_PIECES: usize = 16;

/// Print the captured output of a trial: install script, agent, verifier, image build
///
/// Without NAME, the output of every script and build that printed something, with a header each;
/// records, such as those of model calls, have to be named. Output comes from the blob store, so it does
/// not depend on the files of the run directory. It is escaped on a terminal, and printed as it is
/// otherwise.
#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// Run directory; a run in a catalog: `s3://bucket/prefix#RUN`; or a run on a server:
    /// `nats://host:4222#RUN`, `http://host:4280/v1/runs/ID`
    run_dir: PathBuf,

    /// The trial: `agent/dataset/task__attempt`, its item, or a part of its name that no other has
    pub(super) trial: String,

    /// Name of an output (`command/stdout.txt`), of a directory of outputs (`setup`), or of a file in
    /// the logs (`logs/agent/trace.json`)
    pub(super) name: Option<String>,

    /// Print the output of a trial that runs, as it is written, until the trial is settled
    ///
    /// Of each script and stream, the first 4 MiB are printed while it runs, and the rest at the end.
    /// The trial of a run with `--nats` needs `--nats`: its worker sends output while this command
    /// asks for it.
    #[arg(long, short, conflicts_with_all = ["list", "json", "number"])]
    follow: bool,

    /// The output of this try, by its number in `rollout show`
    ///
    /// [default: the try that settled the trial, else the last one with output]
    #[arg(long = "try", value_name = "N")]
    number: Option<u32>,

    /// List outputs and the files in the logs instead of printing them
    #[arg(long, conflicts_with = "name")]
    list: bool,

    /// Blob store: a directory, or `s3://bucket/prefix?endpoint=URL` [default: the store that the run used]
    #[arg(long)]
    pub(super) store: Option<String>,

    /// Print one JSON document
    #[arg(long)]
    json: bool,

    #[cfg(feature = "nats")]
    #[command(flatten)]
    pub(super) nats: super::nats::NatsArgs,
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
struct LogsDocument {
    /// The trial.
    name: String,
    #[serde(rename = "try")]
    try_id: rollout_protocol::id::TryId,
    exec: rollout_protocol::id::ExecId,
    /// Printed files, or with `--list` all outputs.
    files: Vec<PrintedFile>,
    /// With `--list`: the files and directories in the logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    logs: Option<Vec<LogFile>>,
}

/// A captured file.
#[derive(Debug, Serialize)]
struct PrintedFile {
    path: String,
    /// The blob that has its content, or the archive that contains it.
    digest: Digest,
    /// Bytes that are kept.
    size_bytes: u64,
    /// Bytes that were written, kept or not.
    total_bytes: Option<u64>,
    truncated: bool,
    /// Its content; `None` with `--list` and for a file above 16 MiB.
    text: Option<String>,
    /// Whether bytes of the content that are not UTF-8 are replaced in `text`.
    lossy: bool,
}

/// Runs the command.
pub(super) async fn run(args: &LogsArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    if let Some(run) = RunUrl::parse(&args.run_dir.to_string_lossy())? {
        let query = server_query(args)?;
        return match args.list {
            true => list_on_server(&run, args, printer).await,
            false => remote_api::logs(&run, &args.trial, &query, printer).await,
        };
    }
    let place = RunPlace::open(&args.run_dir).await?;
    search_dir::refuse("print the output of a trial of", place.directory(), SEARCH_HINT)?;
    if args.follow {
        return Box::pin(follow_logs::run(args, &place, printer)).await;
    }
    let directory = place.read()?;
    let trial = find_trial(directory.plan()?, &args.trial)?;
    let view = directory.view(Some(trial.item), None)?;
    let detail = view.detail().expect("a trial of the plan is watched");
    let store = store_url::open_for_run(args.store.as_deref(), place.directory()).await?;
    let record = record(args, &detail, &*store).await?;
    let mut files =
        view::captured_files(&record, args.name.as_deref()).map_err(|error| failed(&error))?;
    let captured = files.len();
    if args.name.is_none() && !args.list {
        files.retain(CapturedFile::is_script_output);
    }
    let left_out = captured - files.len();
    let logs = match args.list {
        true => Some(view::list_logs(&*store, &record).await.map_err(|error| failed(&error))?),
        false => None,
    };
    if args.json {
        let (name, try_id, exec) = (detail.row.name, record.try_id, record.exec);
        let mut printed = Vec::new();
        for file in &files {
            printed.push(described(&*store, file, !args.list).await?);
        }
        printer.json(&LogsDocument { name, try_id, exec, files: printed, logs })?;
    } else if let Some(logs) = logs {
        let width = printer.out.width;
        printer.data(&render_list(outputs_of(&files).chain(entries_of(&logs)), width))?;
    } else {
        print(&*store, &files, printer).await?;
    }
    if left_out > 0 {
        let run = quoted(&args.run_dir.to_string_lossy());
        let (files, verb) =
            (plural(left_out as u64, "record"), if left_out == 1 { "is" } else { "are" });
        printer.hint(&format!(
            "{files} {verb} not printed: `rollout logs {run} {} --list` lists them",
            quoted(&args.trial)
        ));
    }
    Ok(ExitCode::Success)
}

/// Lists the outputs of a trial on a server.
async fn list_on_server(
    run: &RunUrl,
    args: &LogsArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let outputs = run.outputs(&args.trial).await?;
    if args.json {
        printer.json(&outputs)?;
        return Ok(ExitCode::Success);
    }
    let entries = outputs.iter().map(|output| (output.path.as_str(), "output", output.size_bytes));
    printer.data(&render_list(entries, printer.out.width))?;
    Ok(ExitCode::Success)
}

/// The parameters of the same question to a server of `rollout serve`.
fn server_query(args: &LogsArgs) -> Result<Vec<(&'static str, String)>, CliError> {
    if args.store.is_some() || args.json && !args.list || args.list && args.number.is_some() {
        let what = "cannot use `--store`, `--json` without `--list`, or `--list` of one try with a \
                    run on a server";
        return Err(CliError::usage(what).hint(
            "`rollout logs URL TRIAL` prints its output, and `--list` lists it, also with `--json`",
        ));
    }
    let mut query = Vec::new();
    query.extend(args.name.clone().map(|name| ("name", name)));
    query.extend(args.number.map(|number| ("try", number.to_string())));
    query.extend(args.follow.then(|| ("follow", "true".to_owned())));
    Ok(query)
}

/// The record of the chosen execution.
async fn record(
    args: &LogsArgs,
    detail: &TrialDetail,
    store: &dyn BlobStore,
) -> Result<TrialRecord, CliError> {
    let what = || format!("cannot print the output of {}", detail.row.name);
    let Some(execution) = detail.recorded_execution(args.number) else {
        let why = match args.number {
            Some(number) => format!("{}: try {number} left no record", what()),
            None => format!("{}: no execution of it has ended", what()),
        };
        return Err(CliError::new(ExitCode::Config, why)
            .hint("`rollout show RUN TRIAL` shows the tries of a trial"));
    };
    let record =
        view::record_of(store, detail.row.item, execution).await.map_err(|error| failed(&error))?;
    record.ok_or_else(|| CliError::new(ExitCode::Config, what()))
}

pub(super) fn failed(error: &CapturedError) -> CliError {
    match error {
        CapturedError::NoFile(_) => CliError::new(ExitCode::Config, error.to_string())
            .hint("`rollout logs RUN TRIAL --list` lists the files"),
        _ => CliError::failure("cannot print the output", error),
    }
}

/// Prints files that have content, with a header each if there are several files.
async fn print(
    store: &dyn BlobStore,
    files: &[CapturedFile],
    printer: &Printer,
) -> Result<(), CliError> {
    if files.iter().all(CapturedFile::is_empty) {
        printer.note_no_output();
    }
    let mut between = "";
    for file in files.iter().filter(|file| !file.is_empty()) {
        if files.len() > 1 {
            printer.data(&format!("{between}==> {} <==\n", escape::line(&file.path)))?;
        }
        let ended_line = print_from(store, file, 0, printer).await?;
        between = if ended_line { "\n" } else { "\n\n" };
    }
    Ok(())
}

/// Prints a file after its first `skip` bytes. Returns whether it ends with the end of a line.
pub(super) async fn print_from(
    store: &dyn BlobStore,
    file: &CapturedFile,
    mut skip: u64,
    printer: &Printer,
) -> Result<bool, CliError> {
    let mut terminal = printer.prints_to_terminal().then(TerminalText::default);
    let mut ended_line = true;
    read(store, file, |piece| {
        let skipped = skip.min(piece.len() as u64);
        skip -= skipped;
        let piece = &piece[usize::try_from(skipped).unwrap_or(piece.len())..];
        ended_line = piece.last().map_or(ended_line, |last| *last == b'\n');
        match &mut terminal {
            Some(terminal) => printer.data(&terminal.escaped(piece)),
            None => printer.bytes(piece).map(drop),
        }
    })
    .await?;
    if let Some(mut terminal) = terminal {
        printer.data(&terminal.rest())?;
    }
    Ok(ended_line)
}

/// Passes the content of a file to `see`, in pieces, until it fails.
async fn read(
    store: &dyn BlobStore,
    file: &CapturedFile,
    mut see: impl FnMut(&[u8]) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let (pieces, mut received) = mpsc::channel::<Bytes>(WAITING_PIECES);
    let reading = view::read_captured(store, file, pieces);
    // It drops the receiver when it fails, which ends the other side.
    let seeing = async move {
        while let Some(piece) = received.recv().await {
            see(&piece)?;
        }
        Ok::<(), CliError>(())
    };
    let (seen, read) = tokio::join!(seeing, reading);
    seen?;
    read.map_err(|error| failed(&error))
}

/// A file with its content, for JSON.
async fn described(
    store: &dyn BlobStore,
    file: &CapturedFile,
    with_text: bool,
) -> Result<PrintedFile, CliError> {
    let (digest, total_bytes, truncated) = match &file.source {
        CapturedSource::Blob(output) => {
            (output.blob.digest, Some(output.total_bytes), output.truncated)
        }
        CapturedSource::Member { archive, .. } => (archive.digest, None, false),
    };
    let mut content = Vec::new();
    let mut size_bytes = 0;
    if with_text {
        read(store, file, |piece| {
            size_bytes += piece.len() as u64;
            if size_bytes <= INLINE_FILE_BYTES {
                content.extend_from_slice(piece);
            }
            Ok(())
        })
        .await?;
    } else if let CapturedSource::Blob(output) = &file.source {
        size_bytes = output.blob.size_bytes;
    }
    let is_whole = with_text && size_bytes <= INLINE_FILE_BYTES;
    let lossy = is_whole && std::str::from_utf8(&content).is_err();
    let text = is_whole.then(|| String::from_utf8_lossy(&content).into_owned());
    let path = file.path.clone();
    Ok(PrintedFile { path, digest, size_bytes, total_bytes, truncated, text, lossy })
}

/// Path, type and size of captured outputs.
fn outputs_of(files: &[CapturedFile]) -> impl Iterator<Item = (&str, &'static str, u64)> {
    files.iter().filter_map(|file| match &file.source {
        CapturedSource::Blob(output) => {
            Some((file.path.as_str(), "output", output.blob.size_bytes))
        }
        CapturedSource::Member { .. } => None,
    })
}

/// Path, type and size of files and directories in the logs.
fn entries_of(logs: &[LogFile]) -> impl Iterator<Item = (&str, &'static str, u64)> {
    logs.iter().map(|file| (file.path.as_str(), file.kind, file.size_bytes))
}

fn render_list<'a>(
    entries: impl Iterator<Item = (&'a str, &'static str, u64)>,
    width: Option<usize>,
) -> String {
    let rows: Vec<_> = entries
        .map(|(path, kind, bytes)| {
            vec![escape::line(path).into_owned(), kind.to_owned(), bytes.to_string()]
        })
        .collect();
    match rows.is_empty() {
        true => "no files\n".to_owned(),
        false => format!("{}\n", table::aligned(&["path", "type", "bytes"], rows, 2, width)),
    }
}

/// Escapes output for a terminal, piece by piece: a character may be cut between two pieces.
#[derive(Debug, Default)]
struct TerminalText {
    /// The beginning of a character.
    cut: Vec<u8>,
}

impl TerminalText {
    fn escaped(&mut self, piece: &[u8]) -> String {
        let mut bytes = std::mem::take(&mut self.cut);
        bytes.extend_from_slice(piece);
        let mut text = String::with_capacity(bytes.len());
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            let may_continue = chunks.peek().is_none() && is_cut_character(invalid);
            if may_continue {
                self.cut = invalid.to_vec();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        escape::block(&text).into_owned()
    }

    /// The rest, at the end.
    fn rest(&mut self) -> String {
        let is_cut = !std::mem::take(&mut self.cut).is_empty();
        if is_cut { char::REPLACEMENT_CHARACTER.to_string() } else { String::new() }
    }
}

/// Whether bytes are the beginning of a character that more bytes could complete.
fn is_cut_character(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn printed(pieces: &[&[u8]]) -> String {
        let mut terminal = TerminalText::default();
        let mut text: String = pieces.iter().map(|piece| terminal.escaped(piece)).collect();
        text.push_str(&terminal.rest());
        text
    }

    #[test]
    fn output_for_terminal_is_escaped_and_characters_stay_whole() {
        assert_eq!(printed(&[b"a\x1b[2J", b"b\n"]), "a\\x1b[2Jb\n");
        assert_eq!(printed(&["é日".as_bytes()]), "é日");
        assert_eq!(printed(&[b"\xe6\x97", b"\xa5!"]), "日!");
        assert_eq!(printed(&[b"x\xff", b"y\xe6"]), "x\u{fffd}y\u{fffd}");
    }

    proptest! {
        #[test]
        fn escaped_output_does_not_depend_on_pieces(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
            text in any::<String>(),
            at in any::<proptest::sample::Index>(),
        ) {
            for whole in [bytes, text.into_bytes()] {
                let at = at.index(whole.len() + 1);
                let (first, second) = whole.split_at(at);
                prop_assert_eq!(printed(&[first, second]), printed(&[&whole]));
            }
        }
    }
}
