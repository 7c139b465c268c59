//! Collection of `/logs` and of the sweep's output, each as one clean archive. The results are read
//! in the same pass.

use std::path::PathBuf;

use rollout_base::secrets::Redactor;
use rollout_base::shortage::Shortage;
use rollout_protocol::limits;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::EvalEnd;
use rollout_protocol::spec::eval::EvalStage;
use rollout_store::archive::{ArchiveLimits, ArchivePath, CapturedFile};

use super::environment::EvalEnvironmentState;
use super::run::EvalRun;
use super::variables::{self, LOGS};
use super::{EvalFilesError, failure};
use crate::executor::errors::{self, ResultError};
use crate::executor::{CleanArchive, possible_secrets, read_directory};

/// The collected outputs.
#[derive(Debug, Default)]
pub(super) struct EvalOutputs {
    pub(super) logs: Option<CleanArchive>,
    /// Logs of the sweep's own environment.
    pub(super) sweep_logs: Option<CleanArchive>,
    pub(super) output: Option<CleanArchive>,
    pub(super) results: Option<PathBuf>,
}

impl EvalRun<'_> {
    /// Collects the outputs. Results count only when the sweep succeeded.
    pub(super) async fn collect_outputs(&mut self) {
        if self.environment_state == EvalEnvironmentState::Leaving {
            return;
        }
        let redactor = self.attempt.redactor.clone();
        if self.attempt.environment.tainted
            && let Err(error) = self.attempt.environment.stop().await
        {
            let why =
                format!("cannot collect outputs, processes may still write: {}", error.chain());
            self.attempt.record_not_collected(&why);
            return;
        }
        match self.environment_state {
            EvalEnvironmentState::Sweep => {
                self.collected.sweep_logs = self.collect_logs("sweep-logs.tar").await;
            }
            EvalEnvironmentState::Shared | EvalEnvironmentState::Leaving => {
                self.collected.logs = self.collect_logs("logs.tar").await;
            }
        }
        if self.commands.iter().any(|command| command.stage == EvalStage::Sweep) {
            // Results are data: a value that only looks like a secret stays in them.
            self.collect_sweep_output(&redactor.declared()).await;
        }
    }

    /// Collects `/logs` into a file of the scratch directory.
    pub(super) async fn collect_logs(&mut self, name: &str) -> Option<CleanArchive> {
        let (to, redactor) = (self.ctx.execution.scratch.join(name), &self.attempt.redactor);
        let logs = read_directory(
            self.attempt.running_environment(),
            LOGS,
            to,
            ArchiveLimits::LOGS,
            None,
            redactor,
        )
        .await;
        self.record_loss(logs.failure, logs.shortage);
        logs.archive
    }

    /// Collects the sweep's output, and the results in it.
    async fn collect_sweep_output(&mut self, redactor: &Redactor) {
        let (path, to) =
            (variables::output_dir(self.ctx), self.ctx.execution.scratch.join("output.tar"));
        let wanted = ArchivePath::clean(self.ctx.eval.results_file.as_bytes());
        let wanted = wanted.ok().flatten().map(|path| (path, limits::RESULTS_BYTES));
        let output = read_directory(
            self.attempt.running_environment(),
            &path,
            to,
            ArchiveLimits::LOGS,
            wanted,
            redactor,
        )
        .await;
        self.record_loss(output.failure.clone(), output.shortage);
        self.collected.output = output.archive;
        if self.sweep_succeeded {
            let captured = output.captured.into_iter().next().unwrap_or(CapturedFile::NotReached);
            self.collect_results(captured, output.failure, redactor).await;
        }
        self.flag_likely_secrets().await;
    }

    /// Flags values in the sweep's output and in the results, which a cut output may lack.
    async fn flag_likely_secrets(&mut self) {
        let output = self.collected.output.as_ref().map(|taken| taken.file.clone());
        let kept = output.into_iter().chain(self.collected.results.clone()).collect();
        let found = possible_secrets(kept, &self.attempt.redactor).await;
        match found {
            Ok(found) => self.possible_secrets.extend(found),
            Err(error) => {
                let why = format!("cannot look for likely secrets in the output: {error}");
                self.attempt.record_not_collected(&why);
            }
        }
    }

    fn record_loss(&mut self, why: Option<String>, shortage: Option<Shortage>) {
        let lost = |why: String| errors::output_lost(&why, shortage, &self.attempt.redactor);
        self.attempt.secondary_errors.extend(why.map(lost));
    }

    async fn collect_results(
        &mut self,
        captured: CapturedFile,
        why: Option<String>,
        redactor: &Redactor,
    ) {
        let file = &self.ctx.eval.results_file;
        let wrong =
            |why: &str| ResultError::Invalid.into_error(&format!("{file}: {why}"), redactor);
        let error = match captured {
            CapturedFile::Found(bytes) => {
                let to = self.ctx.execution.scratch.join("results.csv");
                match tokio::fs::write(&to, mask_secrets(&bytes, redactor)).await {
                    Ok(()) => {
                        (self.collected.results, self.end) = (Some(to), EvalEnd::Completed);
                        return;
                    }
                    Err(error) => {
                        let error = EvalFilesError::disk_error("write", &to, error);
                        failure::files_error(&error, redactor).in_phase(Phase::Collection)
                    }
                }
            }
            CapturedFile::Missing => {
                let why = format!("the sweep wrote no {file}");
                ResultError::Missing.into_error(&why, redactor)
            }
            CapturedFile::NotRegular | CapturedFile::HardLink => wrong("it is not a regular file"),
            CapturedFile::TooLarge(bytes) => wrong(&format!(
                "it has {bytes} bytes, at most {} are accepted",
                limits::RESULTS_BYTES
            )),
            CapturedFile::NotReached => {
                let why = why.unwrap_or_else(|| "the output cannot be read".to_owned());
                ResultError::Unreadable.into_error(&why, redactor)
            }
        };
        self.attempt.record_error(error);
    }
}

fn mask_secrets(bytes: &[u8], redactor: &Redactor) -> Vec<u8> {
    let mut masking = redactor.stream(rollout_base::secrets::RedactionStyle::Mask);
    let mut clean = Vec::with_capacity(bytes.len());
    masking.push(bytes, &mut clean);
    masking.finish(&mut clean);
    clean
}
