//! Output of trials that run: from the files of their executions on this host, or from their workers
//! over NATS, which send output only in answer to a request.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
#[cfg(feature = "nats")]
use std::time::Duration;

use rollout_base::supervise;
use rollout_protocol::id::{ExecId, ItemId, RunId};
use rollout_protocol::record::ExecutionEnd;
use rollout_protocol::wire::output::{OutputCursor, OutputPiece};
#[cfg(feature = "nats")]
use rollout_queue::nats::{ConnectError, Nats};
#[cfg(feature = "nats")]
use rollout_queue::traits::QueueError;
use rollout_worker::executor::read_output;

use crate::results::view::TrialDetail;

/// Longest wait for an answer: without a worker that runs the trial there is none.
#[cfg(feature = "nats")]
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Where the trials of a run run.
#[derive(Debug, Clone)]
pub enum LiveOutputSource {
    /// In the process of the run's owner, which has this directory of its workers.
    ThisHost(PathBuf),
    /// On the workers of a server.
    #[cfg(feature = "nats")]
    Workers(Nats),
}

/// A trial whose output is read while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunningTrial {
    /// Run.
    pub run: RunId,
    /// Trial.
    pub item: ItemId,
    /// The execution that runs, according to the journal of the run.
    pub exec: Option<ExecId>,
}

/// New output of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivePiece {
    /// The execution that wrote it.
    pub exec: ExecId,
    /// Path of the file below the trial's directory.
    pub path: String,
    /// The text. Bytes that are not UTF-8 are replaced.
    pub text: String,
}

/// Why the output of a trial that runs cannot be read now.
#[derive(Debug, thiserror::Error)]
pub enum LiveOutputError {
    /// A file of its execution cannot be read.
    #[error("cannot read the output of the execution: {0}")]
    File(#[from] io::Error),
    /// The server cannot be connected.
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The worker cannot be asked.
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// Reads the output of one trial, over all its executions.
#[derive(Debug, Default)]
pub struct LiveOutput {
    /// Position in the output of an execution.
    position: Option<(ExecId, OutputCursor)>,
    /// Bytes of each file that were read, by execution.
    read: HashMap<(ExecId, String), u64>,
}

impl RunningTrial {
    /// A trial of a run, with its newest execution that has not ended.
    pub fn new(run: RunId, detail: &TrialDetail) -> Self {
        let mut executions = detail.executions.iter().rev().map(|view| &view.execution);
        let open = executions.find(|execution| execution.end == ExecutionEnd::Open);
        Self { run, item: detail.row.item, exec: open.map(|execution| execution.exec) }
    }
}

impl LiveOutput {
    /// The next piece of output; `None` if there is nothing new, or no execution runs.
    ///
    /// # Errors
    /// [`LiveOutputError`]. The same call may succeed later.
    pub async fn next_piece(
        &mut self,
        source: &LiveOutputSource,
        trial: RunningTrial,
    ) -> Result<Option<LivePiece>, LiveOutputError> {
        let found = match source {
            LiveOutputSource::ThisHost(workers) => self.of_file(workers, trial).await?,
            #[cfg(feature = "nats")]
            LiveOutputSource::Workers(nats) => self.of_worker(nats, trial).await?,
        };
        Ok(found.map(|(exec, piece)| self.note(exec, piece)))
    }

    /// Bytes of a file that were read while its execution ran.
    pub fn bytes_read(&self, exec: ExecId, path: &str) -> u64 {
        self.read.get(&(exec, path.to_owned())).copied().unwrap_or_default()
    }

    async fn of_file(
        &self,
        workers: &Path,
        trial: RunningTrial,
    ) -> Result<Option<(ExecId, OutputPiece)>, LiveOutputError> {
        let Some(exec) = trial.exec else { return Ok(None) };
        let known = self.position.as_ref().filter(|(known, _)| *known == exec);
        let after = known.map(|(_, position)| position.clone()).unwrap_or_default();
        let workers = workers.to_owned();
        let read = supervise::blocking(move || {
            scratch_of(&workers, exec)
                .map_or(Ok(None), |scratch| read_output(&scratch, &after, None))
        });
        Ok(read.await?.map(|piece| (exec, piece)))
    }

    #[cfg(feature = "nats")]
    async fn of_worker(
        &self,
        nats: &Nats,
        trial: RunningTrial,
    ) -> Result<Option<(ExecId, OutputPiece)>, LiveOutputError> {
        use rollout_protocol::wire::output::OutputRequest;

        let (exec, output_after) = match self.position.clone() {
            Some((exec, position)) => (Some(exec), position),
            None => (None, OutputCursor::default()),
        };
        let request = OutputRequest {
            run: trial.run,
            item: trial.item,
            exec,
            output_after,
            max_bytes: nats.output_bytes(),
        };
        // A worker that died does not answer. Another one may run the trial later.
        let answer = nats.trial_output(&request, ANSWER_LIMIT).await?;
        Ok(answer.and_then(|answer| Some((answer.exec, answer.piece?))))
    }

    fn note(&mut self, exec: ExecId, piece: OutputPiece) -> LivePiece {
        let OutputPiece { path, text, next } = piece;
        let stream = usize::from(path.ends_with("stderr.txt"));
        self.read.insert((exec, path.clone()), next.offsets[stream]);
        self.position = Some((exec, next));
        LivePiece { exec, path, text }
    }
}

/// The files of a trial whose output is shown, with a header before each.
#[derive(Debug, Default)]
pub struct ShownOutput {
    /// Name of an output, or of a directory of outputs; all are shown without one.
    name: Option<String>,
    /// The file that was shown last.
    last: Option<(ExecId, String)>,
}

impl ShownOutput {
    /// Shows the files with a name, or all.
    pub fn new(name: Option<&str>) -> Self {
        let name = name.map(|name| name.trim_end_matches('/').to_owned());
        Self { name, last: None }
    }

    /// Whether a file is, or is in, the one that is shown.
    pub fn is_wanted(&self, path: &str) -> bool {
        let Some(name) = &self.name else { return true };
        path.strip_prefix(&**name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The header before text of a file, whose path is shown as `label`; `None` if the last text was
    /// of this file.
    pub fn header(&mut self, exec: ExecId, path: &str, label: &str) -> Option<String> {
        let is_last = |(last, name): &(ExecId, String)| *last == exec && name == path;
        if self.last.as_ref().is_some_and(is_last) {
            return None;
        }
        let gap = if self.last.is_some() { "\n" } else { "" };
        self.last = Some((exec, path.to_owned()));
        Some(format!("{gap}==> {label} (execution {exec}) <==\n"))
    }
}

/// Whether a captured file is the output of a script: documents and events of a harness are none.
pub fn is_output(path: &str) -> bool {
    path.ends_with("/stdout.txt") || path.ends_with("/stderr.txt")
}

/// The scratch directory of an execution below a directory of workers.
fn scratch_of(workers: &Path, exec: ExecId) -> Option<PathBuf> {
    let workers = std::fs::read_dir(workers).ok()?;
    let scratches = workers.flatten().map(|worker| worker.path().join("scratch"));
    scratches.map(|scratch| scratch.join(exec.to_string())).find(|scratch| scratch.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_comes_once_before_the_text_of_a_file() {
        let (a, b) = (ExecId::from_bytes([1; 16]), ExecId::from_bytes([2; 16]));
        let mut shown = ShownOutput::new(None);
        let first = shown.header(a, "command/stdout.txt", "label").expect("a header");
        assert_eq!(first, format!("==> label (execution {a}) <==\n"));
        assert_eq!(shown.header(a, "command/stdout.txt", "label"), None);
        let other = shown.header(b, "command/stdout.txt", "label").expect("another execution");
        assert!(other.starts_with("\n==> "), "{other}");
    }

    #[test]
    fn name_selects_a_file_or_a_directory() {
        let shown = ShownOutput::new(Some("command/"));
        assert!(shown.is_wanted("command/stdout.txt") && shown.is_wanted("command"));
        assert!(!shown.is_wanted("commands/stdout.txt") && !shown.is_wanted("setup/stdout.txt"));
    }
}
