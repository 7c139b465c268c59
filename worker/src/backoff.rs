//! Waiting for something that is down, for as long as it is.

use std::error::Error;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Sleep;

/// First wait after a failure: a hiccup costs little.
const MIN_DELAY: Duration = Duration::from_millis(100);
/// Longest wait: what is back is noticed soon.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Whether something is down, said once when it goes and once when it comes back.
#[derive(Debug)]
pub struct OutageLog {
    what: &'static str,
    down: AtomicBool,
}

/// The waits of one who tries again until it works.
#[derive(Debug)]
pub struct RetryBackoff<'a> {
    outage: &'a OutageLog,
    waits: Option<ExponentialBackoff>,
}

impl OutageLog {
    /// Nothing failed yet of `what`.
    pub const fn new(what: &'static str) -> Self {
        Self { what, down: AtomicBool::new(false) }
    }

    /// Notes a failure.
    pub fn mark_failed(&self, error: &dyn Error) {
        if !self.down.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{} fails, trying again until it works: {}",
                self.what,
                error_chain(error)
            );
        }
    }

    /// Notes a success.
    pub fn mark_recovered(&self) {
        if self.down.load(Ordering::Relaxed) && self.down.swap(false, Ordering::Relaxed) {
            tracing::info!("{} works again", self.what);
        }
    }

    /// Whether the last thing noted was a failure.
    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// For one who tries until it works.
    pub const fn backoff(&self) -> RetryBackoff<'_> {
        RetryBackoff { outage: self, waits: None }
    }
}

impl RetryBackoff<'_> {
    /// Notes a failure; the wait before the next attempt.
    pub fn wait_after_failure(&mut self, error: &dyn Error) -> Sleep {
        self.outage.mark_failed(error);
        tokio::time::sleep(
            self.waits.get_or_insert_with(exponential_backoff).next().unwrap_or(MAX_DELAY),
        )
    }

    /// Notes a success.
    pub fn succeeded(&mut self) {
        self.outage.mark_recovered();
        self.waits = None;
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

/// An error with its causes, each said once: some errors repeat their cause in their own text.
pub fn error_chain(error: &dyn Error) -> String {
    with_causes(error.to_string(), error.source())
}

/// A text with the causes behind it that it does not contain yet.
pub(crate) fn with_causes(mut text: String, first: Option<&(dyn Error + 'static)>) -> String {
    let mut next = first;
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            write!(text, ": {said}").expect("text grows");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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
