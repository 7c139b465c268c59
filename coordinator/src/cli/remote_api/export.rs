//! `export` of a run on a server: the server makes the export, and its files are put in their place
//! here.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum as _;
use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;
use rollout_store::archive::{self, ArchiveLimits, ArchiveReport};
use tempfile::TempDir;
use ureq::Body;
use ureq::http::{HeaderMap, Response};

use super::client::RunUrl;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::results::export::{ExportFormat, ExportSummary};

/// Bytes of a piece.
const PIECE_BYTES: usize = 64 * 1024;

/// Limits of an archive: none, as for an export of a run on this host.
const NO_LIMITS: ArchiveLimits = ArchiveLimits { entries: u64::MAX, bytes: u64::MAX };

/// Exports a run to `out`, or to standard output.
///
/// # Errors
/// [`CliError`]; `out` is then unchanged.
pub(in crate::cli) async fn export(
    run: RunUrl,
    format: ExportFormat,
    min_reward: Option<f64>,
    out: Option<PathBuf>,
    printer: &Printer,
) -> Result<ExportSummary, CliError> {
    if let Some(path) = &out {
        check_place(format, path)?;
    }
    let asked = run.clone();
    let name = format.to_possible_value().map(|value| value.get_name().to_owned());
    let least = min_reward.map(|reward| format!("&min_reward={reward}")).unwrap_or_default();
    let path = run.path(&format!("/export?format={}{least}", name.unwrap_or_default()));
    let answer = supervise::blocking(move || asked.server.stream(&path)).await?;
    let summary = summary(answer.headers());
    let path = match out {
        None => {
            let text = supervise::blocking(move || text(answer)).await?;
            printer.bytes(&text)?;
            None
        }
        Some(out) if is_directory(format) => Some(directory(answer, format, out).await?),
        Some(out) => Some(supervise::blocking(move || file(answer, out)).await?),
    };
    Ok(ExportSummary { path, ..summary })
}

const fn is_directory(format: ExportFormat) -> bool {
    matches!(format, ExportFormat::Harbor) || format.is_new_directory()
}

/// Refuses a place that has something else, before the server makes the export.
fn check_place(format: ExportFormat, out: &Path) -> Result<(), CliError> {
    let is_taken = match format {
        ExportFormat::Harbor => out.exists() && !out.is_dir(),
        ExportFormat::Tables | ExportFormat::Atif => {
            let mut entries = out.read_dir().into_iter().flatten();
            entries.next().is_some() || (out.exists() && !out.is_dir())
        }
        _ => out.exists(),
    };
    if is_taken { Err(taken(out)) } else { Ok(()) }
}

fn taken(out: &Path) -> CliError {
    CliError::usage(format!("cannot export the run: {} already exists", out.display()))
}

fn summary(headers: &HeaderMap) -> ExportSummary {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let count = |name: &str| text(name).and_then(|text| text.parse().ok()).unwrap_or_default();
    ExportSummary {
        path: None,
        trials: 0,
        missing: count("x-rollout-missing"),
        unplanned: count("x-rollout-unplanned"),
        keys_left_out: text("x-rollout-keys-left-out") == Some("true"),
        without_trajectory: count("x-rollout-without-trajectory"),
        below_reward: count("x-rollout-below-reward"),
        paths_left_out: count("x-rollout-paths-left-out"),
    }
}

/// Copies an answer to its end. Blocks.
fn copy(answer: Response<Body>, to: &mut dyn Write) -> Result<(), CliError> {
    let stated = answer.headers().get("content-length").and_then(|value| value.to_str().ok());
    let stated: Option<u64> = stated.and_then(|text| text.parse().ok());
    let broken = "cannot read the export to its end";
    let mut reader = answer.into_body().into_reader();
    let (mut piece, mut copied) = (vec![0; PIECE_BYTES], 0);
    loop {
        let read = reader.read(&mut piece);
        let read =
            read.map_err(|error| CliError::from_cause(ExitCode::OutOfReach, broken, &error))?;
        if read == 0 {
            break;
        }
        copied += read as u64;
        let written = to.write_all(&piece[..read]);
        written.map_err(|error| CliError::failure("cannot write the export", &error))?;
    }
    match stated {
        Some(stated) if stated != copied => Err(CliError::new(ExitCode::OutOfReach, broken)),
        _ => Ok(()),
    }
}

fn text(answer: Response<Body>) -> Result<Vec<u8>, CliError> {
    let mut text = Vec::new();
    copy(answer, &mut text)?;
    Ok(text)
}

/// Writes a file, whole or not at all. Blocks.
fn file(answer: Response<Body>, out: PathBuf) -> Result<PathBuf, CliError> {
    let failed = |error: &std::io::Error| {
        CliError::failure(format!("cannot write {}", out.display()), error)
    };
    // As a file that a program creates: the mask of the user applies.
    let mode = std::fs::Permissions::from_mode(0o666);
    let temporary = tempfile::Builder::new().permissions(mode).tempfile_in(parent(&out));
    let mut temporary = temporary.map_err(|error| failed(&error))?;
    copy(answer, &mut temporary)?;
    temporary.as_file().sync_all().map_err(|error| failed(&error))?;
    temporary.persist_noclobber(&out).map_err(|error| failed(&error.error))?;
    Ok(out)
}

/// Unpacks an archive beside its place, then puts it there.
async fn directory(
    answer: Response<Body>,
    format: ExportFormat,
    out: PathBuf,
) -> Result<PathBuf, CliError> {
    let place = out.clone();
    let (scratch, archive) = supervise::blocking(move || download(answer, format, &place)).await?;
    let unpacked = scratch.path().join("unpacked");
    std::fs::create_dir(&unpacked)
        .map_err(|error| CliError::failure("cannot unpack the export", &error))?;
    let archive = tokio::fs::File::from_std(archive);
    let report = archive::extract(archive, &unpacked, NO_LIMITS).await;
    let report = report.map_err(|error| CliError::failure("cannot unpack the export", &error))?;
    check_whole(&report)?;
    supervise::blocking(move || put(&unpacked, format, &out)).await
}

/// Downloads an archive to a directory on the disk of its place. Blocks.
fn download(
    answer: Response<Body>,
    format: ExportFormat,
    out: &Path,
) -> Result<(TempDir, File), CliError> {
    let failed = |error: std::io::Error| {
        CliError::failure(format!("cannot write in {}", out.display()), &error)
    };
    let beside = match format {
        ExportFormat::Harbor => {
            std::fs::create_dir_all(out).map_err(failed)?;
            out.to_owned()
        }
        _ => parent(out),
    };
    let scratch = tempfile::Builder::new().prefix(".tmp-export").tempdir_in(beside);
    let scratch = scratch.map_err(failed)?;
    let path = scratch.path().join("archive.tar");
    copy(answer, &mut File::create(&path).map_err(failed)?)?;
    let archive = File::open(&path).map_err(failed)?;
    Ok((scratch, archive))
}

/// The server packs files and directories only.
fn check_whole(report: &ArchiveReport) -> Result<(), CliError> {
    if report.cut.is_none() && report.skipped == Default::default() {
        return Ok(());
    }
    Err(CliError::new(ExitCode::Failure, "cannot unpack the export: its archive is damaged"))
}

/// Moves what was unpacked to its place. Blocks.
fn put(unpacked: &Path, format: ExportFormat, out: &Path) -> Result<PathBuf, CliError> {
    let failed = |error: std::io::Error| {
        CliError::failure(format!("cannot write {}", out.display()), &error)
    };
    if format != ExportFormat::Harbor {
        // An empty directory is replaced.
        std::fs::rename(unpacked, out).map_err(failed)?;
        return Ok(out.to_owned());
    }
    let mut entries = unpacked.read_dir().map_err(failed)?.flatten();
    let job = entries.next().filter(|_| entries.next().is_none());
    let job = job.ok_or_else(|| {
        CliError::new(ExitCode::Failure, "cannot unpack the export: it is no job directory")
    })?;
    let place = out.join(job.file_name());
    if place.exists() {
        return Err(taken(&place));
    }
    std::fs::rename(job.path(), &place).map_err(failed)?;
    Ok(place)
}

/// The directory of a path.
fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
