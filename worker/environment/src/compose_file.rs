//! The description of services that a task or a job gives.

use std::path::PathBuf;

/// A description of services in the Docker Compose format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComposeFile {
    /// The unpacked build context. Also set if the environment's own image is named.
    pub dir: PathBuf,
    /// The task's file, relative to it; none if the services are those of the job alone.
    pub file: Option<PathBuf>,
    /// Texts of files of the job, which are merged onto the task's in this order. Paths in them are
    /// relative to the build context.
    pub overlays: Vec<String>,
}

impl ComposeFile {
    /// The file of a task alone.
    pub fn of_task(dir: impl Into<PathBuf>, file: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), file: Some(file.into()), overlays: Vec::new() }
    }

    /// Its name in messages.
    pub fn name(&self) -> String {
        match &self.file {
            Some(file) => file.display().to_string(),
            None => "the compose files of the job".to_owned(),
        }
    }
}

/// Why a text is no compose file; `None` if it is one as far as that is known without a task.
pub fn compose_fault(text: &str) -> Option<String> {
    match super::compose::parse(text) {
        Ok(serde_json::Value::Object(_)) => None,
        Ok(_) => Some("it is not a map".to_owned()),
        Err(why) => Some(why),
    }
}
