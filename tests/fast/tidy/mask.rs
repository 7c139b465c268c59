//! Separation of Rust code from comments and literals, so that a rule reads only its part.

/// A Rust source in two layers with the same lines; the other layer's text and the content of
/// literals are blank.
#[derive(Default)]
pub(crate) struct MaskedSource {
    /// Code, literals emptied.
    pub(crate) code: String,
    /// Comments, doc comments included.
    pub(crate) comments: String,
}

/// Splits `text`. It need not compile, but literals and comments must be closed.
pub(crate) fn mask(text: &str) -> MaskedSource {
    let mut masker = SourceMasker { rest: text, out: MaskedSource::default() };
    while !masker.rest.is_empty() {
        masker.step();
    }
    masker.out
}

enum MaskLayer {
    Code,
    Comment,
    Literal,
}

struct SourceMasker<'a> {
    rest: &'a str,
    out: MaskedSource,
}

impl SourceMasker<'_> {
    fn step(&mut self) {
        let rest = self.rest;
        if rest.starts_with("//") {
            self.take(rest.find('\n').unwrap_or(rest.len()), &MaskLayer::Comment);
        } else if rest.starts_with("/*") {
            self.take(block_comment(rest), &MaskLayer::Comment);
        } else if let Some(hashes) = raw_string(rest, self.after_word()) {
            let open = rest.find('"').expect("checked") + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            let end = rest[open..].find(&close).map_or(rest.len(), |at| open + at + close.len());
            self.take(end, &MaskLayer::Literal);
        } else if rest.starts_with('"') {
            self.take(quoted(rest, '"'), &MaskLayer::Literal);
        } else if let Some(end) = char_literal(rest) {
            self.take(end, &MaskLayer::Literal);
        } else {
            self.take(rest.chars().next().map_or(0, char::len_utf8), &MaskLayer::Code);
        }
    }

    /// Whether the code so far ends inside a word, so that a following `r"` is no raw string.
    fn after_word(&self) -> bool {
        self.out.code.ends_with(|c: char| c.is_alphanumeric() || c == '_')
    }

    fn take(&mut self, length: usize, layer: &MaskLayer) {
        let (piece, rest) = self.rest.split_at(length);
        self.rest = rest;
        for c in piece.chars() {
            let blank = if c == '\n' { '\n' } else { ' ' };
            self.out.code.push(if matches!(layer, MaskLayer::Code) { c } else { blank });
            self.out.comments.push(if matches!(layer, MaskLayer::Comment) { c } else { blank });
        }
    }
}

/// Length of a block comment; they nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Number of hashes if a raw string begins here.
fn raw_string(text: &str, after_word: bool) -> Option<usize> {
    if after_word {
        return None;
    }
    let body = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    body[hashes..].starts_with('"').then_some(hashes)
}

/// Length of a literal in `quote`s with escapes.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// Length of a character literal, as opposed to a lifetime.
fn char_literal(text: &str) -> Option<usize> {
    let body = text.strip_prefix('\'')?;
    let mut chars = body.chars();
    let first = chars.next()?;
    (first == '\\' || chars.next() == Some('\'')).then(|| quoted(text, '\''))
}

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn mask_separates_code_comments_and_literals() {
        let text = concat!(
            "fn a<'x>(c: &'x str) -> char { '{' } // }\n",
            "let s = \"\\\"{\"; /* { /* { */\n */ let t = r#\"\"{\"#; let u = b'\\'';\n",
            "var\"x\"",
        );
        let masked = mask(text);
        assert_eq!(masked.code.lines().count(), text.lines().count());
        assert_eq!(masked.code.matches('{').count(), 1, "{}", masked.code);
        assert_eq!(masked.code.matches('}').count(), 1, "{}", masked.code);
        assert!(masked.code.contains("let t =") && masked.code.contains("let u ="));
        assert!(masked.comments.contains("// }") && !masked.comments.contains("let"));
    }
}
