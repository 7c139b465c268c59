//! Retries with backoff for as long as a service is down.

use std::error::Error;
use std::fmt::Write as _;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Sleep;

/// First wait after a failure: short, so that a brief failure costs little.
const MIN_DELAY: Duration = Duration::from_millis(100);
/// Longest wait: bounds how late a recovery is noticed.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Whether something is down, logged once when it fails and once when it recovers.
#[derive(Debug)]
pub struct OutageLog {
    name: &'static str,
    down: AtomicBool,
}

/// The waits between the retries of one caller.
#[derive(Debug)]
pub struct RetryBackoff<'a> {
    outage: &'a OutageLog,
    delays: Option<ExponentialBackoff>,
}

impl OutageLog {
    /// The log of a service or an activity, which has not failed yet.
    pub const fn new(name: &'static str) -> Self {
        Self { name, down: AtomicBool::new(false) }
    }

    /// Records a failure.
    pub fn mark_failed(&self, error: &dyn Error) {
        if !self.down.swap(true, Ordering::Relaxed) {
            tracing::warn!("{}", self.failure_text(error));
        }
    }

    /// Records a success.
    pub fn mark_recovered(&self) {
        if self.down.load(Ordering::Relaxed) && self.down.swap(false, Ordering::Relaxed) {
            tracing::info!("{}: recovered", self.name);
        }
    }

    fn failure_text(&self, error: &dyn Error) -> String {
        format!("{}: {}; retrying", self.name, error_chain(error))
    }

    /// Whether the last recorded outcome was a failure.
    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// The backoff of a caller that retries until it succeeds.
    pub const fn backoff(&self) -> RetryBackoff<'_> {
        RetryBackoff { outage: self, delays: None }
    }
}

impl RetryBackoff<'_> {
    /// Records a failure and returns the wait before the next attempt.
    pub fn wait_after_failure(&mut self, error: &dyn Error) -> Sleep {
        self.outage.mark_failed(error);
        tokio::time::sleep(
            self.delays.get_or_insert_with(exponential_backoff).next().unwrap_or(MAX_DELAY),
        )
    }

    /// Records a success.
    pub fn succeeded(&mut self) {
        self.outage.mark_recovered();
        self.delays = None;
    }
}

fn exponential_backoff() -> ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(MIN_DELAY)
        .with_max_delay(MAX_DELAY)
        .without_max_times()
        .with_jitter()
        .build()
}

/// An error with its causes, each printed once: some errors repeat their cause in their own text.
pub fn error_chain(error: &dyn Error) -> String {
    with_causes(error.to_string(), error.source())
}

/// A text followed by the causes that it does not contain yet.
pub fn with_causes(mut text: String, first: Option<&(dyn Error + 'static)>) -> String {
    let mut next = first;
    while let Some(cause) = next {
        let message = without_place(cause);
        if !text.contains(&message) {
            write!(text, ": {message}").expect("text grows");
        }
        next = cause.source();
    }
    text
}

/// The text of a cause. Errors of temporary files name a directory of this host, which the text before
/// them shows as far as it may be shown.
pub fn without_place(cause: &(dyn Error + 'static)) -> String {
    let mut text = cause.to_string();
    let is_of_library = cause.downcast_ref::<io::Error>().is_some_and(|e| e.get_ref().is_some());
    if let Some(at) = text.rfind(" at path \"").filter(|_| is_of_library) {
        text.truncate(at);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_temporary_file_names_no_directory() {
        let root = tempfile::tempdir().expect("a directory");
        let error =
            tempfile::NamedTempFile::new_in(root.path().join("absent")).expect_err("absent");
        assert!(error.to_string().contains("absent"), "the library names the path: {error}");
        let text = with_causes("cannot write".to_owned(), Some(&error));
        assert!(text.starts_with("cannot write: No such file"), "{text}");
        assert!(!text.contains("absent"), "{text}");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct ChainedError {
        text: &'static str,
        #[source]
        source: Option<Box<ChainedError>>,
    }

    fn chained_error(texts: &[&'static str]) -> ChainedError {
        let (text, rest) = texts.split_first().expect("a text");
        let source = (!rest.is_empty()).then(|| Box::new(chained_error(rest)));
        ChainedError { text, source }
    }

    #[test]
    fn failure_text_has_name_and_causes() {
        let outage = OutageLog::new("listening for claims");
        let error = chained_error(&["cannot use the queue", "no responder"]);
        assert_eq!(
            outage.failure_text(&error),
            "listening for claims: cannot use the queue: no responder; retrying"
        );
    }

    #[test]
    fn error_chain_with_repeated_causes_prints_each_once() {
        let error = chained_error(&[
            "client error (Connect)",
            "client error (Connect)",
            "tcp connect error",
            "Connection refused (os error 111)",
        ]);
        let expected =
            "client error (Connect): tcp connect error: Connection refused (os error 111)";
        assert_eq!(error_chain(&error), expected);
        assert_eq!(
            error_chain(&chained_error(&["cannot do it: no space", "no space"])),
            "cannot do it: no space"
        );
    }
}
