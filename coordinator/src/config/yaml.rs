//! YAML and JSON text to a tree. The only module that uses the YAML crate, whose interface is not
//! stable.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use rollout_protocol::limits::{AGENTS_PER_JOB, CONFIG_ERRORS, DOCUMENT_DEPTH, DOCUMENT_VALUES};
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use super::value::{ConfigEntry, ConfigNode, ConfigValue, parse_plain, quoted};

/// Bytes that anchors and aliases may add to a file: a few lines of nested ones must not exhaust memory.
const MAX_ALIAS_BYTES: usize = 16 * 1024 * 1024;

/// Lists with a limit of their own, which counts before the rest of a long list is read.
const LIST_LIMITS: &[(&str, usize)] = &[("agents", AGENTS_PER_JOB)];

/// Longest key, in bytes: each value has a path of keys. Keys without `?` are not longer in YAML.
const MAX_KEY_BYTES: usize = 1024;

/// A YAML syntax error, or an error in the document structure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct YamlError {
    /// Line, from 1.
    pub(crate) line: usize,
    /// Its kind.
    pub(crate) kind: YamlErrorKind,
    /// Description of the error: of the value found, if it is no syntax error.
    pub(crate) message: String,
}

/// Kind of a YAML error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum YamlErrorKind {
    /// The text is no document.
    Syntax,
    /// The key at this path is in its mapping twice.
    Duplicate(String),
    /// The list at this path has more items than the limit.
    LongList(String, usize),
}

/// Parses one document. Duplicate keys are errors beside the tree, which keeps the first.
pub(crate) fn parse(text: &str) -> Result<(ConfigNode, Vec<YamlError>), YamlError> {
    let mut builder = YamlBuilder {
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        faults: Vec::new(),
        alias_bytes: 0,
        values: 0,
        depth: 0,
    };
    let root = builder.document()?;
    Ok((root, builder.faults))
}

struct YamlBuilder<'a> {
    events: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, ConfigNode>,
    faults: Vec<YamlError>,
    alias_bytes: usize,
    /// Values so far.
    values: usize,
    /// Lists and mappings around the present value.
    depth: usize,
}

type YamlEvent<'a> = (Event<'a>, Span);

impl<'a> YamlBuilder<'a> {
    fn next(&mut self) -> Result<YamlEvent<'a>, YamlError> {
        loop {
            match self.events.next() {
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok(step)) => return Ok(step),
                Some(Err(error)) => return Err(yaml_error_from_scan(&error)),
                None => return Err(yaml_error(1, "the document ends early")),
            }
        }
    }

    fn document(&mut self) -> Result<ConfigNode, YamlError> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                Event::StreamEnd => {
                    return Ok(root.unwrap_or(ConfigNode { line: 1, value: ConfigValue::Null }));
                }
                _ if root.is_some() => {
                    return Err(yaml_error(span.start.line(), "a second document begins here"));
                }
                event => root = Some(self.node((event, span), "")?),
            }
        }
    }

    fn node(&mut self, (event, span): YamlEvent<'a>, path: &str) -> Result<ConfigNode, YamlError> {
        let line = span.start.line();
        self.values += 1;
        if self.values > DOCUMENT_VALUES {
            let message = format!("the document has more than {DOCUMENT_VALUES} values");
            return Err(yaml_error(line, &message));
        }
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (anchor, scalar(text, style, tag.as_deref(), line)?)
            }
            Event::SequenceStart(_, anchor, tag) => {
                core_tag(tag.as_deref(), line)?;
                (anchor, self.nested(line, |builder| builder.sequence(path))?)
            }
            Event::MappingStart(_, anchor, tag) => {
                core_tag(tag.as_deref(), line)?;
                (anchor, self.nested(line, |builder| builder.mapping(path))?)
            }
            Event::Alias(id) => return self.alias(id, line),
            _ => return Err(yaml_error(line, "a value is missing here")),
        };
        let node = ConfigNode { line, value };
        if anchor != 0 {
            self.count_copy(&node, line)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// Reads a list or a mapping.
    fn nested(
        &mut self,
        line: usize,
        read: impl FnOnce(&mut Self) -> Result<ConfigValue, YamlError>,
    ) -> Result<ConfigValue, YamlError> {
        if self.depth == DOCUMENT_DEPTH {
            let message =
                format!("more than {DOCUMENT_DEPTH} lists and mappings inside each other");
            return Err(yaml_error(line, &message));
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    /// Counts a copy of a value, before it is made.
    fn count_copy(&mut self, node: &ConfigNode, line: usize) -> Result<(), YamlError> {
        self.alias_bytes += node.estimated_size();
        if self.alias_bytes > MAX_ALIAS_BYTES {
            return Err(yaml_error(line, "aliases make the document too large"));
        }
        Ok(())
    }

    fn alias(&mut self, id: usize, line: usize) -> Result<ConfigNode, YamlError> {
        let Some(node) = self.anchors.remove(&id) else {
            return Err(yaml_error(line, "an alias refers to a value that contains it"));
        };
        self.count_copy(&node, line)?;
        let value = node.value.clone();
        self.anchors.insert(id, node);
        Ok(ConfigNode { line, value })
    }

    fn sequence(&mut self, path: &str) -> Result<ConfigValue, YamlError> {
        let mut nodes = Vec::new();
        let limit = LIST_LIMITS.iter().find(|(list, _)| *list == path).map(|(_, most)| *most);
        loop {
            let step = self.next()?;
            if matches!(step.0, Event::SequenceEnd) {
                return Ok(ConfigValue::Sequence(nodes));
            }
            if let Some(most) = limit.filter(|most| nodes.len() == *most) {
                let (line, message) = (step.1.start.line(), format!("more than {most} {path}"));
                let kind = YamlErrorKind::LongList(path.to_owned(), most);
                return Err(YamlError { line, kind, message });
            }
            let path = format!("{path}[{}]", nodes.len());
            nodes.push(self.node(step, &path)?);
        }
    }

    fn mapping(&mut self, path: &str) -> Result<ConfigValue, YamlError> {
        let mut entries: Vec<ConfigEntry> = Vec::new();
        let mut seen = HashSet::new();
        let mut merged = Vec::new();
        loop {
            let (event, span) = self.next()?;
            let line = span.start.line();
            let (key, is_plain) = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, style, _, tag) => {
                    key_tag(tag.as_deref(), line)?;
                    if text.len() > MAX_KEY_BYTES {
                        let message = format!("a key has more than {MAX_KEY_BYTES} bytes");
                        return Err(yaml_error(line, &message));
                    }
                    (text.into_owned(), style == ScalarStyle::Plain && tag.is_none())
                }
                _ => return Err(yaml_error(line, "a key of a mapping must be plain text")),
            };
            let key_path = super::reader::join(path, &key);
            let step = self.next()?;
            let node = self.node(step, &key_path)?;
            if key == "<<" && is_plain {
                merged.extend(merge_sources(node)?);
            } else if !seen.insert(key.clone()) {
                if self.faults.len() >= CONFIG_ERRORS {
                    continue;
                }
                let message = format!("a duplicate key {}", quoted(&key));
                let kind = YamlErrorKind::Duplicate(key_path);
                self.faults.push(YamlError { line, kind, message });
            } else {
                entries.push(ConfigEntry { key, line, node });
            }
        }
        for entry in merged {
            if seen.insert(entry.key.clone()) {
                entries.push(entry);
            }
        }
        Ok(ConfigValue::Mapping(entries))
    }
}

/// The entries that a merge key (`<<`) adds; keys of the mapping itself win.
fn merge_sources(node: ConfigNode) -> Result<Vec<ConfigEntry>, YamlError> {
    match node.value {
        ConfigValue::Mapping(entries) => Ok(entries),
        ConfigValue::Sequence(nodes) => {
            let mut entries = Vec::new();
            for node in nodes {
                entries.extend(merge_sources(node)?);
            }
            Ok(entries)
        }
        _ => Err(yaml_error(node.line, "`<<` must be a mapping or a list of mappings")),
    }
}

fn scalar(
    text: Cow<'_, str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
    line: usize,
) -> Result<ConfigValue, YamlError> {
    let suffix = core_tag(tag, line)?;
    // A tag makes a number of a text in quotes, too.
    let is_typed = suffix.map_or(style == ScalarStyle::Plain, |suffix| suffix != "str");
    if is_typed { Ok(parse_plain(&text)) } else { Ok(ConfigValue::String(text.into_owned())) }
}

/// Refuses tags of keys that make another key of the text for other readers.
fn key_tag(tag: Option<&Tag>, line: usize) -> Result<(), YamlError> {
    match core_tag(tag, line)?.as_deref() {
        None | Some("str") => Ok(()),
        Some(suffix) => Err(yaml_error(line, &format!("a key cannot have the tag `!!{suffix}`"))),
    }
}

/// The name of a tag of the core schema; other tags would need types that the tree lacks.
fn core_tag(tag: Option<&Tag>, line: usize) -> Result<Option<String>, YamlError> {
    match tag {
        None => Ok(None),
        Some(tag) => match tag.core_suffix() {
            Some(suffix) => Ok(Some(suffix.to_owned())),
            None => Err(yaml_error(
                line,
                &format!("the tag `{}{}` is not supported", tag.original_handle(), tag.suffix()),
            )),
        },
    }
}

fn yaml_error(line: usize, message: &str) -> YamlError {
    YamlError { line, kind: YamlErrorKind::Syntax, message: message.to_owned() }
}

fn yaml_error_from_scan(error: &ScanError) -> YamlError {
    yaml_error(error.marker().line(), &error.info())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_key_is_an_error() {
        let of = |length: usize| parse(&format!("a: 1\n? {}\n: x\n", "k".repeat(length)));
        assert!(of(MAX_KEY_BYTES).is_ok());
        assert_eq!(of(MAX_KEY_BYTES + 1).expect_err("too long").line, 2);
    }

    #[test]
    fn key_with_a_tag_is_refused_unless_it_is_text() {
        for tag in ["!!binary", "!!int", "!!null", "!!merge", "!own", "!<tag:yaml.org,2002:binary>"]
        {
            let text = format!("a: 1\n{tag} aW1hZ2U=: x\n");
            assert_eq!(parse(&text).expect_err(tag).line, 2, "{tag}");
            let flow = format!("services: {{main: {{{tag} aW1hZ2U=: x}}}}");
            assert!(parse(&flow).is_err(), "{tag}");
        }
        let (plain, _) = parse("image: x\n").expect("valid");
        for text in ["!!str image: x\n", "!!str 'image': x\n"] {
            assert_eq!(parse(text).expect(text).0, plain, "{text}");
        }
        let (tagged, _) = parse("{!!str <<: {a: 1}}").expect("valid");
        assert!(matches!(&tagged.value, ConfigValue::Mapping(own) if own[0].key == "<<"));
    }

    #[test]
    fn tag_of_a_value_counts_before_its_quotes() {
        for (tagged, plain) in [
            ("a: !!float '1692e-1'\n", "a: 1692e-1\n"),
            ("a: !!int \"0x7f\"\n", "a: 0x7f\n"),
            ("a: !!str 1692e-1\n", "a: '1692e-1'\n"),
            ("a: !!str '1'\n", "a: '1'\n"),
        ] {
            let (expected, _) = parse(plain).expect("valid");
            assert_eq!(parse(tagged).expect(tagged).0, expected, "{tagged}");
        }
    }
}
