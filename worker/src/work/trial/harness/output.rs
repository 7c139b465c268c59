//! The output of a harness: from its file, else from the last line of its standard output, else
//! made by the worker.

use bytes::Bytes;
use rollout_environment::{Environment, Failure, FailureKind};
use rollout_protocol::harness::{TrialIds, TrialOutput, TrialOutputError, last_line};
use rollout_protocol::limits;
use rollout_protocol::record::OutputSource;
use rollout_store::archive::{self, CapturedFile};

use crate::executor::{self, COPY_LIMIT, Capture};

/// An output.
#[derive(Debug)]
pub(super) struct OutputReading {
    pub(super) output: TrialOutput,
    pub(super) source: OutputSource,
    /// The bytes of the document.
    pub(super) document: Vec<u8>,
}

/// The content of an output file.
#[derive(Debug)]
enum OutputFileContent {
    Found(Bytes),
    Missing,
    /// It cannot be an output.
    Unusable(String),
}

/// Reads the output of a harness that has ended.
///
/// # Errors
/// [`Failure`] of the environment or of this host, never of the harness.
pub(super) async fn read(
    environment: &dyn Environment,
    path: &str,
    capture: &Capture,
    ids: &TrialIds,
) -> Result<OutputReading, Failure> {
    let content = match read_file(environment, path).await? {
        OutputFileContent::Found(bytes) if bytes.trim_ascii().is_empty() => {
            OutputFileContent::Missing
        }
        content => content,
    };
    match content {
        OutputFileContent::Found(bytes) => Ok(match TrialOutput::parse(&bytes) {
            Ok(output) => {
                OutputReading { output, source: OutputSource::File, document: bytes.to_vec() }
            }
            Err(error) => synthesized(ids, format!("cannot use `{path}`: {error}")),
        }),
        OutputFileContent::Unusable(why) => {
            Ok(synthesized(ids, format!("cannot use `{path}`: {why}")))
        }
        OutputFileContent::Missing => {
            let stdout = read_stdout(capture).await?;
            Ok(from_last_line(&stdout).unwrap_or_else(|why| {
                let why = why.map_or_else(String::new, |error| format!(": {error}"));
                let message = format!(
                    "the harness left no `{path}`, and the last line of its standard output is \
                     not an output{why}"
                );
                synthesized(ids, message)
            }))
        }
    }
}

fn synthesized(ids: &TrialIds, message: String) -> OutputReading {
    let output = TrialOutput::process_error(ids.clone(), message);
    let document = output.to_document();
    OutputReading { output, source: OutputSource::Synthesized, document }
}

/// The output in the last line that is not empty, or why that line is none.
fn from_last_line(stdout: &str) -> Result<OutputReading, Option<TrialOutputError>> {
    // Programs print many things: only an object may have been meant as an output.
    let line = last_line(stdout).filter(|line| line.starts_with('{')).ok_or(None)?;
    let output = TrialOutput::parse(line.as_bytes()).map_err(Some)?;
    Ok(OutputReading { output, source: OutputSource::LastLine, document: line.into() })
}

/// The end of the standard output, without secrets.
async fn read_stdout(capture: &Capture) -> Result<String, Failure> {
    let most = usize::try_from(limits::TRIAL_OUTPUT_BYTES).unwrap_or(usize::MAX);
    let read = capture.finish_and_read(move |[stdout, _]| executor::read_tail(&stdout, most));
    read.await.map_err(|error| {
        Failure::local(FailureKind::Service, "cannot read the captured standard output", error)
    })
}

async fn read_file(
    environment: &dyn Environment,
    path: &str,
) -> Result<OutputFileContent, Failure> {
    let stream = match executor::open_stream(environment, path).await {
        Ok(Some(stream)) => stream,
        Ok(None) => return Ok(OutputFileContent::Missing),
        Err(failure) if is_of_harness(failure.kind) => {
            return Ok(OutputFileContent::Unusable(failure.chain()));
        }
        Err(failure) => return Err(failure),
    };
    let reading = archive::first_file(stream, limits::TRIAL_OUTPUT_BYTES);
    let found = tokio::time::timeout(COPY_LIMIT, reading).await;
    Ok(match found.unwrap_or(CapturedFile::NotReached) {
        CapturedFile::Found(bytes) => OutputFileContent::Found(bytes),
        CapturedFile::Missing => OutputFileContent::Missing,
        CapturedFile::NotRegular | CapturedFile::HardLink => {
            OutputFileContent::Unusable("it is not a regular file".to_owned())
        }
        CapturedFile::TooLarge(size) => {
            let most = limits::TRIAL_OUTPUT_BYTES;
            OutputFileContent::Unusable(format!("it has {size} bytes, more than {most}"))
        }
        CapturedFile::NotReached => {
            let message = format!("cannot read `{path}` to its end");
            return Err(Failure::new(FailureKind::Service, message));
        }
    })
}

/// Whether a path that cannot be read is so because of the files that the harness left.
pub(super) const fn is_of_harness(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::Refused | FailureKind::Unusable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_that_is_no_object_is_not_meant_as_output() {
        for stdout in ["", "done\n", "[1]\n", "{}\ndone\n", "3\n"] {
            assert!(matches!(from_last_line(stdout), Err(None)), "{stdout}");
        }
        let error = from_last_line("working\n{}\n\n").expect_err("no output");
        assert!(matches!(error, Some(TrialOutputError::Schema(_))), "{error:?}");
    }
}
