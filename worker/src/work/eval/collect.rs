//! What is taken out of an environment beside the checkout: `/logs` and the sweep's output, each as
//! one clean archive, and the results on the way.

use std::path::PathBuf;

use rollout_protocol::limits;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::EvalEnd;
use rollout_protocol::spec::eval::EvalStage;

use super::run::Run;
use super::site::At;
use super::variables::{self, LOGS};
use crate::archive::{self, ArchivePath, Captured, Exclude, Limits, Root, Sanitize};
use crate::environment::Environment;
use crate::executor::COPY_LIMIT;
use crate::executor::errors::{self, ResultError, SetupError};
use crate::secrets::Redactor;

/// What was collected.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) logs: Option<Taken>,
    /// Of the sweep's own environment.
    pub(super) sweep_logs: Option<Taken>,
    pub(super) output: Option<Taken>,
    pub(super) results: Option<PathBuf>,
}

/// A clean archive.
#[derive(Debug)]
pub struct Taken {
    /// Where it is.
    pub file: PathBuf,
    /// Regular files and directories in it.
    pub entries: u64,
    /// Entries that were left out.
    pub skipped: u64,
    /// Whether a limit or a fault ended the reading early.
    pub truncated: bool,
}

/// One directory of an environment and what was wanted of it.
#[derive(Debug)]
pub struct Reading {
    /// What was in it; nothing when there is no such directory, or it could not be read.
    pub taken: Option<Taken>,
    /// The file that was wanted.
    pub captured: Captured,
    /// Why it could not be read, or not to its end.
    pub failure: Option<String>,
}

impl Run<'_> {
    /// Collects what there is. Results count only when the sweep ended well.
    pub(super) async fn collection(&mut self) {
        if self.place.up().is_none() || self.at == At::Leaving {
            return;
        }
        self.enter(Phase::Collection);
        let redactor = self.variables.redactor.clone();
        if self.place.tainted
            && let Err(error) = self.place.stop().await
        {
            let why = format!("processes may still write: {}", error.chain());
            self.later.push(errors::not_collected(&why, &redactor));
            return;
        }
        match self.at {
            At::Apart => self.collected.sweep_logs = self.logs("sweep-logs.tar").await,
            At::Shared | At::Leaving => self.collected.logs = self.logs("logs.tar").await,
        }
        if self.commands.iter().any(|command| command.stage == EvalStage::Sweep) {
            self.output(&redactor).await;
        }
        self.timing.leave();
    }

    /// Collects `/logs` into a file of the scratch directory.
    pub(super) async fn logs(&mut self, name: &str) -> Option<Taken> {
        let (to, redactor) = (self.ctx.scratch.join(name), &self.variables.redactor);
        let logs = read_directory(self.up(), LOGS, to, Limits::LOGS, None, redactor).await;
        self.lost(logs.failure);
        logs.taken
    }

    /// Collects the sweep's output, and the results in it.
    async fn output(&mut self, redactor: &Redactor) {
        let (path, to) = (variables::output(self.ctx), self.ctx.scratch.join("output.tar"));
        let wanted = ArchivePath::clean(self.ctx.eval.results_file.as_bytes());
        let wanted = wanted.ok().flatten().map(|path| (path, limits::RESULTS_BYTES));
        let output = read_directory(self.up(), &path, to, Limits::LOGS, wanted, redactor).await;
        self.lost(output.failure.clone());
        self.collected.output = output.taken;
        if self.swept {
            self.results(output.captured, output.failure, redactor).await;
        }
    }

    fn lost(&mut self, why: Option<String>) {
        let lost = |why: String| errors::not_collected(&why, &self.variables.redactor);
        self.later.extend(why.map(lost));
    }

    async fn results(&mut self, captured: Captured, why: Option<String>, redactor: &Redactor) {
        let file = &self.ctx.eval.results_file;
        let wrong =
            |why: &str| ResultError::Invalid.into_error(&format!("{file}: {why}"), redactor);
        let error = match captured {
            Captured::Found(bytes) => {
                let to = self.ctx.scratch.join("results.csv");
                match tokio::fs::write(&to, masked(&bytes, redactor)).await {
                    Ok(()) => {
                        (self.collected.results, self.end) = (Some(to), EvalEnd::Completed);
                        return;
                    }
                    Err(error) => SetupError::Disk(error).into_error(redactor),
                }
            }
            Captured::Missing => {
                let why = format!("the sweep left no {file}");
                ResultError::Missing.into_error(&why, redactor)
            }
            Captured::NotRegular | Captured::HardLink => wrong("it is not a regular file"),
            Captured::TooLarge(bytes) => wrong(&format!(
                "it has {bytes} bytes, at most {} are accepted",
                limits::RESULTS_BYTES
            )),
            Captured::Unknown => {
                let why = why.unwrap_or_else(|| "the output could not be read".to_owned());
                ResultError::Unreadable.into_error(&why, redactor)
            }
        };
        self.fail(error);
    }
}

fn masked(bytes: &[u8], redactor: &Redactor) -> Vec<u8> {
    let mut masking = redactor.stream(crate::secrets::Style::Mask);
    let mut clean = Vec::with_capacity(bytes.len());
    masking.push(bytes, &mut clean);
    masking.finish(&mut clean);
    clean
}

/// Reads a directory of an environment into a clean archive at `to`, which must not exist, without
/// the directory's own name; a file of it may be wanted in memory, too.
pub async fn read_directory(
    environment: &dyn Environment,
    path: &str,
    to: PathBuf,
    limits: Limits,
    capture: Option<(ArchivePath, u64)>,
    redactor: &Redactor,
) -> Reading {
    let work = async {
        let stream = match environment.copy_from(path).await {
            Ok(Some(stream)) => stream,
            Ok(None) => {
                return Reading { taken: None, captured: Captured::Missing, failure: None };
            }
            Err(error) => return nothing(format!("{path}: {}", error.chain())),
        };
        let options = Sanitize {
            limits,
            root: Root::Dropped,
            exclude: Exclude::default(),
            faithful: false,
            captures: capture.into_iter().collect(),
            redactor: redactor.clone(),
        };
        let clean = archive::sanitize(stream, &to, options).await;
        let (report, captured) = (clean.report, clean.captured.into_iter().next());
        let captured = captured.unwrap_or(Captured::Unknown);
        let cut = report.cut.as_ref().map(|cut| format!("{path} is not whole: {cut}"));
        match clean.archive {
            Ok(packed) => {
                let (entries, skipped) = (packed.entries, report.skipped.total());
                let taken = Taken { file: to, entries, skipped, truncated: report.cut.is_some() };
                Reading { taken: Some(taken), captured, failure: cut }
            }
            Err(error) => {
                let failure = Some(format!("{path}: {error}"));
                Reading { taken: None, captured, failure }
            }
        }
    };
    match tokio::time::timeout(COPY_LIMIT, work).await {
        Ok(reading) => reading,
        Err(_) => nothing(format!("{path}: reading it took longer than {COPY_LIMIT:?}")),
    }
}

fn nothing(why: String) -> Reading {
    Reading { taken: None, captured: Captured::Unknown, failure: Some(why) }
}
