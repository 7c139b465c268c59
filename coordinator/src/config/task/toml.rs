//! TOML text to a tree. The only place that knows the TOML crate.

use ::toml::de::{DeTable, DeValue};

use super::super::tree::{Entry, Node, Value};

/// A place where the text is not TOML.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Fault {
    /// Line, from 1, where it is known.
    pub(in super::super) line: Option<usize>,
    /// What is wrong.
    pub(in super::super) message: String,
}

/// Reads a document, or says everything that is not TOML in it.
pub(in super::super) fn parse(text: &str) -> Result<Node, Vec<Fault>> {
    let lines = Lines::of(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(Node { line: 1, value: Value::Mapping(entries(table.get_ref(), &lines)) });
    }
    Err(errors
        .iter()
        .map(|error| Fault {
            line: error.span().map(|span| lines.at(span.start)),
            message: error.message().to_owned(),
        })
        .collect())
}

fn entries(table: &DeTable<'_>, lines: &Lines) -> Vec<Entry> {
    table
        .iter()
        .map(|(key, value)| {
            let line = lines.at(key.span().start);
            let node = Node { line, value: convert(value.get_ref(), lines) };
            Entry { key: key.get_ref().to_string(), line, node }
        })
        .collect()
}

fn convert(value: &DeValue<'_>, lines: &Lines) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(integer) => {
            let text = integer.to_string();
            match i64::from_str_radix(integer.as_str(), integer.radix()) {
                Ok(value) => Value::Integer { value, text },
                Err(_) => Value::String(text),
            }
        }
        DeValue::Float(float) => {
            let text = float.to_string();
            match float.as_str().parse() {
                Ok(value) => Value::Float { value, text },
                Err(_) => Value::String(text),
            }
        }
        DeValue::Boolean(value) => Value::Bool { value: *value, text: value.to_string() },
        DeValue::Datetime(datetime) => Value::String(datetime.to_string()),
        DeValue::Array(array) => Value::Sequence(
            array
                .iter()
                .map(|item| Node {
                    line: lines.at(item.span().start),
                    value: convert(item.get_ref(), lines),
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Mapping(entries(table, lines)),
    }
}

/// Line numbers of byte offsets.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at).collect())
    }

    fn at(&self, offset: usize) -> usize {
        self.0.partition_point(|newline| *newline < offset) + 1
    }
}
