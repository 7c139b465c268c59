//! The table `orchestrator` of older job files.

use super::super::diagnostics::{ConfigError, ErrorKind};
use super::super::location::SourceLocation;
use super::super::reader::join;
use super::super::value::{ConfigEntry, ConfigNode, ConfigValue};
use super::tables::TOP;
use super::{Translation, is_default};

/// The table.
const TABLE: &str = "orchestrator";

/// Its keys that newer files have at the top.
const MOVED: [&str; 3] = ["n_concurrent_trials", "quiet", "retry"];

/// The only kind of orchestrator.
const LOCAL: &str = "local";

impl Translation<'_> {
    /// Moves the keys of the table to the top, unless they are there, and refuses others: Harbor would
    /// ignore them.
    pub(super) fn flatten_orchestrator(&mut self, root: &mut ConfigNode) {
        let ConfigValue::Mapping(entries) = &mut root.value else { return };
        let Some(index) = entries.iter().position(|entry| entry.key == TABLE) else { return };
        let ConfigEntry { line, node, .. } = entries.remove(index);
        let inner = match node.value {
            ConfigValue::Mapping(inner) => inner,
            ConfigValue::Null => return,
            _ => {
                let spot = SourceLocation { key: TABLE.to_owned(), line: Some(line) };
                let (kind, found) = (ErrorKind::WrongType, node.describe());
                self.problems.error(spot.error(self.file, kind, found, "a mapping"));
                return;
            }
        };
        for entry in inner {
            match entry.key.as_str() {
                key if MOVED.contains(&key) => {
                    if !entries.iter().any(|other| other.key == entry.key) {
                        entries.push(entry);
                    }
                }
                "type" if is_local(&entry.node.value) => {}
                "kwargs" if is_default("kwargs", &entry.node.value) => {}
                _ => self.refuse_in_orchestrator(&entry),
            }
        }
    }

    fn refuse_in_orchestrator(&mut self, entry: &ConfigEntry) {
        let key = entry.key.as_str();
        let spot = SourceLocation { key: join(TABLE, key), line: Some(entry.line) };
        let found = entry.node.describe();
        let error = match key {
            "type" => spot.error(self.file, ErrorKind::BadValue, found, format!("`{LOCAL}`")),
            "kwargs" => {
                let expected = "an empty mapping: they have no counterpart";
                spot.error(self.file, ErrorKind::BadValue, found, expected)
            }
            _ => {
                let expected = format!("one of type, kwargs, {}", MOVED.join(", "));
                let is_of_top = TOP.iter().any(|(known, _)| *known == key && key != TABLE);
                let hint = is_of_top.then(|| format!("`{key}` belongs at the top of the file"));
                let kind = ErrorKind::UnknownKey;
                ConfigError { hint, ..spot.error(self.file, kind, "an unknown key", expected) }
            }
        };
        self.problems.error(error);
    }
}

fn is_local(value: &ConfigValue) -> bool {
    match value {
        ConfigValue::Null => true,
        ConfigValue::String(text) => text == LOCAL,
        _ => false,
    }
}
