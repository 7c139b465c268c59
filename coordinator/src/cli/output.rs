//! Output of the program. Data goes to standard output, everything else to standard error. A closed
//! pipe or terminal is no error.

use std::io::{self, IsTerminal as _, Write};

use console::Term;
use rollout_protocol::exit::ExitCode;
use rustix::io::Errno;
use serde::Serialize;

use super::error::CliError;
use crate::config::{env_vars, local_time};
use crate::events::sinks::terminal::{Screen, Style};
use crate::events::{SinkStarter, sinks};
use crate::results::escape;

/// Prints for one command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Printer {
    quiet: bool,
    /// Style of standard output.
    pub(super) out: Style,
    /// Style of standard error.
    pub(super) err: Style,
    /// At the start of the program.
    out_is_terminal: bool,
    err_is_terminal: bool,
}

impl Printer {
    /// Uses colours on terminals that support them, unless `NO_COLOR` is set.
    pub(super) fn from_environment(quiet: bool) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let may = !set(env_vars::NO_COLOR.name) && !dumb;
        let out_is_terminal = io::stdout().is_terminal();
        let err_is_terminal = io::stderr().is_terminal();
        Self {
            quiet,
            out: Style { colours: may && out_is_terminal, width: width(&Term::stdout()) },
            err: Style { colours: may && err_is_terminal, width: width(&Term::stderr()) },
            out_is_terminal,
            err_is_terminal: err_is_terminal && !dumb,
        }
    }

    /// The same, but only errors are shown if `quiet` is set.
    pub(super) fn with_quiet(self, quiet: bool) -> Self {
        Self { quiet: self.quiet || quiet, ..self }
    }

    /// Whether only errors are shown.
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// The screen for progress and log messages.
    pub(super) fn screen(&self) -> Screen {
        if self.err_is_terminal && !self.quiet {
            Screen::terminal(Box::new(io::stderr()))
        } else {
            Screen::lines(Box::new(io::stderr()))
        }
    }

    /// The outputs of a run's events: progress on the screen, and lines of JSON on standard output.
    pub(super) fn sinks(&self, screen: Screen, progress: bool, json: bool) -> Vec<SinkStarter> {
        let progress = progress && !self.quiet;
        let terminal = progress.then(|| sinks::terminal(screen, self.err));
        let json = json.then(|| sinks::json(Box::new(io::stdout())));
        terminal.into_iter().chain(json).collect()
    }

    /// Whether standard output is a terminal.
    pub(super) fn prints_to_terminal(&self) -> bool {
        self.out_is_terminal
    }

    /// Prints the requested data.
    pub(super) fn data(&self, text: &str) -> Result<(), CliError> {
        self.bytes(text.as_bytes()).map(drop)
    }

    /// Prints one JSON document.
    pub(super) fn json(&self, document: &impl Serialize) -> Result<(), CliError> {
        let text = serde_json::to_string_pretty(document)
            .map_err(|error| CliError::failure("cannot write the result as JSON", &error))?;
        self.data(&format!("{text}\n"))
    }

    /// Prints bytes of the requested data; returns whether there is a reader.
    pub(super) fn bytes(&self, bytes: &[u8]) -> Result<bool, CliError> {
        let mut out = io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Ok(()) => Ok(true),
            Err(error) if self.has_no_reader(&error) => Ok(false),
            Err(error) => Err(CliError::failure("cannot write to standard output", &error)),
        }
    }

    /// Whether standard output cannot be written because a pipe or a terminal was closed.
    fn has_no_reader(&self, error: &io::Error) -> bool {
        let is_closed_terminal = Errno::from_io_error(error) == Some(Errno::IO);
        error.kind() == io::ErrorKind::BrokenPipe || self.out_is_terminal && is_closed_terminal
    }

    /// Prints a warning.
    pub(super) fn warning(&self, message: &str) {
        if !self.quiet {
            self.labelled(&self.err.warning("warning:"), message);
        }
    }

    /// Warns if the zone of `TZ` is unknown. Commands that show local times call it, once each.
    pub(super) fn warn_of_unknown_zone(&self) {
        if let Some(message) = local_time::unknown_zone() {
            self.warning(&message);
        }
    }

    /// Prints a fact that a user should know.
    pub(super) fn note(&self, message: &str) {
        if !self.quiet {
            self.labelled(&self.err.heading("note:"), message);
        }
    }

    /// Says that the scripts of a trial printed nothing: silence could also mean that it is not known.
    pub(super) fn note_no_output(&self) {
        self.note("nothing was printed");
    }

    /// Prints a suggested action.
    pub(super) fn hint(&self, message: &str) {
        if !self.quiet {
            self.labelled(&self.err.heading("hint:"), message);
        }
    }

    /// Prints the error of a command.
    pub(super) fn error(&self, error: &CliError) {
        self.stderr(&render(error, self.err));
    }

    fn labelled(&self, label: &str, message: &str) {
        self.stderr(&line(self.err, &format!("{label} {}", escape::line(message))));
    }

    fn stderr(&self, text: &str) {
        // A failure has nowhere to be reported.
        let _unwritten = io::stderr().write_all(text.as_bytes());
    }
}

/// Columns of a terminal; `None` for a file or a pipe.
fn width(of: &Term) -> Option<usize> {
    let (_, columns) = of.size_checked().filter(|_| of.is_term())?;
    Some(usize::from(columns)).filter(|columns| *columns > 0)
}

/// An error as text. A stop on request is not labelled as an error.
pub(super) fn render(error: &CliError, style: Style) -> String {
    let word = if error.code == ExitCode::Cancelled { "stopped:" } else { "error:" };
    let message = format!("{} {}", style.failure(word), escape::line(&error.message));
    let details = error.details.iter().map(|detail| format!("  {}", escape::line(detail)));
    let hints = error.hints.iter();
    let hints = hints.map(|hint| format!("{} {}", style.heading("hint:"), escape::line(hint)));
    std::iter::once(message).chain(details).chain(hints).map(|text| line(style, &text)).collect()
}

/// A line of text, which a terminal may show as several.
fn line(style: Style, text: &str) -> String {
    format!("{}\n", style.wrapped(text))
}

/// A word of a shell command.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_shell() {
        let words = ["job.yaml", "-n", "4", "--set", "name=a b", "it's", ""].map(quoted);
        assert_eq!(words, ["job.yaml", "-n", "4", "--set", "'name=a b'", r"'it'\''s'", "''"]);
    }
}
