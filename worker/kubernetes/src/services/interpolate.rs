//! Variables in the values of a compose file.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::problems;
use super::size::VariableBytes;

/// Deepest nesting of `${a:-${b}}`.
const MAX_NESTING: usize = 16;

/// Variables that a file can refer to.
#[derive(Debug, Clone, Default)]
pub(super) struct Variables {
    /// Those of every task.
    pub(super) provided: BTreeMap<String, String>,
    /// Those of the trial, which may be secrets.
    pub(super) trial: BTreeMap<String, String>,
    /// Those of the file `.env`.
    pub(super) file: BTreeMap<String, String>,
}

impl Variables {
    /// The value of a variable.
    pub(super) fn get(&self, name: &str) -> Option<&String> {
        let all = [&self.provided, &self.trial, &self.file];
        all.into_iter().find_map(|variables| variables.get(name))
    }

    /// Whether the value of a variable is that of the trial.
    pub(super) fn is_of_trial(&self, name: &str) -> bool {
        !self.provided.contains_key(name) && self.trial.contains_key(name)
    }
}

/// A use of a variable of the trial.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VariableUse {
    /// Path of the value, for messages: names in it may have dots.
    pub(super) at: String,
    pub(super) place: UsePlace,
    pub(super) name: String,
}

/// The part of the file that uses a variable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum UsePlace {
    /// A part that services merge.
    Part,
    /// The variables of a service.
    Environment(String),
    Other,
}

impl UsePlace {
    fn from_path(path: &[String]) -> Self {
        match path {
            [top, ..] if top.starts_with("x-") => Self::Part,
            [top, service, key, ..] if top == "services" && key == "environment" => {
                Self::Environment(service.clone())
            }
            _ => Self::Other,
        }
    }
}

/// Replaces the variables of all values.
#[derive(Debug)]
pub(super) struct Interpolation<'a> {
    variables: &'a Variables,
    /// Bytes that the values of variables may still have.
    pub(super) bytes: VariableBytes,
    /// Keys on the way to the current value.
    path: Vec<String>,
    /// Variables of the trial in the current value.
    found: BTreeSet<String>,
    /// Variables of the trial that were used.
    pub(super) trial: BTreeSet<VariableUse>,
    /// Variables that are not set and have no default, with the path of their first use.
    pub(super) unset: BTreeMap<String, String>,
    /// Whether any variable is not set.
    pub(super) is_incomplete: bool,
}

impl<'a> Interpolation<'a> {
    pub(super) fn new(variables: &'a Variables) -> Self {
        Self {
            variables,
            bytes: VariableBytes::default(),
            path: Vec::new(),
            found: BTreeSet::new(),
            trial: BTreeSet::new(),
            unset: BTreeMap::new(),
            is_incomplete: false,
        }
    }

    /// Replaces the variables in a value. Keys stay as they are.
    ///
    /// # Errors
    /// The first problem, with the path of its value.
    pub(super) fn value(&mut self, value: &mut Value) -> Result<(), String> {
        match value {
            Value::String(text) => {
                let replaced = self.text(&mut text.chars().peekable(), None, 0);
                *text = replaced.map_err(|why| problems::text(&self.at(), &why))?;
                self.record_found();
            }
            Value::Array(items) => {
                for item in items {
                    self.value(item)?;
                }
            }
            Value::Object(map) => {
                for (key, value) in map {
                    self.path.push(key.clone());
                    self.value(value)?;
                    self.path.pop();
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        Ok(())
    }

    /// The path of the current value.
    fn at(&self) -> String {
        self.path.join(".")
    }

    fn record_found(&mut self) {
        for name in std::mem::take(&mut self.found) {
            let place = UsePlace::from_path(&self.path);
            self.trial.insert(VariableUse { at: self.at(), place, name });
        }
    }

    fn text(
        &mut self,
        chars: &mut Chars<'_>,
        until: Option<char>,
        depth: usize,
    ) -> Result<String, String> {
        if depth > MAX_NESTING {
            return Err("variables are nested too deeply".to_owned());
        }
        let mut replaced = String::new();
        while let Some(c) = chars.next() {
            if Some(c) == until {
                return Ok(replaced);
            }
            if c != '$' {
                replaced.push(c);
                continue;
            }
            match chars.peek() {
                Some('$') => {
                    chars.next();
                    replaced.push('$');
                }
                Some('{') => {
                    chars.next();
                    replaced.push_str(&self.braced(chars, depth)?);
                }
                Some(c) if is_name_start(*c) => {
                    let name = name(chars);
                    replaced.push_str(self.value_of(&name)?.unwrap_or_default());
                }
                _ => return Err("a `$` that begins no variable must be written `$$`".to_owned()),
            }
        }
        match until {
            None => Ok(replaced),
            Some(_) => Err("a variable is not closed".to_owned()),
        }
    }

    /// The rest of `${name…}`.
    fn braced(&mut self, chars: &mut Chars<'_>, depth: usize) -> Result<String, String> {
        let name = name(chars);
        if name.is_empty() {
            return Err("a variable has no name".to_owned());
        }
        let mut operator = String::new();
        while let Some(c) = chars.next_if(|c| ":-+?".contains(*c) && operator.len() < 2) {
            operator.push(c);
            if c != ':' {
                break;
            }
        }
        if operator.is_empty() {
            return match chars.next() {
                Some('}') => Ok(self.value_of(&name)?.unwrap_or_default().to_owned()),
                _ => Err(format!("the variable `{name}` is not closed")),
            };
        }
        let (counts_empty, kind) = match operator.as_str() {
            "-" | "+" | "?" => (true, operator.as_str()),
            ":-" | ":+" | ":?" => (false, &operator[1..]),
            _ => return Err(format!("the variable `{name}` has an unknown operator")),
        };
        let word = self.text(chars, Some('}'), depth + 1)?;
        let is_set = |value: &&str| counts_empty || !value.is_empty();
        let found = self.lookup(&name)?.filter(is_set);
        match (kind, found) {
            ("-", None) | ("+", Some(_)) => Ok(word),
            ("+", None) => Ok(String::new()),
            (_, Some(value)) => Ok(value.to_owned()),
            (_, None) => Err(format!("the variable `{name}` is required: {word}")),
        }
    }

    /// The value; notes a variable that is not set.
    fn value_of(&mut self, name: &str) -> Result<Option<&'a str>, String> {
        let found = self.lookup(name)?;
        if found.is_none() && !self.unset.contains_key(name) {
            self.unset.insert(name.to_owned(), self.at());
        }
        Ok(found)
    }

    fn lookup(&mut self, name: &str) -> Result<Option<&'a str>, String> {
        if self.variables.is_of_trial(name) && !self.found.contains(name) {
            self.found.insert(name.to_owned());
        }
        let value = self.variables.get(name);
        self.is_incomplete |= value.is_none();
        self.bytes.spend(value.map_or(0, |value| value.len() as u64))?;
        Ok(value.map(String::as_str))
    }
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn is_name_start(c: char) -> bool {
    c == '_' || c.is_ascii_alphabetic()
}

fn name(chars: &mut Chars<'_>) -> String {
    let mut name = String::new();
    while let Some(c) = chars.next_if(|c| {
        if name.is_empty() { is_name_start(*c) } else { *c == '_' || c.is_ascii_alphanumeric() }
    }) {
        name.push(c);
    }
    name
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn compose_variables_are_replaced() {
        let variables = Variables {
            provided: BTreeMap::from([("CPUS".to_owned(), "2".to_owned())]),
            trial: BTreeMap::from([("KEY".to_owned(), "secret".to_owned())]),
            file: BTreeMap::from([("EMPTY".to_owned(), String::new())]),
        };
        let mut interpolation = Interpolation::new(&variables);
        for (text, expected) in [
            ("a$$b ${CPUS} $CPUS", "a$b 2 2"),
            ("${NONE:-d}${NONE-e}${EMPTY:-f}${EMPTY-g}", "def"),
            ("${CPUS:+x}${NONE+y}${NONE:-${CPUS}}", "x2"),
            ("[$NONE]", "[]"),
            ("${KEY}", "secret"),
        ] {
            let mut value = json!({"services": {"x": [text, text]}});
            assert_eq!(interpolation.value(&mut value), Ok(()));
            assert_eq!(value, json!({"services": {"x": [expected, expected]}}));
        }
        let (at, name) = ("services.x".to_owned(), "KEY".to_owned());
        let key = VariableUse { at: at.clone(), place: UsePlace::Other, name };
        assert_eq!(interpolation.trial, [key].into());
        assert_eq!(interpolation.unset, [("NONE".to_owned(), at)].into());
    }

    #[test]
    fn compose_variable_use_has_place_of_its_keys() {
        let trial = BTreeMap::from([("KEY".to_owned(), "secret".to_owned())]);
        let variables = Variables { trial, ..Variables::default() };
        let mut interpolation = Interpolation::new(&variables);
        let environment = json!({"environment": {"K": "$KEY"}});
        let services = json!({"main": environment, "main.environment": environment});
        let mut value = json!({"services": services, "x-a": "$KEY", "a": "$KEY"});
        assert_eq!(interpolation.value(&mut value), Ok(()));
        let places: BTreeSet<_> = interpolation.trial.into_iter().map(|used| used.place).collect();
        let service = |name: &str| UsePlace::Environment(name.to_owned());
        let expected =
            [UsePlace::Part, UsePlace::Other, service("main"), service("main.environment")];
        assert_eq!(places, expected.into());
    }

    #[test]
    fn compose_variables_invalid_are_refused() {
        for text in ["${", "${A", "${A:=x}", "$1", "${A:?is required}", "${}"] {
            let variables = Variables::default();
            let mut value = json!({"x": text});
            let why = Interpolation::new(&variables).value(&mut value).expect_err(text);
            assert!(why.starts_with("`x`: "), "{why}");
        }
    }

    #[test]
    fn compose_variables_add_limited_bytes_in_total() {
        let most = rollout_protocol::limits::CONFIG_FILE_BYTES as usize;
        let file = BTreeMap::from([("A".to_owned(), "a".repeat(most / 4))]);
        let variables = Variables { file, ..Variables::default() };
        let mut allowed = json!(["$A", "${A}", "${A:-b}", "${A+b}", "${NONE-b}"]);
        assert_eq!(Interpolation::new(&variables).value(&mut allowed), Ok(()));
        for text in ["$A".repeat(100_000), "${A}".repeat(100_000), "${A-}".repeat(100_000)] {
            let mut value = json!({"a": "$A", "b": text, "c": "$"});
            let why = Interpolation::new(&variables).value(&mut value).expect_err("too many");
            assert!(why.starts_with("`b`: the variables have more than"), "{why}");
        }
    }
}
