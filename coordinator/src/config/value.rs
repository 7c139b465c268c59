//! Parsed but unchecked configuration values: one tree for YAML, JSON and TOML.

use serde_json::Value as Json;

/// Lines from here on stand for command-line options: no file has that many lines.
const FIRST_FLAG_LINE: usize = usize::MAX / 2;

/// The line that stands for a command-line option.
pub(crate) const fn flag_line(index: usize) -> usize {
    FIRST_FLAG_LINE + index
}

/// The command-line option that a line stands for, if any.
pub(crate) const fn flag_index(line: usize) -> Option<usize> {
    line.checked_sub(FIRST_FLAG_LINE)
}

/// A value with its location.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConfigNode {
    /// Line, from 1, or [`flag_line`].
    pub(crate) line: usize,
    /// The value.
    pub(crate) value: ConfigValue,
}

/// A value. Numbers and booleans keep their written text, so that `1.10` can still become the
/// string `1.10`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ConfigValue {
    Null,
    Bool { value: bool, text: String },
    Integer { value: i64, text: String },
    Float { value: f64, text: String },
    String(String),
    Sequence(Vec<ConfigNode>),
    Mapping(Vec<ConfigEntry>),
}

/// A key of a mapping and its value. Keys of one mapping are distinct.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConfigEntry {
    pub(crate) key: String,
    pub(crate) line: usize,
    pub(crate) node: ConfigNode,
}

impl ConfigNode {
    /// A description for messages: the kind, and the value if it is short.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            ConfigValue::Null => "nothing".to_owned(),
            ConfigValue::Bool { text, .. }
            | ConfigValue::Integer { text, .. }
            | ConfigValue::Float { text, .. } => text.clone(),
            ConfigValue::String(text) => format!("the text {}", quoted(text)),
            ConfigValue::Sequence(_) => "a list".to_owned(),
            ConfigValue::Mapping(_) => "a mapping".to_owned(),
        }
    }

    /// The value as JSON. A number that JSON cannot express becomes text.
    pub(crate) fn to_json(&self) -> Json {
        match &self.value {
            ConfigValue::Null => Json::Null,
            ConfigValue::Bool { value, .. } => Json::Bool(*value),
            ConfigValue::Integer { value, .. } => Json::from(*value),
            ConfigValue::Float { value, text } => serde_json::Number::from_f64(*value)
                .map_or_else(|| Json::String(text.clone()), Json::Number),
            ConfigValue::String(text) => Json::String(text.clone()),
            ConfigValue::Sequence(nodes) => nodes.iter().map(Self::to_json).collect(),
            ConfigValue::Mapping(entries) => {
                let pairs = entries.iter().map(|e| (e.key.clone(), e.node.to_json()));
                Json::Object(pairs.collect())
            }
        }
    }

    /// Estimated memory size of the value, bytes.
    pub(crate) fn estimated_size(&self) -> usize {
        const NODE: usize = std::mem::size_of::<ConfigEntry>();
        NODE + match &self.value {
            ConfigValue::Null => 0,
            ConfigValue::Bool { text, .. }
            | ConfigValue::Integer { text, .. }
            | ConfigValue::Float { text, .. }
            | ConfigValue::String(text) => text.len(),
            ConfigValue::Sequence(nodes) => nodes.iter().map(Self::estimated_size).sum(),
            ConfigValue::Mapping(entries) => {
                entries.iter().map(|e| e.key.len() + e.node.estimated_size()).sum()
            }
        }
    }
}

/// `text` quoted on one line, truncated.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 60;
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

/// Parses plain text by the core schema of YAML 1.2.
pub(crate) fn parse_plain(text: &str) -> ConfigValue {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return ConfigValue::Null,
        "true" | "True" | "TRUE" => {
            return ConfigValue::Bool { value: true, text: text.to_owned() };
        }
        "false" | "False" | "FALSE" => {
            return ConfigValue::Bool { value: false, text: text.to_owned() };
        }
        _ => {}
    }
    if let Some(value) = integer(text) {
        return ConfigValue::Integer { value, text: text.to_owned() };
    }
    match float(text) {
        Some(value) => ConfigValue::Float { value, text: text.to_owned() },
        None => ConfigValue::String(text.to_owned()),
    }
}

fn integer(text: &str) -> Option<i64> {
    if let Some(hex) = text.strip_prefix("0x") {
        return unsigned(hex, 16);
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return unsigned(octal, 8);
    }
    text.parse().ok()
}

fn unsigned(digits: &str, radix: u32) -> Option<i64> {
    let plain = !digits.starts_with(['+', '-']);
    plain.then(|| i64::from_str_radix(digits, radix).ok()).flatten()
}

fn float(text: &str) -> Option<f64> {
    let (negative, magnitude) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let value = match magnitude {
        ".inf" | ".Inf" | ".INF" => f64::INFINITY,
        ".nan" | ".NaN" | ".NAN" => f64::NAN,
        _ => {
            let numeric = magnitude.starts_with(|c: char| c.is_ascii_digit() || c == '.')
                && magnitude.contains(|c: char| c.is_ascii_digit());
            numeric.then(|| magnitude.parse::<f64>().ok()).flatten()?
        }
    };
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_plain_scalar_is_typed_by_core_schema() {
        let kind = |text: &str| match parse_plain(text) {
            ConfigValue::Null => "null".to_owned(),
            ConfigValue::Bool { value, .. } => format!("bool {value}"),
            ConfigValue::Integer { value, .. } => format!("int {value}"),
            ConfigValue::Float { value, .. } => format!("float {value}"),
            ConfigValue::String(_) => "text".to_owned(),
            _ => unreachable!("scalars only"),
        };
        for (text, expected) in [
            ("~", "null"),
            ("TRUE", "bool true"),
            ("yes", "text"),
            ("12", "int 12"),
            ("-3", "int -3"),
            ("0x1F", "int 31"),
            ("0o17", "int 15"),
            ("0x-1", "text"),
            ("1.50", "float 1.5"),
            ("1e3", "float 1000"),
            (".5", "float 0.5"),
            ("-.inf", "float -inf"),
            ("inf", "text"),
            ("nan", "text"),
            (".", "text"),
            ("-", "text"),
            ("2G", "text"),
            ("1_000", "text"),
        ] {
            assert_eq!(kind(text), expected, "{text}");
        }
    }
}
