//! Colours, used sparingly and only where they are shown.

/// Whether and how text is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether escape sequences are written at all.
    pub colours: bool,
}

impl Style {
    /// Plain text.
    pub const PLAIN: Self = Self { colours: false };

    /// Something that went well.
    pub fn success(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Something that failed.
    pub fn failure(self, text: &str) -> String {
        self.paint("31", text)
    }

    /// Something to look at.
    pub fn warning(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// A heading.
    pub fn heading(self, text: &str) -> String {
        self.paint("1", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
