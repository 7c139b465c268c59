//! Words of a Dockerfile: quotes, escapes and variables.

/// Deepest nesting of `${a:-${b}}`.
const MAX_NESTING: usize = 16;

/// Longest text with the values of its variables, in bytes: the longest string of an environment.
const MAX_EXPANDED_BYTES: usize = 128 * 1024;

/// Source of variable values.
pub trait VariableLookup {
    /// The value of a variable that is set.
    fn get(&self, name: &str) -> Option<&str>;
}

/// Splits at blanks that are neither quoted nor escaped. Quotes and escapes stay in the words.
pub fn split(text: &str, escape: char) -> Vec<String> {
    split_words(text, escape, false)
}

/// The same for a command, whose words may begin here-documents: blanks after `<<` stay, which may
/// separate it from the word that ends the here-document.
pub(super) fn split_command(text: &str, escape: char) -> Vec<String> {
    split_words(text, escape, true)
}

fn split_words(text: &str, escape: char, has_heredocs: bool) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c.is_whitespace() && quote.is_none() {
            if !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            continue;
        }
        word.push(c);
        if c == escape && quote != Some('\'') {
            word.extend(chars.next());
        } else if quote == Some(c) {
            quote = None;
        } else if quote.is_none() && (c == '"' || c == '\'') {
            quote = Some(c);
        } else if has_heredocs && quote.is_none() && c == '<' && chars.next_if_eq(&'<').is_some() {
            word.push('<');
            while let Some(blank) = chars.next_if(|c| matches!(c, ' ' | '\t' | '\r')) {
                word.push(blank);
            }
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Removes quotes and escapes and substitutes variables.
///
/// # Errors
/// A message about the part that is not supported or not closed.
pub fn expand(word: &str, escape: char, variables: &impl VariableLookup) -> Result<String, String> {
    let mut expansion = WordExpansion { escape, variables };
    expansion.run(&mut word.chars().peekable(), None, 0)
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

struct WordExpansion<'a, V> {
    escape: char,
    variables: &'a V,
}

impl<V: VariableLookup> WordExpansion<'_, V> {
    /// Reads up to `until`, or to the end.
    fn run(
        &mut self,
        chars: &mut Chars<'_>,
        until: Option<char>,
        depth: usize,
    ) -> Result<String, String> {
        if depth > MAX_NESTING {
            return Err("substitutions are nested too deeply".to_owned());
        }
        let quoted = until == Some('"');
        let mut plain = String::new();
        while let Some(c) = chars.next() {
            match c {
                c if Some(c) == until => return Ok(plain),
                '\'' if !quoted => loop {
                    match chars.next() {
                        Some('\'') => break,
                        Some(c) => plain.push(c),
                        None => return Err("a quote is not closed".to_owned()),
                    }
                },
                '"' => plain.push_str(&self.run(chars, Some('"'), depth + 1)?),
                c if c == self.escape => {
                    let next = chars.next();
                    let special = |c: &char| matches!(c, '"' | '$') || *c == self.escape;
                    if quoted && !next.as_ref().is_some_and(special) {
                        plain.push(c);
                    }
                    plain.extend(next);
                }
                '$' => {
                    plain.push_str(&self.variable(chars, depth)?);
                    if plain.len() > MAX_EXPANDED_BYTES {
                        return Err("the text is too long with its variables".to_owned());
                    }
                }
                c => plain.push(c),
            }
        }
        match until {
            None => Ok(plain),
            Some(_) => Err("a quote or brace is not closed".to_owned()),
        }
    }

    fn variable(&mut self, chars: &mut Chars<'_>, depth: usize) -> Result<String, String> {
        let braced = chars.next_if_eq(&'{').is_some();
        let mut name = String::new();
        while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(c);
        }
        let value = self.variables.get(&name);
        if !braced {
            return Ok(if name.is_empty() {
                "$".to_owned()
            } else {
                value.unwrap_or("").to_owned()
            });
        }
        let colon = chars.next_if_eq(&':').is_some();
        let set = value.filter(|value| !(colon && value.is_empty())).map(str::to_owned);
        match chars.next() {
            Some('}') if !colon && !name.is_empty() => Ok(set.unwrap_or_default()),
            Some('-') => {
                let other = self.run(chars, Some('}'), depth + 1)?;
                Ok(set.unwrap_or(other))
            }
            Some('+') => {
                let other = self.run(chars, Some('}'), depth + 1)?;
                Ok(set.map_or(String::new(), |_| other))
            }
            _ => Err(format!("the substitution of `{name}` is not supported")),
        }
    }
}
