//! Submission of a job: its datasets by digest, only those that the server lacks, then its document.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;
use rollout_store::archive::{self, ArchiveLimits, FilterDecision, PackedArchive};
use serde_json::{Value, json};

use super::client::{ApiServerClient, RunUrl};
use super::follow::{self, FollowedRun};
use super::options::check_jobs_dir;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::config::{DatasetSource, Job, RegistryRef, TaskSource, job_document};
use crate::events::{JobFacts, MaterializeMode, never_stopped};
use crate::launch::facts::dataset_facts;
use crate::plan::PreparedJob;
use crate::results::metrics::AgentTotal;
use crate::sources::datasets::{Dataset, UploadEntries, checked_out_commit};

/// A job for a server, and how its run is followed.
pub(in crate::cli) struct ServerSubmission {
    /// The server.
    pub(in crate::cli) server: ApiServerClient,
    /// The job, with its datasets as they are on this host.
    pub(in crate::cli) prepared: PreparedJob,
    /// Whether the command ends after the submission.
    pub(in crate::cli) detach: bool,
    /// Whether it prints lines of JSON.
    pub(in crate::cli) json: bool,
    /// Least pass rate.
    pub(in crate::cli) fail_under: Option<f64>,
}

/// Refuses a job of which a server would not take all.
///
/// # Errors
/// The key or the source by name.
pub(in crate::cli) fn check_job(job: &Job) -> Result<(), CliError> {
    check_jobs_dir(&job.jobs_dir)?;
    check_sources(job)
}

/// Submits a job that [`check_job`] passed, and follows its run unless it is detached.
///
/// # Errors
/// [`CliError`].
pub(in crate::cli) async fn run(
    run: ServerSubmission,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let ServerSubmission { server, prepared, detach, json, fail_under } = run;
    let commits: Vec<_> = prepared.datasets.iter().map(common_commit).collect();
    for (dataset, commit) in prepared.datasets.iter().zip(&commits) {
        if commit.is_none() && dataset.tasks.iter().any(|task| task.git_commit_id.is_some()) {
            printer.warning(&format!(
                "the tasks of `{}` are of different commits: their results name none",
                dataset.name
            ));
        }
    }
    let facts = facts(&prepared);
    let (submitting, job) = (server.clone(), prepared.job);
    let run = supervise::blocking(move || submit(&submitting, &job, &commits)).await?;
    let id = run["id"].as_str().unwrap_or_default().to_owned();
    let url = server.run_url(&id);
    if json {
        printer.data(&format!("{run}\n"))?;
    } else if !printer.is_quiet() || detach {
        printer.data(&format!("submitted {url}\n"))?;
    }
    if detach {
        return Ok(ExitCode::Success);
    }
    let following = FollowedRun { run: RunUrl { server, id }, facts, json, fail_under };
    follow::follow(following, printer).await
}

/// Refuses sources of tasks that cannot be sent.
fn check_sources(job: &Job) -> Result<(), CliError> {
    for dataset in &job.datasets {
        if let DatasetSource::Registry(RegistryRef::Path(path)) = &dataset.source {
            let what = format!("cannot send the registry {} to the server", path.display());
            return Err(CliError::refused(what).hint("name it by its URL"));
        }
    }
    Ok(())
}

/// The commit of all tasks of a dataset, if it is one.
fn common_commit(dataset: &Dataset) -> Option<String> {
    let mut commits = dataset.tasks.iter().map(|task| task.git_commit_id.as_ref());
    let first = commits.next().flatten()?;
    commits.all(|commit| commit == Some(first)).then(|| first.clone())
}

/// The facts for the summary.
fn facts(prepared: &PreparedJob) -> JobFacts {
    let (job, datasets) = (&prepared.job, &prepared.datasets);
    let tasks: usize = datasets.iter().map(|dataset| dataset.tasks.len()).sum();
    let total = tasks as u64 * u64::from(job.n_attempts);
    let agents = job.agents.iter().map(|agent| agent.spec.name.clone());
    JobFacts {
        run_dir: job.run_dir(),
        agents: agents.map(|name| AgentTotal { name, total }).collect(),
        metrics: job.metrics.clone(),
        guardrails: job.guardrails.clone(),
        materialize: MaterializeMode::None,
        config: Value::Null,
        store: None,
        datasets: dataset_facts(job, datasets, &[]),
        tasks: Arc::default(),
        invocation: None,
        stopped_at_once: never_stopped(),
    }
}

/// Uploads and submits. `commits` are those of the datasets, of which the one of single tasks is the
/// last. Blocks.
fn submit(
    server: &ApiServerClient,
    job: &Job,
    commits: &[Option<String>],
) -> Result<Value, CliError> {
    let mut document = job_document(job);
    if let Value::Object(fields) = &mut document {
        fields.remove("jobs_dir");
    }
    for (at, dataset) in job.datasets.iter().enumerate() {
        if let DatasetSource::Path(path) = &dataset.source {
            let name = upload(server, &job.base_dir().join(path))?;
            document["datasets"][at]["path"] = json!(name);
            if let Some(commit) = commits.get(at).and_then(Option::as_ref) {
                document["datasets"][at]["git_commit_id"] = json!(commit);
            }
        }
    }
    for (at, task) in job.tasks.iter().enumerate() {
        if let TaskSource::Path(path) = &task.source {
            let directory = job.base_dir().join(path);
            document["tasks"][at]["path"] = json!(upload(server, &directory)?);
            if let Some(commit) = task.commit.clone().or_else(|| checked_out_commit(&directory)) {
                document["tasks"][at]["git_commit_id"] = json!(commit);
            }
        }
    }
    let submission = json!({ "document": document, "name": job.name });
    server.post("/v1/runs", &submission)
}

/// Uploads a directory, below its own name, unless the server has it. Returns its name in documents.
/// Blocks.
fn upload(server: &ApiServerClient, directory: &Path) -> Result<String, CliError> {
    let failed = |error: std::io::Error| CliError::failure(cannot_pack(directory), &error);
    let scratch = tempfile::tempdir().map_err(failed)?;
    let archive = scratch.path().join("dataset.tar");
    let (packed, own) = pack(directory, &archive)?;
    let hex = packed.digest.hex();
    let path = format!("/v1/datasets/{hex}");
    if !server.has(&path)? {
        let mut file = File::open(&archive).map_err(failed)?;
        server.put(&path, packed.size_bytes, &mut file)?;
    }
    Ok(format!("dataset:{hex}/{}", own.to_string_lossy()))
}

fn cannot_pack(directory: &Path) -> String {
    format!("cannot pack {}", directory.display())
}

/// Packs what a run of its tasks reads of a directory, below its own name, which is returned. The
/// Python client decides alike. Blocks.
fn pack(directory: &Path, archive: &Path) -> Result<(PackedArchive, OsString), CliError> {
    let what = || cannot_pack(directory);
    let full = directory.canonicalize().map_err(|error| CliError::failure(what(), &error))?;
    let (Some(parent), Some(own)) = (full.parent(), full.file_name()) else {
        return Err(CliError::refused(format!("{}: it has no name", what())));
    };
    let entries = UploadEntries::of(&full).map_err(|error| CliError::config(what(), &error))?;
    let filter = |path: &Path, is_dir: bool| match path.strip_prefix(own) {
        Ok(inner) if entries.include(inner, is_dir) => FilterDecision::Include,
        _ => FilterDecision::Exclude,
    };
    let packed = archive::pack(parent, archive, ArchiveLimits::BUNDLE, &filter)
        .map_err(|error| CliError::config(what(), &error))?;
    Ok((packed, own.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The archive of a tree that the tests of the Python client pack, too.
    #[test]
    fn archive_has_digest_of_python_client() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};

        let parent = tempfile::tempdir().expect("a directory");
        let tasks = parent.path().join("tasks");
        for dir in ["t/tests", "t-x"] {
            std::fs::create_dir_all(tasks.join(dir)).expect("made");
        }
        std::fs::write(tasks.join("t/task.toml"), "version = '1.0'\n").expect("written");
        let script = tasks.join("t/tests/test.sh");
        std::fs::write(&script, "true\n").expect("written");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&script, mode).expect("changed");
        symlink("test.sh", tasks.join("t/tests").join("long".repeat(40))).expect("linked");
        // A run does not read them.
        std::fs::write(tasks.join("t/NOTES.md"), "notes\n").expect("written");
        std::fs::write(tasks.join("README.md"), "tasks\n").expect("written");
        let (packed, own) = pack(&tasks, &parent.path().join("tasks.tar")).expect("packed");
        assert_eq!(own, "tasks");
        let known = "54d571ecd0679010b10535972b4aa8f4b1435e0e6f7c23207f458a6a9ef9b626";
        assert_eq!(packed.digest.hex(), known);
    }

    /// The tests of the Python client pack the same tree.
    #[test]
    fn archive_without_ignored_files_has_digest_of_python_client() {
        let document = include_str!("../../../../tests/fixtures/harborignore.json");
        let document: Value = serde_json::from_str(document).expect("JSON");
        let upload = &document["upload"];
        let parent = tempfile::tempdir().expect("a directory");
        let tasks = parent.path().join("tasks");
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        for (file, content) in upload["files"].as_object().expect("files") {
            let path = tasks.join(file);
            std::fs::create_dir_all(path.parent().expect("below the tasks")).expect("made");
            std::fs::write(path, text(content)).expect("written");
        }
        for (link, target) in upload["links"].as_object().expect("links") {
            std::os::unix::fs::symlink(text(target), tasks.join(link)).expect("linked");
        }
        let (packed, _) = pack(&tasks, &parent.path().join("tasks.tar")).expect("packed");
        assert_eq!(packed.digest.hex(), text(&upload["digest"]));
    }
}
