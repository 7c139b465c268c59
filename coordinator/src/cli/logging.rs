//! Log messages on standard error, interleaved with the progress.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{LogLevel, env_vars};
use crate::events::sinks::terminal::{Screen, Style};

/// Starts logging at `level`, or with the filter in the environment variable.
pub(super) fn start(level: LogLevel, screen: Screen, style: Style) {
    let filter = std::env::var(env_vars::LOG.name)
        .ok()
        .and_then(|text| EnvFilter::try_new(text).ok())
        .unwrap_or_else(|| EnvFilter::new(directives(level)));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(style.colours)
        .with_target(false)
        .with_writer(ScreenWriter(screen))
        .finish();
    // Only tests have another subscriber, which may stay.
    let _former = tracing::subscriber::set_global_default(subscriber);
}

/// The filter: `level` for rollout's crates, warnings and errors for most others.
fn directives(level: LogLevel) -> String {
    let others = match level {
        LogLevel::Error => "error",
        LogLevel::Warn | LogLevel::Info | LogLevel::Debug => "warn",
        LogLevel::Trace => "debug",
    };
    // The client logs every failed connection attempt as an error; rollout reports outages itself.
    let client = if level == LogLevel::Trace { "debug" } else { "off" };
    // So does this one, with whole requests in its warnings.
    let s3 = if level == LogLevel::Trace { "debug" } else { "error" };
    let ours = level.as_str();
    format!(
        "{others},async_nats={client},aws={s3},rollout={ours},rollout_coordinator={ours},rollout_worker={ours}"
    )
}

/// Writes each message at once.
struct ScreenWriter(Screen);

/// One message.
struct LogMessage<'a> {
    screen: &'a Screen,
    text: Vec<u8>,
}

impl<'a> MakeWriter<'a> for ScreenWriter {
    type Writer = LogMessage<'a>;

    fn make_writer(&'a self) -> LogMessage<'a> {
        LogMessage { screen: &self.0, text: Vec::new() }
    }
}

impl Write for LogMessage<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogMessage<'_> {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            self.screen.write(&self.text);
        }
    }
}
