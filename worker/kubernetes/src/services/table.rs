//! Tables of a compose file whose keys are taken one by one. A key that is left is unsupported, by
//! its path.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::problems::Problems;

/// A table at a path.
#[derive(Debug)]
pub(super) struct Table<'p> {
    path: String,
    map: Map<String, Value>,
    pub(super) problems: &'p Problems,
}

/// The value of a key, with its path.
pub(super) type Taken = (String, Value);

/// Whether a value is empty or off.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// A scalar as text.
pub(super) fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null => Some(String::new()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

/// A number, also if it is written as text.
pub(super) fn number(value: &Value) -> Option<f64> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    (number.is_finite() && number > 0.0).then_some(number)
}

impl<'p> Table<'p> {
    /// The table that `value` is. Nothing is an empty table.
    pub(super) fn new(path: String, value: Value, problems: &'p Problems) -> Self {
        let map = match value {
            Value::Object(map) => map,
            Value::Null => Map::new(),
            _ => {
                problems.invalid(&path, "it is not a map");
                Map::new()
            }
        };
        Self { path, map, problems }
    }

    /// The path of a key.
    pub(super) fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Takes a key. One without a value counts as absent.
    pub(super) fn take(&mut self, key: &str) -> Option<Taken> {
        let value = self.map.remove(key)?;
        (!is_empty(&value)).then(|| (self.at(key), value))
    }

    /// Whether a key has an empty text or list, which is not the same as no value.
    pub(super) fn is_blank(&self, key: &str) -> bool {
        match self.map.get(key) {
            Some(Value::String(text)) => text.trim().is_empty(),
            Some(Value::Array(items)) => items.is_empty(),
            _ => false,
        }
    }

    /// Drops keys that change nothing in a pod.
    pub(super) fn ignore(&mut self, keys: &[&str]) {
        for key in keys {
            self.map.remove(*key);
        }
    }

    /// Takes a text.
    pub(super) fn text(&mut self, key: &str) -> Option<String> {
        let (at, value) = self.take(key)?;
        let text = scalar(&value);
        if text.is_none() {
            self.problems.invalid(&at, "it is not a text");
        }
        text
    }

    /// Takes true or false.
    pub(super) fn flag(&mut self, key: &str) -> bool {
        let Some((at, value)) = self.take(key) else { return false };
        match scalar(&value).as_deref() {
            Some("true") => true,
            Some("false") => false,
            _ => {
                self.problems.invalid(&at, "it is neither true nor false");
                false
            }
        }
    }

    /// Takes a key that is true unless the file says otherwise.
    pub(super) fn is_off(&mut self, key: &str) -> bool {
        let value = self.map.remove(key);
        value.as_ref().and_then(scalar).is_some_and(|text| text == "false")
    }

    /// Takes a value that `read` understands.
    pub(super) fn parsed<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&Value) -> Option<T>,
        expected: &str,
    ) -> Option<T> {
        let (at, value) = self.take(key)?;
        let found = read(&value);
        if found.is_none() {
            self.problems.invalid(&at, &format!("{value} is not {expected}"));
        }
        found
    }

    /// Takes a list of texts; one text is a list, too.
    pub(super) fn texts(&mut self, key: &str) -> Vec<String> {
        let Some((at, value)) = self.take(key) else { return Vec::new() };
        let items = match value {
            Value::Array(items) => items,
            other => vec![other],
        };
        let texts: Option<Vec<_>> = items.iter().map(scalar).collect();
        texts.unwrap_or_else(|| {
            self.problems.invalid(&at, "it is not a list of texts");
            Vec::new()
        })
    }

    /// Takes a map of texts, or a list of `NAME=value`. A name without a value has none.
    pub(super) fn pairs(&mut self, key: &str) -> BTreeMap<String, Option<String>> {
        let Some((at, value)) = self.take(key) else { return BTreeMap::new() };
        let pairs: Option<BTreeMap<_, _>> = match value {
            Value::Object(map) => map
                .into_iter()
                .map(|(name, value)| match value {
                    Value::Null => Some((name, None)),
                    value => Some((name, Some(scalar(&value)?))),
                })
                .collect(),
            Value::Array(items) => items
                .iter()
                .map(|item| {
                    let item = scalar(item)?;
                    Some(match item.split_once('=') {
                        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                        None => (item, None),
                    })
                })
                .collect(),
            _ => None,
        };
        pairs.unwrap_or_else(|| {
            self.problems.invalid(&at, "it is neither a map nor a list of `NAME=value`");
            BTreeMap::new()
        })
    }

    /// Takes a table.
    pub(super) fn table(&mut self, key: &str) -> Option<Table<'p>> {
        let (at, value) = self.take(key)?;
        Some(Table::new(at, value, self.problems))
    }

    /// Takes all entries, whose names the user chooses.
    pub(super) fn into_entries(self) -> impl Iterator<Item = (String, Taken)> {
        let path = self.path;
        self.map.into_iter().map(move |(name, value)| {
            let at = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            (name, (at, value))
        })
    }

    /// Every key that is left is unsupported, for the reason that `why` gives.
    pub(super) fn finish(self, why: impl Fn(&str) -> &'static str) {
        for (key, value) in &self.map {
            if !key.starts_with("x-") && !is_empty(value) {
                self.problems.unsupported(&self.at(key), why(key));
            }
        }
    }
}
