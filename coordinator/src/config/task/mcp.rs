//! Servers of tools for agents (`[[environment.mcp_servers]]`).

use std::collections::BTreeMap;

use rollout_protocol::spec::task::{McpServer, McpTransport};
use rollout_protocol::template::Template;

use super::super::elements::variables::Variable;
use super::super::fields::{Field, Fields};
use super::super::problem::ErrorKind;
use super::Reading;

keys! {
    /// The keys of a server of tools.
    pub(crate) table McpKeys {
        name: "text", "required", "Name.";
        transport: "stdio|sse|streamable-http|http", "sse", "How it is reached.";
        url: "text", "required but for stdio", "Address.";
        command: "text", "required for stdio", "Program.";
        args: "list of text", "empty", "Its arguments.";
        headers: "table NAME = text", "empty",
            "Headers of every request; credentials as `${NAME}` only.";
    }
}

#[derive(Debug, Clone, Copy)]
enum Word {
    Stdio,
    Sse,
    Http,
}

const TRANSPORTS: &[(&str, Word)] = &[
    ("stdio", Word::Stdio),
    ("sse", Word::Sse),
    ("streamable-http", Word::Http),
    ("http", Word::Http),
];

/// Parts of the names of headers that carry credentials.
const CREDENTIALS: &[&str] =
    &["authorization", "cookie", "token", "secret", "password", "credential", "api-key", "apikey"];

/// The servers, in the order of the file.
pub(super) fn read(field: &Field<'_>, reading: &mut Reading) -> Vec<McpServer> {
    let items = field.items().unwrap_or_default();
    items.iter().filter_map(|item| server(item, reading)).collect()
}

fn server(item: &Field<'_>, reading: &mut Reading) -> Option<McpServer> {
    let mut fields = item.mapping()?;
    let name = fields.take(McpKeys::name);
    name.required("a name for the server");
    let word = fields.take(McpKeys::transport);
    let word = if word.is_present() { word.word(TRANSPORTS) } else { Some(Word::Sse) };
    let transport = transport(word, &mut fields, reading);
    fields.finish();
    Some(McpServer { name: name.name()?, transport: transport? })
}

fn transport(
    word: Option<Word>,
    fields: &mut Fields<'_>,
    reading: &mut Reading,
) -> Option<McpTransport> {
    let (command, args) = (fields.take(McpKeys::command), fields.take(McpKeys::args));
    let (url, headers) = (fields.take(McpKeys::url), fields.take(McpKeys::headers));
    let args = args.items().unwrap_or_default().iter().filter_map(Field::string).collect();
    let headers = read_headers(&headers, reading);
    match word? {
        Word::Stdio => {
            command.required("the program to start");
            Some(McpTransport::Stdio { command: command.name()?, args })
        }
        Word::Sse => Some(McpTransport::Sse { url: address(&url)?, headers }),
        Word::Http => Some(McpTransport::StreamableHttp { url: address(&url)?, headers }),
    }
}

fn address(field: &Field<'_>) -> Option<String> {
    field.required("the address of the server");
    field.name()
}

fn read_headers(field: &Field<'_>, reading: &mut Reading) -> BTreeMap<String, Template> {
    let entries = field.entries().unwrap_or_default();
    entries.into_iter().filter_map(|(name, value)| header(name, &value, reading)).collect()
}

fn header(name: &str, field: &Field<'_>, reading: &mut Reading) -> Option<(String, Template)> {
    let template = Template::new(field.text()?);
    // The value may be a secret: only the error's own words are shown.
    if let Err(error) = template.check() {
        let expected = "text with `${NAME}` or `${NAME:-default}`";
        field.reject(ErrorKind::BadValue, error.to_string(), expected);
        return None;
    }
    let lower = name.to_ascii_lowercase();
    let carries = CREDENTIALS.iter().any(|part| lower.contains(part));
    if carries && template.variables().is_empty() {
        let found = "a credential that stands in the file";
        field.reject(ErrorKind::BadValue, found, "a reference to a variable, `${NAME}`");
        return None;
    }
    reading.variables.push(Variable { template: template.clone(), spot: field.spot() });
    Some((name.to_owned(), template))
}
