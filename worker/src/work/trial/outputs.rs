//! Output files of an execution, for its record.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_protocol::limits;

use crate::executor::errors::ScriptStage;
use crate::executor::{self, BUILD_LOG, BuildLog, Capture, CapturedStream, RecordFile};
use crate::secrets::Redactor;
use crate::shortage::Shortage;

/// Prefix of the paths of a step's files, below the trial's directory: `steps/<name>/` for a step
/// with a name, otherwise empty.
pub(super) fn step_prefix(step: Option<&str>) -> String {
    step.map_or_else(String::new, |name| format!("steps/{name}/"))
}

/// The captured output of a trial's scripts.
#[derive(Debug)]
pub(super) struct TrialOutputs {
    scratch: PathBuf,
    /// Captures in progress, each with its directory.
    captures: Vec<(ScriptStage, Cow<'static, str>, Arc<Capture>)>,
    finished: Vec<(ScriptStage, Cow<'static, str>, [CapturedStream; 2])>,
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
    pub(super) fn new(scratch: PathBuf) -> Self {
        let build_log = BuildLog::new(&scratch);
        Self { scratch, captures: Vec::new(), finished: Vec::new(), build_log }
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
        let capture = capture_in(&self.scratch.join(&*directory), redactor);
        executor::note_capture(&self.scratch, &directory);
        self.captures.push((stage, directory, capture.clone()));
        capture
    }

    /// Captures a command whose output is not kept, but quoted in its error.
    pub(super) fn unrecorded_capture(&self, redactor: &Redactor) -> Arc<Capture> {
        capture_in(&self.scratch.join("aside"), redactor)
    }

    /// The captures in progress.
    pub(super) fn captures(&self) -> Vec<&Capture> {
        self.captures.iter().map(|(_, _, capture)| capture.as_ref()).collect()
    }

    /// The end of the standard error of a stage's script, of the one that ran last.
    pub(super) fn last_words(&self, stage: ScriptStage) -> String {
        let last = self.captures.iter().rev().find(|(of, ..)| *of == stage);
        last.map_or_else(String::new, |(_, _, capture)| executor::stderr_summary(capture))
    }

    /// Ends all captures and returns their files; scripts that still run are cut off.
    pub(super) fn finish(&mut self) -> FinishedOutputs {
        let mut kept = FinishedOutputs::default();
        for (stage, directory, capture) in self.captures.drain(..) {
            match capture.finish() {
                Ok(captured) => self.finished.push((stage, directory, captured)),
                Err(error) => {
                    let why = format!("cannot keep the output of {directory}: {error}");
                    kept.failures.push((why, Shortage::from_io_error(&error)));
                }
            }
        }
        for (stage, directory, [stdout, stderr]) in &self.finished {
            if *stage == ScriptStage::Verify {
                kept.verifier_stdout =
                    executor::read_tail(stdout, limits::INLINE_OUTPUT_BYTES).ok();
                kept.verifier_stderr =
                    executor::read_tail(stderr, limits::INLINE_OUTPUT_BYTES).ok();
            }
            let streams = [stdout.clone(), stderr.clone()];
            kept.files.extend(RecordFile::captured(streams, &format!("{directory}/")));
        }
        let built = self.build_log.finished_file();
        let log = |(file, bytes)| RecordFile::text(file, BUILD_LOG.to_owned(), bytes, false);
        kept.files.extend(built.map(log));
        kept
    }
}

fn capture_in(dir: &Path, redactor: &Redactor) -> Arc<Capture> {
    Arc::new(Capture::new(dir.join("stdout.txt"), dir.join("stderr.txt"), redactor))
}
