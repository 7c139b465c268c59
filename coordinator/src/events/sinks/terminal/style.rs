//! Text colours, used sparingly and only where they are displayed.

/// Colouring of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether escape sequences are written at all.
    pub colours: bool,
}

impl Style {
    /// Plain text.
    pub const PLAIN: Self = Self { colours: false };

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

    fn paint(self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
