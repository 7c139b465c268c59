//! What is taken out of an environment beside the checkout: `/logs` and the sweep's output, each as
//! one clean archive, and the results on the way.

use std::path::PathBuf;

use rollout_protocol::limits;
use rollout_protocol::record::EvalEnd;
use rollout_protocol::spec::eval::EvalStage;

use super::run::Run;
use super::site::At;
use super::variables::{self, LOGS};
use crate::archive::{ArchivePath, CapturedFile, ArchiveLimits};
use crate::executor::errors::{self, ResultError, SetupError};
use crate::executor::{CleanArchive, read_directory};
use crate::secrets::Redactor;
use crate::shortage::Shortage;

/// What was collected.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) logs: Option<CleanArchive>,
    /// Of the sweep's own environment.
    pub(super) sweep_logs: Option<CleanArchive>,
    pub(super) output: Option<CleanArchive>,
    pub(super) results: Option<PathBuf>,
}

impl Run<'_> {
    /// Collects what there is. Results count only when the sweep ended well.
    pub(super) async fn collection(&mut self) {
        if self.at == At::Leaving {
            return;
        }
        let redactor = self.attempt.redactor.clone();
        if self.attempt.environment.tainted
            && let Err(error) = self.attempt.environment.stop().await
        {
            let why = format!("processes may still write: {}", error.chain());
            self.attempt.not_collected(&why);
            return;
        }
        match self.at {
            At::Apart => self.collected.sweep_logs = self.logs("sweep-logs.tar").await,
            At::Shared | At::Leaving => self.collected.logs = self.logs("logs.tar").await,
        }
        if self.commands.iter().any(|command| command.stage == EvalStage::Sweep) {
            self.output(&redactor).await;
        }
    }

    /// Collects `/logs` into a file of the scratch directory.
    pub(super) async fn logs(&mut self, name: &str) -> Option<CleanArchive> {
        let (to, redactor) = (self.ctx.execution.scratch.join(name), &self.attempt.redactor);
        let logs = read_directory(self.attempt.up(), LOGS, to, ArchiveLimits::LOGS, None, redactor).await;
        self.lost(logs.failure, logs.shortage);
        logs.taken
    }

    /// Collects the sweep's output, and the results in it.
    async fn output(&mut self, redactor: &Redactor) {
        let (path, to) =
            (variables::output(self.ctx), self.ctx.execution.scratch.join("output.tar"));
        let wanted = ArchivePath::clean(self.ctx.eval.results_file.as_bytes());
        let wanted = wanted.ok().flatten().map(|path| (path, limits::RESULTS_BYTES));
        let output =
            read_directory(self.attempt.up(), &path, to, ArchiveLimits::LOGS, wanted, redactor).await;
        self.lost(output.failure.clone(), output.shortage);
        self.collected.output = output.taken;
        if self.swept {
            let captured = output.captured.into_iter().next().unwrap_or(CapturedFile::Unknown);
            self.results(captured, output.failure, redactor).await;
        }
    }

    fn lost(&mut self, why: Option<String>, shortage: Option<Shortage>) {
        let lost = |why: String| errors::output_lost(&why, shortage, &self.attempt.redactor);
        self.attempt.later.extend(why.map(lost));
    }

    async fn results(&mut self, captured: CapturedFile, why: Option<String>, redactor: &Redactor) {
        let file = &self.ctx.eval.results_file;
        let wrong =
            |why: &str| ResultError::Invalid.into_error(&format!("{file}: {why}"), redactor);
        let error = match captured {
            CapturedFile::Found(bytes) => {
                let to = self.ctx.execution.scratch.join("results.csv");
                match tokio::fs::write(&to, masked(&bytes, redactor)).await {
                    Ok(()) => {
                        (self.collected.results, self.end) = (Some(to), EvalEnd::Completed);
                        return;
                    }
                    Err(error) => SetupError::Disk(error).into_error(redactor),
                }
            }
            CapturedFile::Missing => {
                let why = format!("the sweep left no {file}");
                ResultError::Missing.into_error(&why, redactor)
            }
            CapturedFile::NotRegular | CapturedFile::HardLink => wrong("it is not a regular file"),
            CapturedFile::TooLarge(bytes) => wrong(&format!(
                "it has {bytes} bytes, at most {} are accepted",
                limits::RESULTS_BYTES
            )),
            CapturedFile::Unknown => {
                let why = why.unwrap_or_else(|| "the output could not be read".to_owned());
                ResultError::Unreadable.into_error(&why, redactor)
            }
        };
        self.attempt.fail(error);
    }
}

fn masked(bytes: &[u8], redactor: &Redactor) -> Vec<u8> {
    let mut masking = redactor.stream(crate::secrets::RedactionStyle::Mask);
    let mut clean = Vec::with_capacity(bytes.len());
    masking.push(bytes, &mut clean);
    masking.finish(&mut clean);
    clean
}
