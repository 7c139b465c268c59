//! Log messages, on standard error, around the progress.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{LogLevel, env_vars};
use crate::events::sinks::terminal::{Screen, Style};

/// Starts logging at `level`, or as the environment says.
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
    // Another subscriber is there only in tests, and may stay.
    let _former = tracing::subscriber::set_global_default(subscriber);
}

/// The level for our own crates; others speak up from warnings on.
fn directives(level: LogLevel) -> String {
    let others = match level {
        LogLevel::Error => "error",
        LogLevel::Warn | LogLevel::Info | LogLevel::Debug => "warn",
        LogLevel::Trace => "debug",
    };
    // Every attempt to reach a server is an error to its client; what it means is said by ours.
    let client = if level == LogLevel::Trace { "debug" } else { "off" };
    let ours = level.as_str();
    format!(
        "{others},async_nats={client},rollout={ours},rollout_coordinator={ours},rollout_worker={ours}"
    )
}

/// Writes each message as a whole.
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
