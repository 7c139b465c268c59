//! Submission of a job: its datasets by digest, only those that the server lacks, then its document.

use std::fs::File;
use std::path::Path;

use rollout_protocol::exit::ExitCode;
use rollout_worker::archive::{self, ArchiveLimits, FilterDecision};
use rollout_worker::supervise;
use serde_json::{Value, json};

use super::client::{ApiServerClient, RunUrl};
use super::follow;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::config::{DatasetSource, Job, RegistryRef, TaskSource, job_document};

/// Submits a job, and follows its run unless `detach` is set.
///
/// # Errors
/// [`CliError`].
pub(in crate::cli) async fn run(
    server: ApiServerClient,
    job: Job,
    detach: bool,
    json: bool,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let submitting = server.clone();
    let run = supervise::blocking(move || submit(&submitting, &job)).await?;
    let id = run["id"].as_str().unwrap_or_default().to_owned();
    let url = server.run_url(&id);
    if json {
        printer.data(&format!("{run}\n"))?;
    } else {
        printer.data(&format!("submitted {url}\n"))?;
    }
    if detach {
        return Ok(ExitCode::Success);
    }
    follow::follow(RunUrl { server, id }, json, printer).await
}

/// Uploads and submits. Blocks.
fn submit(server: &ApiServerClient, job: &Job) -> Result<Value, CliError> {
    let mut document = job_document(job);
    if let Value::Object(fields) = &mut document {
        fields.remove("jobs_dir");
    }
    for (at, dataset) in job.datasets.iter().enumerate() {
        match &dataset.source {
            DatasetSource::Path(path) => {
                let name = upload(server, &job.base_dir().join(path))?;
                document["datasets"][at]["path"] = json!(name);
            }
            DatasetSource::Registry(RegistryRef::Path(path)) => {
                let what = format!("cannot send the registry {} to the server", path.display());
                return Err(CliError::refused(what).hint("name it by its URL"));
            }
            DatasetSource::Registry(RegistryRef::Url(_)) | DatasetSource::Repository { .. } => {}
        }
    }
    for (at, task) in job.tasks.iter().enumerate() {
        if let TaskSource::Path(path) = &task.source {
            document["tasks"][at]["path"] = json!(upload(server, &job.base_dir().join(path))?);
        }
    }
    let submission = json!({ "document": document, "name": job.name });
    server.post("/v1/runs", &submission)
}

/// Uploads a directory, below its own name, unless the server has it. Returns its name in documents.
/// Blocks.
fn upload(server: &ApiServerClient, directory: &Path) -> Result<String, CliError> {
    let what = || format!("cannot pack {}", directory.display());
    let failed = |error: std::io::Error| CliError::failure(what(), &error);
    let full = directory.canonicalize().map_err(failed)?;
    let (Some(parent), Some(own)) = (full.parent(), full.file_name()) else {
        return Err(CliError::refused(format!("{}: it has no name", what())));
    };
    let scratch = tempfile::tempdir().map_err(failed)?;
    let archive = scratch.path().join("dataset.tar");
    let filter = |path: &Path, _is_dir: bool| {
        let is_inside = path.components().next().is_some_and(|first| first.as_os_str() == own);
        let is_git = path.file_name().is_some_and(|name| name == ".git");
        if is_inside && !is_git { FilterDecision::Include } else { FilterDecision::Exclude }
    };
    let packed = archive::pack(parent, &archive, ArchiveLimits::BUNDLE, &filter)
        .map_err(|error| CliError::config(what(), &error))?;
    let hex = packed.digest.hex();
    let path = format!("/v1/datasets/{hex}");
    if server.get(&path).is_err() {
        let mut file = File::open(&archive).map_err(failed)?;
        server.put(&path, packed.size_bytes, &mut file)?;
    }
    Ok(format!("dataset:{hex}/{}", own.to_string_lossy()))
}
