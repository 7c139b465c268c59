//! Reads typed values from a tree and records every error. A read returns `None` if the value is
//! absent or wrong, so that the pass continues and finds the other errors of the file too.

mod values;

#[cfg(test)]
use std::cell::RefCell;
use std::path::Path;

use super::cli_overrides::CliSetting;
use super::diagnostics::{ConfigError, ConfigWarning, Diagnostics, ErrorKind, nearest};
use super::file_diagnostics::FileDiagnostics;
use super::host_path::HostAccess;
use super::keys::{Key, KeyKind};
use super::location::SourceLocation;
use super::reference::KeyReference;
use super::value::{ConfigNode, ConfigValue, flag_index, quoted};

pub(crate) use values::Scalar;

/// Tables shown as the places of a misplaced key.
const MAX_TABLES_SHOWN: usize = 3;

/// Treatment of unknown keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownKeys {
    /// Errors, in the formats of this program: job and search files.
    Errors,
    /// Warnings, in formats shared with other tools: task files.
    Warnings,
}

/// Reads one file.
pub(crate) struct ConfigReader<'a> {
    file: &'a Path,
    unknown: UnknownKeys,
    /// The access of the document to paths of this host.
    host: HostAccess<'a>,
    settings: &'a [CliSetting],
    /// All keys of the kind of file, for the hints of misplaced ones.
    reference: Option<&'a KeyReference>,
    problems: FileDiagnostics,
    /// Every key that was asked for, present or not.
    #[cfg(test)]
    keys_read: RefCell<std::collections::BTreeSet<String>>,
}

impl<'a> ConfigReader<'a> {
    /// A reader of `file`, which may name nothing of this host.
    pub(crate) fn new(file: &'a Path, unknown: UnknownKeys) -> Self {
        Self {
            file,
            unknown,
            host: HostAccess::Nothing,
            settings: &[],
            reference: None,
            problems: FileDiagnostics::default(),
            #[cfg(test)]
            keys_read: RefCell::default(),
        }
    }

    /// Adds the command-line settings that were applied to the tree.
    pub(crate) fn with_settings(self, settings: &'a [CliSetting]) -> Self {
        Self { settings, ..self }
    }

    /// Gives the document permission to name what is on this host.
    pub(crate) fn with_host(self, host: HostAccess<'a>) -> Self {
        Self { host, ..self }
    }

    /// Adds the keys of the kind of file.
    pub(crate) fn with_reference(self, reference: &'a KeyReference) -> Self {
        Self { reference: Some(reference), ..self }
    }

    /// Where a misplaced key belongs, unless that is nowhere or in too many places.
    fn misplaced(&self, key: &str) -> Option<String> {
        let tables = self.reference?.tables_with(key);
        if tables.is_empty() || tables.len() > MAX_TABLES_SHOWN {
            return None;
        }
        let place = |table: &&str| match *table {
            "" => "at the top level".to_owned(),
            table => format!("in `{table}`"),
        };
        let places: Vec<String> = tables.iter().map(place).collect();
        Some(format!("`{key}` belongs {}", places.join(" or ")))
    }

    /// The location of a key, in the file or on the command line.
    fn location(&self, key: &str, line: usize) -> SourceLocation {
        let Some(index) = flag_index(line) else {
            return SourceLocation { key: key.to_owned(), line: Some(line) };
        };
        let key = match self.settings.get(index).map(CliSetting::flag) {
            None => key.to_owned(),
            Some(flag) if flag.ends_with(key) => flag.to_owned(),
            Some(flag) => format!("{flag} ({key})"),
        };
        SourceLocation { key, line: None }
    }

    /// The errors and warnings found.
    pub(crate) fn into_problems(self) -> Diagnostics {
        #[cfg_attr(not(test), expect(unused_mut, reason = "a test adds to it"))]
        let mut problems = self.problems.into_diagnostics(self.file);
        #[cfg(test)]
        problems.keys_read.append(&mut self.keys_read.borrow_mut());
        problems
    }

    /// The fields of the whole document.
    pub(crate) fn root<'b>(&'b self, node: &'b ConfigNode) -> Option<Fields<'b>> {
        let field = Field {
            reader: self,
            node: Some(node),
            key: String::new(),
            line: node.line,
            kind: KeyKind::Value("table"),
            is_refused: false,
        };
        field.mapping()
    }

    fn error(&self, error: impl FnOnce() -> ConfigError) {
        self.problems.error(error);
    }
}

/// The key path of `key` below `path`.
pub(crate) fn join(path: &str, key: &str) -> String {
    let simple = !key.is_empty()
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    let key = if simple { key.to_owned() } else { quoted(key) };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

/// The fields of a mapping. Keys that were taken are known; [`Fields::finish`] reports the others.
#[must_use = "finish() reports unknown keys"]
pub(crate) struct Fields<'a> {
    reader: &'a ConfigReader<'a>,
    node: &'a ConfigNode,
    path: String,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// The field of a key, present or not. A path of this host that the document may not name is an
    /// error, and is not read.
    pub(crate) fn take(&mut self, key: Key) -> Field<'a> {
        let mut field = self.take_inside(key);
        // Options of the command line are no part of the document.
        if flag_index(field.line).is_none() {
            for text in field.texts() {
                field.is_refused |= field.refuse(key, text);
            }
        }
        field
    }

    /// Whether a key has a value. Null counts as none.
    pub(crate) fn has(&self, key: Key) -> bool {
        let entry = self.entries().find(|(name, ..)| *name == key.name);
        entry.is_some_and(|(_, _, node)| node.value != ConfigValue::Null)
    }

    /// The field of a key whose path another key makes one inside a repository.
    pub(crate) fn take_inside(&mut self, key: Key) -> Field<'a> {
        let kind = key.kind;
        let key = key.name;
        self.known.push(key);
        #[cfg(test)]
        self.reader.keys_read.borrow_mut().insert(join(&self.path, key));
        let entry = self.entries().find(|(name, ..)| *name == key);
        Field {
            reader: self.reader,
            node: entry.map(|(_, _, node)| node),
            key: join(&self.path, key),
            line: entry.map_or(self.node.line, |(_, line, _)| line),
            kind,
            is_refused: false,
        }
    }

    /// Reports the keys that were not taken.
    pub(crate) fn finish(self) {
        for (key, line, _) in self.entries() {
            if !self.known.contains(&key) {
                self.unknown(key, line);
            }
        }
    }

    fn unknown(&self, key: &str, line: usize) {
        // A key of Harbor may have the name that the key here overrides.
        let overrides = |known: &&str| known.strip_prefix("override_") == Some(key);
        let overriding = || self.known.iter().copied().find(overrides);
        let near = || overriding().or_else(|| nearest(key, self.known.iter().copied()));
        let spot = || self.reader.location(&join(&self.path, key), line);
        let file = self.reader.file;
        if self.reader.unknown == UnknownKeys::Warnings {
            self.reader.problems.warning(|| {
                let SourceLocation { line, key } = spot();
                let near = near().map(|n| format!(" (did you mean `{n}`?)")).unwrap_or_default();
                let message = format!("this key is not known and has no effect{near}");
                ConfigWarning { file: file.to_owned(), line, key, message }
            });
        } else {
            self.reader.error(|| {
                let expected = format!("one of {}", self.known.join(", "));
                let near = near().map(|n| format!("did you mean `{n}`?"));
                ConfigError {
                    hint: self.reader.misplaced(key).or(near),
                    ..spot().error(file, ErrorKind::UnknownKey, "an unknown key", expected)
                }
            });
        }
    }

    fn entries(&self) -> impl Iterator<Item = (&'a str, usize, &'a ConfigNode)> + use<'a> {
        let entries = match &self.node.value {
            ConfigValue::Mapping(entries) => entries.as_slice(),
            _ => &[],
        };
        entries.iter().map(|e| (e.key.as_str(), e.line, &e.node))
    }
}

/// One field: a key path and its value, if any.
#[derive(Clone)]
pub(crate) struct Field<'a> {
    reader: &'a ConfigReader<'a>,
    node: Option<&'a ConfigNode>,
    key: String,
    line: usize,
    kind: KeyKind,
    /// Whether the document may not have the value. The error is recorded.
    is_refused: bool,
}

impl<'a> Field<'a> {
    /// The value; `None` if it is absent, null or refused.
    fn value(&self) -> Option<&'a ConfigNode> {
        self.node.filter(|node| !self.is_refused && node.value != ConfigValue::Null)
    }

    /// Whether there is a value. Null counts as none.
    pub(crate) fn is_present(&self) -> bool {
        self.node.is_some_and(|node| node.value != ConfigValue::Null)
    }

    /// The text, or the texts of a list.
    fn texts(&self) -> Vec<&'a str> {
        let text = |node: &'a ConfigNode| match &node.value {
            ConfigValue::String(text) => Some(text.as_str()),
            _ => None,
        };
        match self.node {
            Some(ConfigNode { value: ConfigValue::Sequence(items), .. }) => {
                items.iter().filter_map(text).collect()
            }
            node => node.and_then(text).into_iter().collect(),
        }
    }

    /// Records an error if the document may not have a text here. Returns whether it may not.
    fn refuse(&self, key: Key, text: &str) -> bool {
        let Some(why) = self.reader.host.refusal(key, text) else { return false };
        let kind = match key.kind {
            KeyKind::Source(..) => ErrorKind::Refused,
            _ => ErrorKind::HostFile,
        };
        self.reader.error(|| self.location().failure(self.reader.file, kind, why));
        true
    }

    /// Whether the value is text.
    pub(crate) fn is_text(&self) -> bool {
        self.value().is_some_and(|node| matches!(node.value, ConfigValue::String(_)))
    }

    /// Whether the value is a mapping.
    pub(crate) fn is_mapping(&self) -> bool {
        self.value().is_some_and(|node| matches!(node.value, ConfigValue::Mapping(_)))
    }

    /// The location of the field.
    pub(crate) fn location(&self) -> SourceLocation {
        self.reader.location(&self.key, self.line)
    }

    /// Records an error in this field.
    pub(crate) fn reject(
        &self,
        kind: ErrorKind,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.reader.error(|| self.location().error(self.reader.file, kind, found, expected));
    }

    /// Records an error in this field, with a hint.
    pub(crate) fn reject_with_hint(
        &self,
        kind: ErrorKind,
        found: impl Into<String>,
        expected: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let error = self.location().error(self.reader.file, kind, found, expected);
        self.reader.error(|| ConfigError { hint: Some(hint.into()), ..error });
    }

    /// Records a value of the right type that is not allowed.
    pub(crate) fn bad_value(&self, expected: &str) {
        self.reject(ErrorKind::BadValue, self.describe(), expected);
    }

    /// Records a warning in this field.
    pub(crate) fn warn(&self, message: impl Into<String>) {
        self.reader.problems.warning(|| {
            let SourceLocation { key, line } = self.location();
            let (file, message) = (self.reader.file.to_owned(), message.into());
            ConfigWarning { file, line, key, message }
        });
    }

    /// The texts at a key of the mappings in a list or a table. Records no errors.
    pub(crate) fn texts_of_items(&self, key: Key) -> Vec<&'a str> {
        let items: Vec<&'a ConfigNode> = match self.value().map(|node| &node.value) {
            Some(ConfigValue::Sequence(items)) => items.iter().collect(),
            Some(ConfigValue::Mapping(entries)) => {
                entries.iter().map(|entry| &entry.node).collect()
            }
            _ => Vec::new(),
        };
        let text = |item: &'a ConfigNode| match &item.value {
            ConfigValue::Mapping(entries) => {
                entries.iter().find_map(|entry| match &entry.node.value {
                    ConfigValue::String(text) if entry.key == key.name => Some(text.as_str()),
                    _ => None,
                })
            }
            _ => None,
        };
        items.into_iter().filter_map(text).collect()
    }

    /// The value found, for messages.
    pub(crate) fn describe(&self) -> String {
        self.node.map_or_else(|| "nothing".to_owned(), ConfigNode::describe)
    }

    /// Records an error if the field is absent; returns whether it is present.
    pub(crate) fn required(&self, expected: &str) -> bool {
        let present = self.is_present();
        if !present {
            self.reject(ErrorKind::MissingKey, "nothing", expected);
        }
        present
    }

    fn wrong_type<T>(&self, expected: &str) -> Option<T> {
        self.reject(ErrorKind::WrongType, self.describe(), expected);
        None
    }

    /// Reads the fields of a mapping.
    pub(crate) fn mapping(&self) -> Option<Fields<'a>> {
        let node = self.value().or(self.node.filter(|_| self.key.is_empty()))?;
        if !matches!(node.value, ConfigValue::Mapping(_)) {
            return self.wrong_type("a mapping of keys to values");
        }
        let (reader, path) = (self.reader, self.key.clone());
        Some(Fields { reader, node, path, known: Vec::new() })
    }

    /// Reads the items of a list; items without a value are errors and dropped.
    pub(crate) fn items(&self) -> Option<Vec<Self>> {
        let ConfigValue::Sequence(nodes) = &self.value()?.value else {
            return self.wrong_type("a list");
        };
        let item = |(index, node): (usize, &'a ConfigNode)| Self {
            reader: self.reader,
            node: Some(node),
            key: format!("{}[{index}]", self.key),
            line: node.line,
            kind: self.kind,
            is_refused: false,
        };
        let present = |item: &Self| item.is_present() || item.wrong_type::<()>("a value").is_some();
        Some(nodes.iter().enumerate().map(item).filter(present).collect())
    }

    /// Reads any mapping as JSON.
    pub(crate) fn json(&self) -> Option<serde_json::Map<String, serde_json::Value>> {
        match self.value()?.to_json() {
            serde_json::Value::Object(map) => Some(map),
            _ => self.wrong_type("a mapping of names to values"),
        }
    }

    /// Reads the entries of a mapping whose keys the user chooses.
    pub(crate) fn entries(&self) -> Option<Vec<(&'a str, Self)>> {
        let ConfigValue::Mapping(entries) = &self.value()?.value else {
            return self.wrong_type("a mapping of names to values");
        };
        let field = |entry: &'a super::value::ConfigEntry| {
            let key = join(&self.key, &entry.key);
            let field = Self {
                reader: self.reader,
                node: Some(&entry.node),
                key,
                line: entry.line,
                kind: self.kind,
                is_refused: false,
            };
            (entry.key.as_str(), field)
        };
        Some(entries.iter().map(field).collect())
    }
}
