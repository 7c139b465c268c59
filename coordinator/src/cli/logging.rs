//! Log messages on standard error, interleaved with the progress.

#[cfg(feature = "nats")]
mod queue;
mod targets;

use std::io::{self, Write};
#[cfg(feature = "nats")]
use std::sync::OnceLock;

use clap::{Args, ValueEnum};
use rollout_worker::service::EXECUTION_SPAN;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

#[cfg(feature = "nats")]
use self::queue::{LogQueue, LogThread};
use crate::config::{LogLevel, env_vars};
use crate::events::sinks::terminal::{Screen, Style};

/// Format of log messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object per line.
    Json,
}

/// The option.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(super) struct LogArgs {
    /// Format of log messages
    #[arg(long, value_name = "FORMAT", default_value = "text", env = env_vars::LOG_FORMAT.name, hide_env_values = true)]
    log_format: LogFormat,
}

impl LogArgs {
    /// The layout of messages: an object has one line.
    fn layout(self, style: Style) -> Style {
        match self.log_format {
            LogFormat::Text => style,
            LogFormat::Json => Style::PLAIN,
        }
    }
}

/// Starts logging at `level`, or with the filter in the environment variable.
pub(super) fn start(level: LogLevel, args: LogArgs, screen: Screen, style: Style) {
    install(level, args, LogTarget::Screen(screen, args.layout(style)), style);
}

/// The thread that writes the messages of this process, if one does.
#[cfg(feature = "nats")]
static THREAD: OnceLock<LogThread> = OnceLock::new();

/// The same for a process that must not wait for standard error, which may be a file on a disk that gives no
/// answer: a thread writes the messages.
#[cfg(feature = "nats")]
pub(super) fn start_on_thread(level: LogLevel, args: LogArgs, screen: Screen, style: Style) {
    let started = LogThread::start(screen.clone()).ok();
    let queue = started.map(|thread| THREAD.get_or_init(|| thread).queue());
    let on_screen = LogTarget::Screen(screen, args.layout(style));
    install(level, args, queue.map_or(on_screen, LogTarget::Queue), style);
}

/// Waits a moment until the thread has written the messages so far.
#[cfg(feature = "nats")]
pub(super) fn flush() {
    if let Some(thread) = THREAD.get() {
        thread.flush();
    }
}

fn install(level: LogLevel, args: LogArgs, target: LogTarget, style: Style) {
    let filter = std::env::var(env_vars::LOG.name)
        .ok()
        .and_then(|text| EnvFilter::try_new(targets::with_moved(&text)).ok())
        .unwrap_or_else(|| EnvFilter::new(directives(level)));
    let with_ids = match args.log_format {
        LogFormat::Text => "off",
        LogFormat::Json => "info",
    };
    let ids = format!("{EXECUTION_SPAN}={with_ids}").parse().expect("a directive");
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter.add_directive(ids))
        .with_ansi(style.colours)
        .with_target(false)
        .with_writer(target);
    // Only tests have another subscriber, which may stay.
    let _former = match args.log_format {
        LogFormat::Text => tracing::subscriber::set_global_default(subscriber.finish()),
        LogFormat::Json => tracing::subscriber::set_global_default(
            subscriber.json().flatten_event(true).with_span_list(false).finish(),
        ),
    };
}

/// The filter: `level` for rollout's crates, warnings and errors for most others.
fn directives(level: LogLevel) -> String {
    let others = match level {
        LogLevel::Error => "error",
        LogLevel::Warn | LogLevel::Info | LogLevel::Debug => "warn",
        LogLevel::Trace => "debug",
    };
    // These clients log every failed connection as an error, and one of them does not say to what;
    // rollout reports outages itself.
    let client = if level == LogLevel::Trace { "debug" } else { "off" };
    // So does this one, with whole requests in its warnings.
    let s3 = if level == LogLevel::Trace { "debug" } else { "error" };
    let ours = targets::ours(level.as_str());
    format!("{others},async_nats={client},kube_client={client},aws={s3}{ours}")
}

/// The place of messages.
enum LogTarget {
    /// Each is written at once, in lines that fit.
    Screen(Screen, Style),
    /// A thread writes them.
    #[cfg(feature = "nats")]
    Queue(LogQueue),
}

/// One message.
struct LogMessage<'a> {
    target: &'a LogTarget,
    text: Vec<u8>,
}

impl<'a> MakeWriter<'a> for LogTarget {
    type Writer = LogMessage<'a>;

    fn make_writer(&'a self) -> LogMessage<'a> {
        LogMessage { target: self, text: Vec::new() }
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
        if self.text.is_empty() {
            return;
        }
        match self.target {
            LogTarget::Screen(screen, style) => {
                let text = String::from_utf8_lossy(&self.text);
                screen.write(style.wrapped(&text).as_bytes());
            }
            #[cfg(feature = "nats")]
            LogTarget::Queue(queue) => queue.add(std::mem::take(&mut self.text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A text that was logged.
    #[derive(Debug, Clone, Default)]
    struct LoggedText(Arc<Mutex<Vec<u8>>>);

    impl Write for LoggedText {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn message_on_terminal_is_wrapped_between_words_and_an_object_is_not() {
        let style = Style { colours: false, width: Some(20) };
        for (log_format, expected) in [
            (LogFormat::Text, "INFO the driver\n  cannot limit it\n"),
            (LogFormat::Json, "INFO the driver cannot limit it\n"),
        ] {
            let shown = LoggedText::default();
            let layout = LogArgs { log_format }.layout(style);
            let target = LogTarget::Screen(Screen::lines(Box::new(shown.clone())), layout);
            let mut message = target.make_writer();
            message.write_all(b"INFO the driver cannot limit it\n").expect("written");
            drop(message);
            let text = shown.0.lock().expect("not poisoned").clone();
            assert_eq!(String::from_utf8_lossy(&text), expected);
        }
    }

    /// The text that `log` logs with a filter.
    fn logged(filter: &str, log: impl FnOnce()) -> String {
        let logged = LoggedText::default();
        let writer = logged.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        let text = logged.0.lock().expect("not poisoned").clone();
        String::from_utf8(text).expect("a text")
    }

    #[test]
    fn outage_is_logged_by_rollout_and_not_by_its_clients() {
        let text = logged(&directives(LogLevel::Info), || {
            tracing::error!(target: "kube_client::client::builder", "failed with error x");
            tracing::error!(target: "async_nats::connector", "failed to connect");
            tracing::warn!(target: "rollout_base::dependency", "it does not answer");
        });
        assert!(text.contains("it does not answer") && !text.contains("failed"), "{text}");
    }

    #[test]
    fn every_crate_is_logged_by_default() {
        let text = logged(&directives(LogLevel::Debug), || {
            tracing::debug!(target: "rollout_engine::journal", "synced");
            tracing::debug!(target: "rollout_base::backoff", "waited");
        });
        assert!(text.contains("synced") && text.contains("waited"), "{text}");
    }

    #[test]
    fn engine_is_logged_by_filters_for_the_coordinator() {
        let is_logged = |filter: &str| {
            let log = || tracing::debug!(target: "rollout_engine::journal::write", "synced");
            !logged(&targets::with_moved(filter), log).is_empty()
        };
        for filter in [
            "rollout_coordinator=debug",
            "warn,rollout_coordinator",
            "rollout_coordinator::engine=debug,rollout_coordinator=off",
            "rollout_coordinator::engine::journal=trace",
            "rollout_coordinator=info,rollout_engine=debug",
            "debug",
        ] {
            assert!(is_logged(filter), "{filter}");
        }
        for filter in [
            "debug,rollout_coordinator=warn",
            "rollout_coordinator::cli=debug",
            "rollout_coordinator::engine::lock=debug",
            "rollout_coordinator=debug,rollout_engine=info",
            "rollout_worker=debug",
            "",
        ] {
            assert!(!is_logged(filter), "{filter}");
        }
    }

    #[test]
    fn base_is_logged_by_filters_for_the_worker() {
        let is_logged = |filter: &str| {
            let log = || tracing::debug!(target: "rollout_base::backoff", "waited");
            !logged(&targets::with_moved(filter), log).is_empty()
        };
        for filter in ["rollout_worker=debug", "rollout_base::backoff=trace", "rollout_base"] {
            assert!(is_logged(filter), "{filter}");
        }
        for filter in ["rollout_worker::service=debug", "rollout_worker=debug,rollout_base=info"] {
            assert!(!is_logged(filter), "{filter}");
        }
    }

    #[test]
    fn docker_is_logged_by_filters_for_the_crates_that_it_was_part_of() {
        let is_logged = |filter: &str| {
            let log = || tracing::debug!(target: "rollout_docker::exec", "waited");
            !logged(&targets::with_moved(filter), log).is_empty()
        };
        for filter in [
            "rollout_worker=debug",
            "rollout_worker::environment=debug",
            "rollout_worker::environment::docker::exec=debug",
            "rollout_environment::docker=debug,rollout_worker=info",
            "rollout_docker=debug",
        ] {
            assert!(is_logged(filter), "{filter}");
        }
        for filter in [
            "rollout_worker::environment::process=debug",
            "rollout_worker::environment::descriptor=debug",
            "rollout_worker=debug,rollout_docker=info",
        ] {
            assert!(!is_logged(filter), "{filter}");
        }
    }

    #[test]
    fn recorder_of_the_gateway_is_logged_by_filters_for_the_worker() {
        let is_logged = |filter: &str| {
            let log = || tracing::debug!(target: "rollout_gateway::proxy::recorder", "waited");
            !logged(&targets::with_moved(filter), log).is_empty()
        };
        for filter in [
            "rollout_worker=debug",
            "rollout_worker::gateway=debug",
            "rollout_worker::gateway::recorder=debug",
        ] {
            assert!(is_logged(filter), "{filter}");
        }
        assert!(!is_logged("rollout_worker::environment=debug"));
    }
}
