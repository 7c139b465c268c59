//! Output of commands that is not kept, but quoted in their errors.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rollout_base::secrets::Redactor;

use super::capture::Capture;
use super::context::{ExecutionContext, ScratchWork};

/// Directory of the files in the scratch directory.
const DIRECTORY: &str = "aside";

/// Captures of an execution whose output is not kept.
#[derive(Debug)]
pub(crate) struct UnrecordedCaptures {
    /// The scratch directory of the execution.
    scratch: PathBuf,
    scratch_work: ScratchWork,
    /// Number of captures that have begun.
    begun: AtomicUsize,
}

impl UnrecordedCaptures {
    pub(super) fn new(ctx: &ExecutionContext) -> Self {
        let (scratch, scratch_work) = (ctx.scratch.clone(), ctx.scratch_work.clone());
        Self { scratch, scratch_work, begun: AtomicUsize::new(0) }
    }

    /// Captures a command. Each has files of its own: a disk may take those of an earlier one later.
    pub(crate) fn start(&self, redactor: &Redactor) -> Arc<Capture> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let directory = self.scratch.join(DIRECTORY).join(number.to_string());
        let files = ["stdout.txt", "stderr.txt"].map(|name| directory.join(name));
        Arc::new(Capture::for_quotes(&self.scratch, files, redactor, &self.scratch_work))
    }
}

#[cfg(test)]
mod tests {
    use rollout_environment::{OutputSink as _, OutputStream};

    use super::*;
    use crate::executor::stderr_summary;
    use crate::work::trial::testing::TrialFixture;

    #[tokio::test]
    async fn unrecorded_output_that_is_written_late_is_in_no_quote_of_a_later_command() {
        let rig = TrialFixture::new().await;
        let captures = UnrecordedCaptures::new(&rig.context().execution);
        let [former, later] = [(); 2].map(|()| captures.start(&Redactor::default()));
        later.write(OutputStream::Stderr, b"later");
        later.finish().await.expect("written");
        former.write(OutputStream::Stderr, b"former");
        former.finish().await.expect("written");
        assert_eq!(stderr_summary(&later).await, "later");
    }
}
