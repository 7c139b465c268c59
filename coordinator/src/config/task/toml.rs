//! TOML text to a tree. The only module that uses the TOML crate.

use ::toml::de::{DeTable, DeValue};
use rollout_protocol::limits::CONFIG_ERRORS;

use super::super::value::{ConfigEntry, ConfigNode, ConfigValue};

/// A TOML syntax error.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct TomlSyntaxError {
    /// Line, from 1, if known.
    pub(in super::super) line: Option<usize>,
    /// Description of the error.
    pub(in super::super) message: String,
}

/// Parses a document, or returns all its syntax errors.
pub(in super::super) fn parse(text: &str) -> Result<ConfigNode, Vec<TomlSyntaxError>> {
    let lines = LineIndex::new(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(ConfigNode {
            line: 1,
            value: ConfigValue::Mapping(entries(table.get_ref(), &lines)),
        });
    }
    Err(errors
        .iter()
        .take(CONFIG_ERRORS)
        .map(|error| TomlSyntaxError {
            line: error.span().map(|span| lines.line_at(span.start)),
            message: error.message().to_owned(),
        })
        .collect())
}

/// The part of a document before and between its syntax errors.
pub(in super::super) fn parse_readable_part(text: &str) -> ConfigNode {
    let (table, _errors) = DeTable::parse_recoverable(text);
    let entries = entries(table.get_ref(), &LineIndex::new(text));
    ConfigNode { line: 1, value: ConfigValue::Mapping(entries) }
}

fn entries(table: &DeTable<'_>, lines: &LineIndex) -> Vec<ConfigEntry> {
    table
        .iter()
        .map(|(key, value)| {
            let line = lines.line_at(key.span().start);
            let node = ConfigNode { line, value: convert(value.get_ref(), lines) };
            ConfigEntry { key: key.get_ref().to_string(), line, node }
        })
        .collect()
}

fn convert(value: &DeValue<'_>, lines: &LineIndex) -> ConfigValue {
    match value {
        DeValue::String(text) => ConfigValue::String(text.to_string()),
        DeValue::Integer(integer) => {
            let text = integer.to_string();
            match i64::from_str_radix(integer.as_str(), integer.radix()) {
                Ok(value) => ConfigValue::Integer { value, text },
                Err(_) => ConfigValue::String(text),
            }
        }
        DeValue::Float(float) => {
            let text = float.to_string();
            match float.as_str().parse() {
                Ok(value) => ConfigValue::Float { value, text },
                Err(_) => ConfigValue::String(text),
            }
        }
        DeValue::Boolean(value) => ConfigValue::Bool { value: *value, text: value.to_string() },
        DeValue::Datetime(datetime) => ConfigValue::String(datetime.to_string()),
        DeValue::Array(array) => ConfigValue::Sequence(
            array
                .iter()
                .map(|item| ConfigNode {
                    line: lines.line_at(item.span().start),
                    value: convert(item.get_ref(), lines),
                })
                .collect(),
        ),
        DeValue::Table(table) => ConfigValue::Mapping(entries(table, lines)),
    }
}

/// Line numbers of byte offsets.
struct LineIndex(Vec<usize>);

impl LineIndex {
    fn new(text: &str) -> Self {
        Self(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at).collect())
    }

    fn line_at(&self, offset: usize) -> usize {
        self.0.partition_point(|newline| *newline < offset) + 1
    }
}
