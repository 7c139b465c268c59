//! Reads typed fields of JSON objects that a harness wrote.

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::limits;

/// The largest integer up to which a JSON number with a fraction of zero is exact.
const EXACT_INTEGERS: f64 = 9_007_199_254_740_992.0;

/// A field that breaks the schema of its document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// It is required and absent.
    #[error("`{path}` is missing")]
    Missing {
        /// Names of the field and the objects around it.
        path: String,
    },
    /// It has another form.
    #[error("`{path}` is not {expected}")]
    Invalid {
        /// Names of the field and the objects around it.
        path: String,
        /// The accepted form.
        expected: String,
    },
    /// The schema does not have it.
    #[error("`{path}` is not a property of this document")]
    Unknown {
        /// Name of the field.
        path: String,
    },
}

/// An object of a document.
pub(super) struct JsonObject<'a> {
    map: &'a Map<String, Value>,
    /// Path of the object with a dot at its end; empty for the document.
    prefix: String,
}

impl<'a> JsonObject<'a> {
    /// The document itself.
    pub(super) const fn document(map: &'a Map<String, Value>) -> Self {
        Self { map, prefix: String::new() }
    }

    fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The error of a field with another form.
    pub(super) fn invalid(&self, key: &str, expected: impl Into<String>) -> FieldError {
        FieldError::Invalid { path: self.path(key), expected: expected.into() }
    }

    /// The error of an absent field.
    pub(super) fn missing(&self, key: &str) -> FieldError {
        FieldError::Missing { path: self.path(key) }
    }

    /// The value of a field of any form.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key)
    }

    /// Checks that the object has no other fields than these.
    pub(super) fn only(&self, known: &[&[&str]]) -> Result<(), FieldError> {
        let is_known = |key: &str| known.iter().any(|keys| keys.contains(&key));
        match self.map.keys().find(|key| !is_known(key)) {
            None => Ok(()),
            Some(key) => {
                let path = limits::shorten(self.path(key), limits::HARNESS_NAME_BYTES);
                Err(FieldError::Unknown { path })
            }
        }
    }

    fn read<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, FieldError> {
        let Some(value) = self.map.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.invalid(key, expected))
    }

    /// Text.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, FieldError> {
        self.read(key, "text", Value::as_str)
    }

    /// Text that must be there.
    pub(super) fn required_text(&self, key: &str) -> Result<&'a str, FieldError> {
        self.text(key)?.ok_or_else(|| self.missing(key))
    }

    /// A whole number from 0.
    pub(super) fn count(&self, key: &str) -> Result<Option<u64>, FieldError> {
        self.read(key, "a whole number from 0", whole_number)
    }

    /// A whole number from 0 that must be there.
    pub(super) fn required_count(&self, key: &str) -> Result<u64, FieldError> {
        self.count(key)?.ok_or_else(|| self.missing(key))
    }

    /// A number.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, FieldError> {
        self.read(key, "a number", |value| value.as_f64().filter(|number| number.is_finite()))
    }

    /// `true` or `false`.
    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>, FieldError> {
        self.read(key, "true or false", Value::as_bool)
    }

    /// A time.
    pub(super) fn required_time(&self, key: &str) -> Result<Timestamp, FieldError> {
        let read = |value: &Value| value.as_str()?.parse().ok();
        self.read(key, "a time of RFC 3339", read)?.ok_or_else(|| self.missing(key))
    }

    /// `prefix` and 64 lower-case hexadecimal digits.
    pub(super) fn digest(&self, key: &str, prefix: &str) -> Result<Option<Digest>, FieldError> {
        let read = |value: &Value| {
            let hex = value.as_str()?.strip_prefix(prefix)?;
            format!("sha256:{hex}").parse().ok()
        };
        self.read(key, &format!("`{prefix}` and 64 lower-case hexadecimal digits"), read)
    }

    /// One of `words`.
    pub(super) fn word<T: Copy>(
        &self,
        key: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, FieldError> {
        let Some(value) = self.map.get(key) else { return Ok(None) };
        let found = value.as_str().and_then(|text| words.iter().find(|(word, _)| *word == text));
        let known = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        found
            .map(|(_, value)| Some(*value))
            .ok_or_else(|| self.invalid(key, format!("one of {}", known())))
    }

    /// One of `words` that must be there.
    pub(super) fn required_word<T: Copy>(
        &self,
        key: &str,
        words: &[(&str, T)],
    ) -> Result<T, FieldError> {
        self.word(key, words)?.ok_or_else(|| self.missing(key))
    }

    /// An object.
    pub(super) fn object(&self, key: &str) -> Result<Option<Self>, FieldError> {
        let map = self.read(key, "an object", Value::as_object)?;
        Ok(map.map(|map| Self { map, prefix: format!("{}{key}.", self.prefix) }))
    }

    /// An object that must be there.
    pub(super) fn required_object(&self, key: &str) -> Result<Self, FieldError> {
        self.object(key)?.ok_or_else(|| self.missing(key))
    }

    /// A list of objects; empty if absent.
    pub(super) fn objects(&self, key: &str) -> Result<Vec<Self>, FieldError> {
        let items = self.read(key, "a list", Value::as_array)?;
        let object = |(index, item): (usize, &'a Value)| {
            let map = item.as_object();
            let map = map.ok_or_else(|| self.invalid(&format!("{key}[{index}]"), "an object"))?;
            Ok(Self { map, prefix: format!("{}{key}[{index}].", self.prefix) })
        };
        items.into_iter().flatten().enumerate().map(object).collect()
    }

    /// The fields, ascending by name.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
        self.map.iter().map(|(name, value)| (name.as_str(), value))
    }
}

/// A JSON number without a fraction, also when it is written with one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number is whole, not negative, and below 2^53"
)]
fn whole_number(value: &Value) -> Option<u64> {
    let exact = |number: &f64| number.fract() == 0.0 && (0.0..EXACT_INTEGERS).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(exact).map(|number| number as u64))
}
