//! Builds of services in compose files.

use std::collections::BTreeMap;

use super::DOCKERFILE;
use crate::config::{ConfigNode, ConfigValue};

/// Prefix of paths in compose files: the build context.
const CONTEXT_PREFIX: &str = "${CONTEXT_DIR}";

/// A build of a service.
pub(super) struct ServiceBuild<'a> {
    pub(super) directory: &'a str,
    pub(super) file: &'a str,
    pub(super) args: BTreeMap<String, String>,
    /// Whether it names its context alone.
    pub(super) is_whole: bool,
}

impl<'a> ServiceBuild<'a> {
    /// `None` if parts of it are merged from elsewhere, an argument has its value from there, or a place is
    /// no text or empty, which stands for one of docker compose's choice.
    pub(super) fn read(node: &'a ConfigNode) -> Option<Self> {
        if let ConfigValue::String(directory) = &node.value {
            let (directory, args) = (in_context(directory), BTreeMap::new());
            let build = Self { directory, file: DOCKERFILE, args, is_whole: true };
            return (!directory.is_empty()).then_some(build);
        }
        if has_key(node, "<<") {
            return None;
        }
        let place = |key, default| match value(node, key) {
            Some(_) => text(node, key).filter(|place| !place.is_empty()),
            None => Some(default),
        };
        Some(Self {
            directory: in_context(place("context", ".")?),
            file: place("dockerfile", DOCKERFILE)?,
            args: arguments(node)?,
            is_whole: keys(node).all(|key| key == "context"),
        })
    }
}

/// The keys of a mapping.
fn keys(node: &ConfigNode) -> impl Iterator<Item = &str> {
    let entries = match &node.value {
        ConfigValue::Mapping(entries) => entries.as_slice(),
        _ => &[],
    };
    entries.iter().map(|entry| entry.key.as_str())
}

/// Whether a key is anywhere in a document.
pub(super) fn has_key(node: &ConfigNode, key: &str) -> bool {
    match &node.value {
        ConfigValue::Mapping(entries) => {
            entries.iter().any(|entry| entry.key == key || has_key(&entry.node, key))
        }
        ConfigValue::Sequence(items) => items.iter().any(|item| has_key(item, key)),
        _ => false,
    }
}

/// A value of a mapping.
fn value<'a>(node: &'a ConfigNode, key: &str) -> Option<&'a ConfigNode> {
    let ConfigValue::Mapping(entries) = &node.value else { return None };
    entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
}

pub(super) fn text<'a>(node: &'a ConfigNode, key: &str) -> Option<&'a str> {
    match &value(node, key)?.value {
        ConfigValue::String(text) => Some(text),
        _ => None,
    }
}

/// The arguments of a build: a mapping, or a list of `NAME=value`. `None` if one has no value or one of
/// which the text cannot be told, or its name or value has a variable: docker compose takes it from what is
/// not known here.
fn arguments(node: &ConfigNode) -> Option<BTreeMap<String, String>> {
    match value(node, "args").map(|args| &args.value) {
        Some(ConfigValue::Mapping(entries)) => {
            let arguments =
                entries.iter().map(|entry| known_argument(&entry.key, &scalar(&entry.node)?));
            arguments.collect()
        }
        Some(ConfigValue::Sequence(items)) => {
            let argument = |item: &ConfigNode| {
                let text = scalar(item)?;
                let (name, value) = text.split_once('=')?;
                known_argument(name, value)
            };
            items.iter().map(argument).collect()
        }
        Some(ConfigValue::Null) | None => Some(BTreeMap::new()),
        Some(_) => None,
    }
}

fn known_argument(name: &str, value: &str) -> Option<(String, String)> {
    let is_known = !name.contains('$') && !value.contains('$');
    is_known.then(|| (name.to_owned(), value.to_owned()))
}

/// The text that docker compose makes of a value. `None` for lists, mappings and empty values, and for
/// numbers in a form of which it makes another text, such as `1e2`, or that only it takes for numbers.
fn scalar(node: &ConfigNode) -> Option<String> {
    match &node.value {
        ConfigValue::String(text) => (!is_number_of_compose(text)).then(|| text.clone()),
        ConfigValue::Bool { value, .. } => Some(value.to_string()),
        ConfigValue::Integer { value, text } => {
            Some(value.to_string()).filter(|plain| plain == text)
        }
        ConfigValue::Float { value, text } => is_decimal(text, *value).then(|| value.to_string()),
        ConfigValue::Null | ConfigValue::Sequence(_) | ConfigValue::Mapping(_) => None,
    }
}

/// Whether a number is written as digits, a dot and digits, and docker compose writes it so, too. It
/// leaves out zeros at the end.
fn is_decimal(text: &str, value: f64) -> bool {
    // Beyond these, it writes an exponent.
    const RANGE: std::ops::Range<f64> = 1e-4..1e15;
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = text.split_once('.').unwrap_or_default();
    let is_padded = whole.starts_with('0') && whole != "0";
    is_digits(whole) && is_digits(fraction) && !is_padded && RANGE.contains(&value)
}

/// Whether a text may be a number for docker compose: one with underscores, or with the sign of a base.
fn is_number_of_compose(text: &str) -> bool {
    let joined = text.replace('_', "").to_ascii_lowercase();
    let digits = joined.trim_start_matches(['+', '-']);
    let is_of_base = |(prefix, base): (&str, u32)| {
        let digits = digits.strip_prefix(prefix);
        digits.is_some_and(|digits| !digits.is_empty() && digits.chars().all(|c| c.is_digit(base)))
    };
    let begins = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    [("0b", 2), ("0o", 8), ("0x", 16)].into_iter().any(is_of_base)
        || (text.contains('_') && begins && digits.parse::<f64>().is_ok())
}

/// A path of a compose file, relative to the build context. One that only begins with the name of the
/// context, such as `${CONTEXT_DIR}b`, stays.
pub(super) fn in_context(path: &str) -> &str {
    let below = path.strip_prefix(CONTEXT_PREFIX);
    let below = below.filter(|rest| rest.is_empty() || rest.starts_with('/'));
    below.map_or(path, |rest| rest.trim_start_matches('/'))
}
