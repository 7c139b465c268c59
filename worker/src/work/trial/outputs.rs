//! Output files of an execution, for its record.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_base::secrets::Redactor;
use rollout_base::shortage::Shortage;
use rollout_base::supervise;
use rollout_protocol::limits;

use crate::executor::errors::ScriptStage;
use crate::executor::{
    self, BUILD_LOG, BuildLog, Capture, CaptureList, CapturedStream, ExecutionContext, RecordFile,
    ScratchWork,
};

/// Prefix of the paths of a step's files, below the trial's directory: `steps/<name>/` for a step
/// with a name, otherwise empty.
pub(super) fn step_prefix(step: Option<&str>) -> String {
    step.map_or_else(String::new, |name| format!("steps/{name}/"))
}

/// The captured output of a trial's scripts.
#[derive(Debug)]
pub(super) struct TrialOutputs {
    scratch: PathBuf,
    scratch_work: ScratchWork,
    list: CaptureList,
    /// Captures in progress, each with its directory.
    captures: Vec<(ScriptStage, Cow<'static, str>, Arc<Capture>)>,
    /// The log of an image build.
    pub(super) build_log: BuildLog,
}

/// All captured output.
#[derive(Debug, Default)]
pub(super) struct FinishedOutputs {
    pub(super) files: Vec<RecordFile>,
    pub(super) verifier_stdout: Option<String>,
    pub(super) verifier_stderr: Option<String>,
    /// Why some output is missing.
    pub(super) failures: Vec<(String, Option<Shortage>)>,
}

impl TrialOutputs {
    pub(super) fn new(execution: &ExecutionContext) -> Self {
        let (scratch, scratch_work) = (execution.scratch.clone(), execution.scratch_work.clone());
        let list = CaptureList::new(&scratch, &scratch_work);
        let build_log = BuildLog::new(&scratch);
        Self { scratch, scratch_work, list, captures: Vec::new(), build_log }
    }

    pub(super) fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Starts the capture of a stage's script, for a step that may have a name.
    pub(super) fn start_capture(
        &mut self,
        stage: ScriptStage,
        step: Option<&str>,
        redactor: &Redactor,
    ) -> Arc<Capture> {
        let directory = match step {
            None => Cow::Borrowed(stage.directory()),
            Some(_) => Cow::Owned(step_prefix(step) + stage.directory()),
        };
        let files = self.capture_files(&directory);
        let capture = Arc::new(Capture::new(&self.scratch, files, redactor, &self.scratch_work));
        self.list.add(&directory);
        self.captures.push((stage, directory, capture.clone()));
        capture
    }

    fn capture_files(&self, directory: &str) -> [PathBuf; 2] {
        let directory = self.scratch.join(directory);
        ["stdout.txt", "stderr.txt"].map(|name| directory.join(name))
    }

    /// The captures in progress.
    pub(super) fn captures(&self) -> Vec<&Capture> {
        self.captures.iter().map(|(_, _, capture)| capture.as_ref()).collect()
    }

    /// The end of the standard error of a stage's script, of the one that ran last.
    pub(super) async fn last_words(&self, stage: ScriptStage) -> String {
        match self.captures.iter().rev().find(|(of, ..)| *of == stage) {
            Some((_, _, capture)) => executor::stderr_summary(capture).await,
            None => String::new(),
        }
    }

    /// Ends all captures and returns their files; scripts that still run are cut off.
    pub(super) async fn finish(&mut self, redactor: &Redactor) -> FinishedOutputs {
        let mut kept = FinishedOutputs::default();
        let mut verifier = None;
        let begun = std::mem::take(&mut self.captures);
        let captures = begun.iter().map(|(_, _, capture)| Arc::clone(capture)).collect();
        let ended = executor::finish_outputs(captures, &self.build_log, redactor).await;
        for ((stage, directory, _), captured) in begun.into_iter().zip(ended.captured) {
            match captured {
                Ok(streams) => {
                    if stage == ScriptStage::Verify {
                        verifier = Some(streams.clone());
                    }
                    kept.files.extend(RecordFile::captured(streams, &format!("{directory}/")));
                }
                Err(error) => {
                    let why = format!("cannot keep the output of {directory}: {error}");
                    kept.failures.push((why, Shortage::from_io_error(&error)));
                }
            }
        }
        if let Some(streams) = verifier {
            let tail = |stream: CapturedStream| {
                executor::read_tail(&stream, limits::INLINE_OUTPUT_BYTES).ok()
            };
            let read = supervise::blocking(move || streams.map(tail)).await;
            [kept.verifier_stdout, kept.verifier_stderr] = read;
        }
        let log = |(file, bytes)| RecordFile::text(file, BUILD_LOG.to_owned(), bytes, false);
        kept.files.extend(ended.build_log.map(log));
        kept
    }
}
