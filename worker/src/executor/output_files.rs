//! Output files of an execution that has ended.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::capture::{Capture, CapturedStream};
use super::image::BuildLog;
use crate::supervise;

/// Output files of an execution.
#[derive(Debug, Default)]
pub(crate) struct OutputFiles {
    /// The streams of each capture, in their order.
    pub(crate) captured: Vec<io::Result<[CapturedStream; 2]>>,
    /// The log of an unsuccessful image build, and its size.
    pub(crate) build_log: Option<(PathBuf, u64)>,
}

/// Ends captures, and looks for the log of an image build. An execution with neither waits for nothing.
pub(crate) async fn finish_outputs(
    captures: Vec<Arc<Capture>>,
    build_log: &BuildLog,
) -> OutputFiles {
    if captures.is_empty() && !build_log.is_unfinished() {
        return OutputFiles::default();
    }
    let build_log = build_log.clone();
    let finish = move || OutputFiles {
        captured: captures.iter().map(|capture| capture.finish_blocking()).collect(),
        build_log: build_log.finished_file(),
    };
    supervise::blocking(finish).await
}
