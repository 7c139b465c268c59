//! MCP servers (`[[environment.mcp_servers]]`).

use std::collections::BTreeMap;

use rollout_protocol::spec::task::{McpServer, McpTransport};
use rollout_protocol::template::Template;

use super::super::diagnostics::ErrorKind;
use super::super::elements::variables::Variable;
use super::super::reader::{Field, Fields};

keys! {
    /// The keys of an MCP server.
    pub(crate) table McpKeys {
        name: Value("text"), "required", "Name.";
        transport: Value("stdio|sse|streamable-http|http"), "sse", "Transport.";
        url: Value("text"), "required except for stdio", "URL.";
        command: Value("text"), "required for stdio", "Program to start.";
        args: Value("list of text"), "empty", "Arguments of `command`.";
        headers: Value("table NAME = text"), "empty",
            "Headers of every request; credentials as `${NAME}` only.";
    }
}

#[derive(Debug, Clone, Copy)]
enum McpTransportKind {
    Stdio,
    Sse,
    Http,
}

const TRANSPORTS: &[(&str, McpTransportKind)] = &[
    ("stdio", McpTransportKind::Stdio),
    ("sse", McpTransportKind::Sse),
    ("streamable-http", McpTransportKind::Http),
    ("http", McpTransportKind::Http),
];

/// Parts of header names that mark credentials.
const CREDENTIAL_HEADER_WORDS: &[&str] =
    &["authorization", "cookie", "token", "secret", "password", "credential", "api-key", "apikey"];

/// The servers, in file order. Their headers are added to the variables.
pub(crate) fn read(field: &Field<'_>, variables: &mut Vec<Variable>) -> Vec<McpServer> {
    let items = field.items().unwrap_or_default();
    items.iter().filter_map(|item| server(item, variables)).collect()
}

fn server(item: &Field<'_>, variables: &mut Vec<Variable>) -> Option<McpServer> {
    let mut fields = item.mapping()?;
    let name = fields.take(McpKeys::name);
    name.required("a name for the server");
    let word = fields.take(McpKeys::transport);
    let word =
        if word.is_present() { word.keyword(TRANSPORTS) } else { Some(McpTransportKind::Sse) };
    let transport = transport(word, &mut fields, variables);
    fields.finish();
    Some(McpServer { name: name.non_empty_string()?, transport: transport? })
}

fn transport(
    word: Option<McpTransportKind>,
    fields: &mut Fields<'_>,
    variables: &mut Vec<Variable>,
) -> Option<McpTransport> {
    let (command, args) = (fields.take(McpKeys::command), fields.take(McpKeys::args));
    let (url, headers) = (fields.take(McpKeys::url), fields.take(McpKeys::headers));
    let args = args.items().unwrap_or_default().iter().filter_map(Field::string).collect();
    let headers = read_headers(&headers, variables);
    match word? {
        McpTransportKind::Stdio => {
            command.required("the program to start");
            Some(McpTransport::Stdio { command: command.non_empty_string()?, args })
        }
        McpTransportKind::Sse => Some(McpTransport::Sse { url: address(&url)?, headers }),
        McpTransportKind::Http => {
            Some(McpTransport::StreamableHttp { url: address(&url)?, headers })
        }
    }
}

fn address(field: &Field<'_>) -> Option<String> {
    field.required("the address of the server");
    field.non_empty_string()
}

fn read_headers(field: &Field<'_>, variables: &mut Vec<Variable>) -> BTreeMap<String, Template> {
    let entries = field.entries().unwrap_or_default();
    entries.into_iter().filter_map(|(name, value)| header(name, &value, variables)).collect()
}

fn header(
    name: &str,
    field: &Field<'_>,
    variables: &mut Vec<Variable>,
) -> Option<(String, Template)> {
    let template = Template::new(field.text()?);
    // The value may be a secret: only the error message is shown.
    if let Err(error) = template.check() {
        let expected = "text with `${NAME}` or `${NAME:-default}`";
        field.reject(ErrorKind::BadValue, error.to_string(), expected);
        return None;
    }
    let lower = name.to_ascii_lowercase();
    let carries = CREDENTIAL_HEADER_WORDS.iter().any(|part| lower.contains(part));
    if carries && template.variables().is_empty() {
        let found = "a literal credential";
        field.reject(ErrorKind::BadValue, found, "a reference to a variable, `${NAME}`");
        return None;
    }
    variables.push(Variable { template: template.clone(), location: field.location() });
    Some((name.to_owned(), template))
}
