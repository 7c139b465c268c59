//! `rollout blob`: single blobs of a store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::exit::ExitCode;
use rollout_store::{BlobStore, StoreError};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use super::error::CliError;
use super::output::Printer;
use super::store_url;
use crate::workloads::blobs::{
    BlobProblem, VerificationReport, digest_found, marks_of_run, verify_all, verify_digests,
};

/// Buffer for a blob that is printed.
const BUFFER_BYTES: usize = 256 * 1024;

/// Subcommands of `rollout blob`.
#[derive(Debug, Subcommand)]
pub(super) enum BlobCommand {
    Get(BlobGetArgs),
    Stat(BlobStatArgs),
    Verify(BlobVerifyArgs),
}

/// Write the content of a blob to standard output or a file
///
/// The content is compared with the digest. A file appears whole or not at all. Standard output is
/// written while the blob is read: with exit code 8 the blob is damaged, and the output is useless.
#[derive(Debug, Args)]
pub(super) struct BlobGetArgs {
    /// Digest: `sha256:…`, `cas://sha256:…` or 64 hexadecimal digits
    #[arg(value_parser = digest)]
    digest: Digest,

    #[command(flatten)]
    place: StorePlaceArgs,

    /// New file to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Show whether a blob is in a store, and its size
///
/// The content is not read: a damaged blob is one that was found damaged before. Exits with 1 when
/// the blob is absent, with 8 when it is damaged.
#[derive(Debug, Args)]
pub(super) struct BlobStatArgs {
    /// Digest: `sha256:…`, `cas://sha256:…` or 64 hexadecimal digits
    #[arg(value_parser = digest)]
    digest: Digest,

    #[command(flatten)]
    place: StorePlaceArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Read blobs and compare them with their digests
///
/// Without digests all blobs of the store are read, or with `--run` those that the run names.
/// Damaged blobs are moved aside, so that their content can be stored again. Exits with 8 when a
/// blob is damaged, or one that was asked for is missing.
#[derive(Debug, Args)]
pub(super) struct BlobVerifyArgs {
    /// Digests: `sha256:…`, `cas://sha256:…` or 64 hexadecimal digits [default: all]
    #[arg(value_name = "DIGEST", value_parser = digest)]
    digests: Vec<Digest>,

    #[command(flatten)]
    place: StorePlaceArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The store of the blobs.
#[derive(Debug, Args)]
struct StorePlaceArgs {
    /// Blob store: a directory, or `s3://bucket/prefix?endpoint=URL`
    #[arg(long, value_name = "URL", required_unless_present = "run")]
    store: Option<String>,

    /// Directory of a run or search, to use its store
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
}

impl StorePlaceArgs {
    async fn open(&self) -> Result<Arc<dyn BlobStore>, CliError> {
        match (&self.store, &self.run) {
            (store, Some(run_dir)) => store_url::open_for_run(store.as_deref(), run_dir).await,
            (store, None) => {
                let named = store.as_deref().unwrap_or_default();
                store_url::open_named(&store_url::parse(named)?).await
            }
        }
    }
}

impl BlobCommand {
    /// Runs the command.
    pub(super) async fn run(self, printer: &Printer) -> Result<ExitCode, CliError> {
        match self {
            Self::Get(args) => get(args, printer).await,
            Self::Stat(args) => stat(args, printer).await,
            Self::Verify(args) => verify(args, printer).await,
        }
    }
}

/// A digest in any of its forms.
fn digest(text: &str) -> Result<Digest, String> {
    let digest = text.strip_prefix("cas://").unwrap_or(text);
    let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
    format!("sha256:{hex}").parse().map_err(|_| {
        "expected `sha256:` and 64 lower-case hexadecimal digits, or the digits alone".to_owned()
    })
}

async fn get(args: BlobGetArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let store = args.place.open().await?;
    match &args.output {
        Some(file) => write_file(&*store, &args.digest, file).await?,
        None => print(&*store, &args.digest, printer).await?,
    }
    Ok(ExitCode::Success)
}

async fn write_file(store: &dyn BlobStore, digest: &Digest, file: &Path) -> Result<(), CliError> {
    if file.symlink_metadata().is_ok() {
        return Err(CliError::usage(format!("cannot write {}: it exists", file.display())));
    }
    store.get_file(digest, file).await.map_err(from_read)
}

/// Prints a blob while it is read. A reader that goes away ends it.
async fn print(store: &dyn BlobStore, digest: &Digest, printer: &Printer) -> Result<(), CliError> {
    let mut reader = store.get(digest).await.map_err(from_read)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match reader.read(&mut buffer).await {
            Ok(0) => return Ok(()),
            Ok(read) => {
                if !printer.bytes(&buffer[..read])? {
                    return Ok(());
                }
            }
            Err(error) => {
                let is_damaged = digest_found(&error).is_some();
                let code = if is_damaged { ExitCode::RunDamaged } else { ExitCode::Failure };
                return Err(CliError::from_cause(code, "cannot read the blob", &error));
            }
        }
    }
}

/// The error of reading a blob; a damaged one has a code of its own.
fn from_read(error: StoreError) -> CliError {
    match &error {
        StoreError::Corrupt { .. } => CliError::new(ExitCode::RunDamaged, error.to_string()),
        StoreError::Missing { .. } => CliError::new(ExitCode::Failure, error.to_string()),
        StoreError::Io { .. } | StoreError::DiskFull { .. } => {
            CliError::failure("cannot get the blob", &error)
        }
        _ => error.into(),
    }
}

async fn stat(args: BlobStatArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let store = args.place.open().await?;
    let digest = &args.digest;
    let found = store.stat_blob(digest).await?;
    // Only the error of a read tells a blob that was moved aside from one that was never stored.
    let is_damaged = match found {
        Some(_) => false,
        None => matches!(store.get(digest).await, Err(StoreError::Corrupt { .. })),
    };
    let stored = found.map(|found| {
        let time = Timestamp::try_from(found.modified).unwrap_or(Timestamp::UNIX_EPOCH);
        (found.size_bytes, format!("{time:.0}"))
    });
    let text = if args.json {
        json!({
            "digest": digest,
            "present": stored.is_some(),
            "damaged": is_damaged,
            "size_bytes": stored.as_ref().map(|(size_bytes, _)| size_bytes),
            "stored_at": stored.as_ref().map(|(_, time)| time),
        })
        .to_string()
    } else {
        match &stored {
            Some((size_bytes, time)) => format!("{digest}: {size_bytes} bytes, stored {time}"),
            None if is_damaged => format!("{digest}: damaged"),
            None => format!("{digest}: not in the store"),
        }
    };
    printer.data(&format!("{text}\n"))?;
    Ok(match (stored, is_damaged) {
        (Some(_), _) => ExitCode::Success,
        (None, true) => ExitCode::RunDamaged,
        (None, false) => ExitCode::Failure,
    })
}

async fn verify(args: BlobVerifyArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let store = args.place.open().await?;
    let report = match (&args.place.run, args.digests.is_empty()) {
        (_, false) => {
            let digests = args.digests.iter().map(|digest| (*digest, true)).collect();
            verify_digests(&store, digests).await?
        }
        (Some(run_dir), true) => {
            let marks = marks_of_run(&*store, run_dir).await?;
            verify_digests(&store, marks.into_sorted()).await?
        }
        (None, true) => verify_all(&store).await?,
    };
    printer.data(&match args.json {
        true => format!("{}\n", document(&report)),
        false => lines(&report),
    })?;
    Ok(if report.problems.is_empty() { ExitCode::Success } else { ExitCode::RunDamaged })
}

fn lines(report: &VerificationReport) -> String {
    let mut text = String::new();
    for problem in &report.problems {
        text.push_str(&match problem {
            BlobProblem::Missing { digest } => format!("{digest}: missing\n"),
            BlobProblem::Damaged { digest, found, size_bytes: Some(size_bytes) } => {
                format!("{digest}: damaged, its {size_bytes} bytes have the digest {found}\n")
            }
            BlobProblem::Damaged { digest, found, size_bytes: None } => {
                format!("{digest}: damaged and moved aside before, with the digest {found}\n")
            }
        });
    }
    let VerificationReport { blobs, bytes, problems } = report;
    let problems = problems.len();
    text.push_str(&format!("{blobs} blobs verified, {bytes} bytes read, {problems} problems\n"));
    text
}

fn document(report: &VerificationReport) -> Value {
    let problems = report.problems.iter().map(|problem| match problem {
        BlobProblem::Missing { digest } => json!({"digest": digest, "problem": "missing"}),
        BlobProblem::Damaged { digest, found, size_bytes } => json!({
            "digest": digest,
            "problem": "damaged",
            "found": found,
            "size_bytes": size_bytes,
        }),
    });
    json!({
        "blobs": report.blobs,
        "bytes": report.bytes,
        "problems": problems.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_parsed_in_every_form() {
        let expected = Digest::sha256(b"content");
        for text in [expected.to_string(), expected.hex(), format!("cas://{expected}")] {
            assert_eq!(digest(&text), Ok(expected), "{text}");
        }
        for bad in ["", "sha256:", "cas://", &expected.hex()[1..], "sha512:00"] {
            assert!(digest(bad).is_err(), "{bad}");
        }
    }
}
