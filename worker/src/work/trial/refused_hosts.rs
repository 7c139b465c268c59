//! The file with the hosts that were refused because no allowlist has them.

use std::fs;

use rollout_base::fs_make::{SCRATCH_DEPTH, make_directory};
use rollout_base::shortage::Shortage;
use rollout_base::supervise;

use super::run::TrialRun;
use crate::executor::RecordFile;
use crate::executor::errors;

/// Its path below the trial's directory.
const FILE: &str = "network/refused.json";

impl TrialRun<'_> {
    /// Writes the file; `None` if no host was refused.
    pub(super) async fn refused_hosts_file(&mut self) -> Option<RecordFile> {
        let summary = self.attempt.environment.refused_hosts().summary()?;
        let text = serde_json::to_string_pretty(&summary).expect("it has only text keys");
        // A name may have been made of a secret.
        let text = self.attempt.redactor.text(&text) + "\n";
        let file = self.outputs.scratch().join(FILE);
        let (path, bytes) = (file.clone(), text.len() as u64);
        let running = self.ctx.execution.scratch_work.begin();
        let write = move || {
            let parent = path.parent().expect("it is in a directory");
            let written =
                make_directory(parent, SCRATCH_DEPTH).and_then(|()| fs::write(&path, text));
            drop(running);
            written
        };
        match supervise::blocking(write).await {
            Ok(()) => Some(RecordFile::text(file, FILE.to_owned(), bytes, false)),
            Err(error) => {
                let why = format!("cannot keep the list of refused hosts: {error}");
                let shortage = Shortage::from_io_error(&error);
                let lost = errors::output_lost(&why, shortage, &self.attempt.redactor);
                self.attempt.secondary_errors.push(lost);
                None
            }
        }
    }
}
