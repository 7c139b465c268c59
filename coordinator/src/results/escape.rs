//! Escaping of untrusted text for terminals, text files and spreadsheets.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes `text` for one line of a terminal: control characters, including line ends, and
/// characters that change the direction or visibility of the following text become escapes like
/// `\x1b` and `\u{202e}`.
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, harmful)
}

/// Escapes `text` for a text file that may be shown in a terminal: as [`line()`], but keeps line
/// ends and tabs.
pub fn block(text: &str) -> Cow<'_, str> {
    escaped(text, |c| !matches!(c, '\n' | '\t') && harmful(c))
}

/// Escapes `text` for a table cell that a spreadsheet may open: as [`line()`], and prefixes text
/// that the spreadsheet would read as a formula with an apostrophe.
pub fn cell(text: &str) -> Cow<'_, str> {
    let shown = line(text);
    if shown.starts_with(['=', '+', '-', '@', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}']) {
        return Cow::Owned(format!("'{shown}"));
    }
    shown
}

fn escaped(text: &str, bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&bad) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if !bad(c) {
            out.push(c);
            continue;
        }
        let written = match c {
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            c if u32::from(c) < 0x100 => write!(out, "\\x{:02x}", u32::from(c)),
            c => write!(out, "\\u{{{:x}}}", u32::from(c)),
        };
        written.expect("writing to a string does not fail");
    }
    Cow::Owned(out)
}

fn harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_and_bidi_characters_are_escaped() {
        assert_eq!(line("plain ✓ 日本"), "plain ✓ 日本");
        assert_eq!(line("a\x1b[2Jb\r\n\tc\u{9b}d\x7f"), "a\\x1b[2Jb\\r\\n\\tc\\x9bd\\x7f");
        assert_eq!(line("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(block("a\n\tb\x1b"), "a\n\tb\\x1b");
        assert_eq!(cell("=1+1"), "'=1+1");
        assert_eq!(cell("@x\n"), "'@x\\n");
        assert_eq!(cell("1-1"), "1-1");
    }

    proptest! {
        #[test]
        fn escaped_line_of_any_text_has_no_harmful_character(text in any::<String>()) {
            prop_assert!(!line(&text).chars().any(harmful));
        }
    }
}
