//! Single values of fields: text, numbers, words and paths.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::super::diagnostics::{ErrorKind, nearest};
use super::super::keys::Key;
use super::super::value::{ConfigValue, flag_index};
use super::{Field, UnknownKeys};

/// A scalar as written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scalar<'a> {
    Bool(bool),
    Integer(i64, &'a str),
    Float(f64, &'a str),
    Text(&'a str),
}

impl<'a> Field<'a> {
    /// Whether the file has a format shared with tools that also read other spellings of a value
    /// whose meaning is plain: numbers and truth values in text, whole numbers with a fraction of 0.
    pub(crate) fn is_shared(&self) -> bool {
        self.reader.unknown == UnknownKeys::Warnings
    }

    /// Reads `true` or `false`.
    pub(crate) fn bool(&self) -> Option<bool> {
        match &self.value()?.value {
            ConfigValue::Bool { value, .. } => Some(*value),
            ConfigValue::String(text) if self.is_shared() => match text.to_lowercase().parse() {
                Ok(value) => Some(value),
                Err(_) => self.wrong_type("true or false"),
            },
            _ => self.wrong_type("true or false"),
        }
    }

    /// Reads text.
    pub(crate) fn string(&self) -> Option<String> {
        match &self.value()?.value {
            ConfigValue::String(text) => self.without_nul(text),
            _ => self.wrong_type("text"),
        }
    }

    /// Reads text that is not empty.
    pub(crate) fn non_empty_string(&self) -> Option<String> {
        let text = self.string()?;
        if text.trim().is_empty() {
            self.bad_value("text that is not empty");
            return None;
        }
        Some(text)
    }

    /// Reads a path of a file or directory of this host.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        debug_assert!(self.kind.may_be_of_host(), "{}: declared as no path of the host", self.key);
        let path = PathBuf::from(self.non_empty_string()?);
        // A path typed on the command line is relative to the current directory, not to the file's.
        let typed = flag_index(self.line).and_then(|_| std::path::absolute(&path).ok());
        Some(typed.unwrap_or(path))
    }

    /// Reads a path of this host. Without one it is `default`, which the document must be allowed to
    /// name, too.
    pub(crate) fn path_or(&self, key: Key, default: &str) -> PathBuf {
        if !self.is_present() {
            self.refuse(key, default);
        }
        self.path().unwrap_or_else(|| default.into())
    }

    /// The address of a repository. A local one typed on the command line is relative to the
    /// current directory.
    pub(crate) fn typed_path(&self, address: &str) -> String {
        let local = !address.contains("://") && !address.contains(':');
        let typed = flag_index(self.line).filter(|_| local && !address.starts_with('-'));
        let path = typed.and_then(|_| std::path::absolute(address).ok());
        let text = path.and_then(|path| path.to_str().map(str::to_owned));
        text.unwrap_or_else(|| address.to_owned())
    }

    /// Reads text, or a number or boolean as the text it was written as.
    pub(crate) fn text(&self) -> Option<String> {
        match &self.value()?.value {
            ConfigValue::String(text)
            | ConfigValue::Bool { text, .. }
            | ConfigValue::Integer { text, .. }
            | ConfigValue::Float { text, .. } => self.without_nul(text),
            _ => self.wrong_type("text"),
        }
    }

    fn without_nul(&self, text: &str) -> Option<String> {
        if text.contains('\0') {
            self.reject(ErrorKind::BadValue, "text with a NUL character", "text without one");
            return None;
        }
        Some(text.to_owned())
    }

    /// Reads a whole number within `range`.
    pub(crate) fn integer(&self, range: &RangeInclusive<u64>) -> Option<u64> {
        let expected = || format!("a whole number from {} to {}", range.start(), range.end());
        let value = match &self.value()?.value {
            ConfigValue::Integer { value, .. } => Some(*value),
            ConfigValue::Float { value, .. } if self.is_shared() => whole(*value),
            ConfigValue::String(text) if self.is_shared() => text.trim().parse().ok(),
            _ => None,
        };
        let Some(value) = value else { return self.wrong_type(&expected()) };
        let value = u64::try_from(value).ok().filter(|v| range.contains(v));
        if value.is_none() {
            self.bad_value(&expected());
        }
        value
    }

    /// Reads a finite number that `accept` allows.
    pub(crate) fn number(&self, expected: &str, accept: impl Fn(f64) -> bool) -> Option<f64> {
        let value = match &self.value()?.value {
            ConfigValue::Integer { value, .. } => Some(*value as f64),
            ConfigValue::Float { value, .. } => Some(*value),
            ConfigValue::String(text) if self.is_shared() => text.trim().parse().ok(),
            _ => None,
        };
        let Some(value) = value else { return self.wrong_type(expected) };
        if value.is_finite() && accept(value) {
            return Some(value);
        }
        self.bad_value(expected);
        None
    }

    /// Reads one of `words`.
    pub(crate) fn keyword<T: Copy>(&self, words: &[(&'static str, T)]) -> Option<T> {
        self.word_of(words, |text, word| text == word)
    }

    /// Reads one of `words` in upper or lower case.
    pub(crate) fn keyword_in_any_case<T: Copy>(&self, words: &[(&'static str, T)]) -> Option<T> {
        self.word_of(words, str::eq_ignore_ascii_case)
    }

    fn word_of<T: Copy>(
        &self,
        words: &[(&'static str, T)],
        is_same: impl Fn(&str, &str) -> bool,
    ) -> Option<T> {
        let text = self.non_empty_string()?;
        let found = words.iter().find(|(word, _)| is_same(&text, word));
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.reject_unknown(&text, &known);
        }
        found.map(|(_, value)| *value)
    }

    /// Records that `text` is not one of `known`.
    pub(crate) fn reject_unknown(&self, text: &str, known: &[&str]) {
        let expected = format!("one of {}", known.join(", "));
        match nearest(text, known.iter().copied()) {
            Some(near) => {
                let hint = format!("did you mean `{near}`?");
                self.reject_with_hint(ErrorKind::BadValue, self.describe(), expected, hint);
            }
            None => self.reject(ErrorKind::BadValue, self.describe(), expected),
        }
    }

    /// Reads a scalar, for values with several spellings.
    pub(crate) fn scalar(&self) -> Option<Scalar<'a>> {
        match &self.value()?.value {
            ConfigValue::Bool { value, .. } => Some(Scalar::Bool(*value)),
            ConfigValue::Integer { value, text } => Some(Scalar::Integer(*value, text)),
            ConfigValue::Float { value, text } => Some(Scalar::Float(*value, text)),
            ConfigValue::String(text) => Some(Scalar::Text(text)),
            _ => self.wrong_type("a single value"),
        }
    }
}

/// A number without a fraction.
fn whole(number: f64) -> Option<i64> {
    // Beyond this, not every whole number is a float.
    let is_exact = number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0;
    is_exact.then_some(number as i64)
}
