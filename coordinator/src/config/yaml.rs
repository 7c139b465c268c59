//! YAML and JSON text to a tree. The only place that knows the YAML crate, whose interface moves.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

use super::tree::{Entry, Node, Value, plain, quoted};

/// Bytes that aliases may add to a file: a few lines of nested aliases must not fill the memory.
const ALIAS_BYTES: usize = 16 * 1024 * 1024;

/// A file that is not YAML, or a fault of its structure.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    /// Line, from 1.
    pub(super) line: usize,
    /// Key path of a key that stands twice; nothing for a syntax error.
    pub(super) duplicate: Option<String>,
    /// What is wrong.
    pub(super) message: String,
}

/// Reads one document. Keys that stand twice are faults beside the tree, which has the first.
pub(super) fn parse(text: &str) -> Result<(Node, Vec<Fault>), Fault> {
    let mut builder = Builder {
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        faults: Vec::new(),
        alias_bytes: 0,
    };
    let root = builder.document()?;
    Ok((root, builder.faults))
}

struct Builder<'a> {
    events: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Node>,
    faults: Vec<Fault>,
    alias_bytes: usize,
}

type Step<'a> = (Event<'a>, Span);

impl<'a> Builder<'a> {
    fn next(&mut self) -> Result<Step<'a>, Fault> {
        loop {
            match self.events.next() {
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok(step)) => return Ok(step),
                Some(Err(error)) => return Err(scan_fault(&error)),
                None => return Err(fault(1, "the document ends early")),
            }
        }
    }

    fn document(&mut self) -> Result<Node, Fault> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                Event::StreamEnd => {
                    return Ok(root.unwrap_or(Node { line: 1, value: Value::Null }));
                }
                _ if root.is_some() => {
                    return Err(fault(span.start.line(), "a second document begins here"));
                }
                event => root = Some(self.node((event, span), "")?),
            }
        }
    }

    fn node(&mut self, (event, span): Step<'a>, path: &str) -> Result<Node, Fault> {
        let line = span.start.line();
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (anchor, scalar(text, style, tag.as_deref(), line)?)
            }
            Event::SequenceStart(_, anchor, tag) => {
                core_tag(tag.as_deref(), line)?;
                (anchor, self.sequence(path)?)
            }
            Event::MappingStart(_, anchor, tag) => {
                core_tag(tag.as_deref(), line)?;
                (anchor, self.mapping(path)?)
            }
            Event::Alias(id) => return self.alias(id, line),
            _ => return Err(fault(line, "a value is missing here")),
        };
        let node = Node { line, value };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn alias(&mut self, id: usize, line: usize) -> Result<Node, Fault> {
        let Some(node) = self.anchors.get(&id) else {
            return Err(fault(line, "an alias stands inside what it refers to"));
        };
        self.alias_bytes += node.weight();
        if self.alias_bytes > ALIAS_BYTES {
            return Err(fault(line, "aliases make the document too large"));
        }
        Ok(Node { line, value: node.value.clone() })
    }

    fn sequence(&mut self, path: &str) -> Result<Value, Fault> {
        let mut nodes = Vec::new();
        loop {
            let step = self.next()?;
            if matches!(step.0, Event::SequenceEnd) {
                return Ok(Value::Sequence(nodes));
            }
            let path = format!("{path}[{}]", nodes.len());
            nodes.push(self.node(step, &path)?);
        }
    }

    fn mapping(&mut self, path: &str) -> Result<Value, Fault> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen = HashSet::new();
        let mut merged = Vec::new();
        loop {
            let (event, span) = self.next()?;
            let line = span.start.line();
            let (key, is_plain) = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, style, ..) => (text.into_owned(), style == ScalarStyle::Plain),
                _ => return Err(fault(line, "a key of a mapping must be plain text")),
            };
            let key_path = super::fields::join(path, &key);
            let step = self.next()?;
            let node = self.node(step, &key_path)?;
            if key == "<<" && is_plain {
                merged.extend(merge_sources(node)?);
            } else if !seen.insert(key.clone()) {
                let message = format!("the key {} stands twice", quoted(&key));
                self.faults.push(Fault { line, duplicate: Some(key_path), message });
            } else {
                entries.push(Entry { key, line, node });
            }
        }
        for entry in merged {
            if seen.insert(entry.key.clone()) {
                entries.push(entry);
            }
        }
        Ok(Value::Mapping(entries))
    }
}

/// The entries that a merge key (`<<`) brings in; keys of the mapping itself win.
fn merge_sources(node: Node) -> Result<Vec<Entry>, Fault> {
    match node.value {
        Value::Mapping(entries) => Ok(entries),
        Value::Sequence(nodes) => {
            let mut entries = Vec::new();
            for node in nodes {
                entries.extend(merge_sources(node)?);
            }
            Ok(entries)
        }
        _ => Err(fault(node.line, "`<<` must be a mapping or a list of mappings")),
    }
}

fn scalar(
    text: Cow<'_, str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
    line: usize,
) -> Result<Value, Fault> {
    let suffix = core_tag(tag, line)?;
    if style == ScalarStyle::Plain && suffix.is_none_or(|suffix| suffix != "str") {
        Ok(plain(&text))
    } else {
        Ok(Value::String(text.into_owned()))
    }
}

/// The name of a tag of the core schema; other tags would ask for types that we do not have.
fn core_tag(tag: Option<&Tag>, line: usize) -> Result<Option<String>, Fault> {
    match tag {
        None => Ok(None),
        Some(tag) => match tag.core_suffix() {
            Some(suffix) => Ok(Some(suffix.to_owned())),
            None => Err(fault(
                line,
                &format!("the tag `{}{}` has no meaning here", tag.original_handle(), tag.suffix()),
            )),
        },
    }
}

fn fault(line: usize, message: &str) -> Fault {
    Fault { line, duplicate: None, message: message.to_owned() }
}

fn scan_fault(error: &ScanError) -> Fault {
    fault(error.marker().line(), &error.info())
}
