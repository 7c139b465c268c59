//! Output files of an execution that has ended.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rollout_base::secrets::Redactor;
use rollout_base::supervise;

use super::capture::{Capture, CapturedStream};
use super::image::BuildLog;

/// Output files of an execution.
#[derive(Debug, Default)]
pub(crate) struct OutputFiles {
    /// The streams of each capture, in their order.
    pub(crate) captured: Vec<io::Result<[CapturedStream; 2]>>,
    /// The log of an unsuccessful image build without secrets, and its size.
    pub(crate) build_log: Option<(PathBuf, u64)>,
}

/// Ends captures, and masks the log of an image build. An execution with neither waits for nothing.
///
/// The log is masked here and not after the build: a stop may end that at any moment, and what it has left
/// is kept.
pub(crate) async fn finish_outputs(
    captures: Vec<Arc<Capture>>,
    build_log: &BuildLog,
    redactor: &Redactor,
) -> OutputFiles {
    if captures.is_empty() && !build_log.is_unfinished() {
        return OutputFiles::default();
    }
    let (build_log, redactor) = (build_log.clone(), redactor.clone());
    let finish = move || OutputFiles {
        captured: captures.iter().map(|capture| capture.finish_blocking()).collect(),
        build_log: build_log.write_masked(&redactor),
    };
    supervise::blocking(finish).await
}
