//! The look of text: colours, used sparingly and only where they are displayed, and the width of lines.

use super::format;

/// Blanks before the lines that continue a text.
const INDENT: usize = 2;

/// Look of text on an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether escape sequences are written at all.
    pub colours: bool,
    /// Columns of the terminal; `None` for an output whose lines may have any length.
    pub width: Option<usize>,
}

impl Style {
    /// Plain text.
    pub const PLAIN: Self = Self { colours: false, width: None };

    /// Success.
    pub fn success(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Failure.
    pub fn failure(self, text: &str) -> String {
        self.paint("31", text)
    }

    /// Warning.
    pub fn warning(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// Heading.
    pub fn heading(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// The text in lines that fit, further ones indented.
    pub fn wrapped(self, text: &str) -> String {
        self.wrapped_at(text, INDENT)
    }

    /// The text in lines that fit, further ones after `indent` blanks.
    pub fn wrapped_at(self, text: &str, indent: usize) -> String {
        match self.width {
            Some(width) => format::wrapped(text, width, indent),
            None => text.to_owned(),
        }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
