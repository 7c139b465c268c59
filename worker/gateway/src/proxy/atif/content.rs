//! Messages of requests and replies of all dialects, as parts of a conversation.

use rollout_protocol::record::{AtifToolCall, ModelEndpoint};
use serde_json::{Map, Value};

use crate::proxy::bounded_json;

/// JSON values of the arguments of a tool call. Arguments with more stay a text.
const ARGUMENT_VALUES: usize = 64 * 1024;

/// A part of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Item {
    /// A system prompt, or another text that the client adds for the model.
    System(String),
    /// A message of the user.
    User(String),
    /// A message of a model, or a part of it.
    Agent(AgentItem),
    /// The result of a tool.
    Result(ResultItem),
}

/// A message of a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct AgentItem {
    pub(super) text: String,
    pub(super) reasoning: String,
    /// Calls of tools; the id is empty if the server gave none.
    pub(super) calls: Vec<AtifToolCall>,
}

/// The result of a tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ResultItem {
    /// Id of the call, if the result names it.
    pub(super) call: Option<String>,
    /// Name of the tool, if the result names it.
    pub(super) name: Option<String>,
    pub(super) text: String,
    /// Whether the client says that the tool failed.
    pub(super) is_error: bool,
}

impl Item {
    /// Bytes of its texts.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::System(text) | Self::User(text) => text.len(),
            Self::Agent(agent) => agent.bytes(),
            Self::Result(result) => result.text.len(),
        }
    }
}

impl AgentItem {
    /// Bytes of its texts and arguments.
    pub(super) fn bytes(&self) -> usize {
        let call = |call: &AtifToolCall| {
            let arguments: usize = call.arguments.values().map(value_bytes).sum();
            call.function_name.len() + call.tool_call_id.len() + arguments
        };
        self.text.len() + self.reasoning.len() + self.calls.iter().map(call).sum::<usize>()
    }

    /// Adds another part of the same message.
    pub(super) fn add(&mut self, more: Self) {
        add_line(&mut self.text, &more.text);
        add_line(&mut self.reasoning, &more.reasoning);
        self.calls.extend(more.calls);
    }
}

/// Bytes of a value, roughly as JSON.
pub(super) fn value_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(value_bytes).sum::<usize>() + 2,
        Value::Object(members) => {
            members.iter().map(|(name, value)| name.len() + 4 + value_bytes(value)).sum::<usize>()
                + 2
        }
        _ => 8,
    }
}

/// The parts of a message of an endpoint.
pub(super) fn items(endpoint: ModelEndpoint, message: &Value) -> Vec<Item> {
    match endpoint {
        ModelEndpoint::Responses => of_response(message),
        ModelEndpoint::GenerateContent => of_gemini(message),
        _ => of_chat(message),
    }
}

/// Parts of a message of chat completions or of Anthropic.
fn of_chat(message: &Value) -> Vec<Item> {
    let content = &message["content"];
    match message["role"].as_str() {
        Some("system" | "developer") => vec![Item::System(text(content))],
        Some("conversation") => vec![Item::System(format!("[continues {}]", text(content)))],
        Some("assistant") => of_assistant(message),
        Some("tool" | "function") => vec![Item::Result(ResultItem {
            call: string(&message["tool_call_id"]),
            name: string(&message["name"]),
            text: text(content),
            is_error: false,
        })],
        _ => {
            let mut items = results(content);
            let text = text(content);
            if !text.is_empty() || items.is_empty() {
                items.push(Item::User(text));
            }
            items
        }
    }
}

fn of_assistant(message: &Value) -> Vec<Item> {
    let content = &message["content"];
    let mut agent = AgentItem { text: text(content), ..AgentItem::default() };
    add_line(&mut agent.text, message["refusal"].as_str().unwrap_or_default());
    let reasoning = ["reasoning_content", "reasoning"].map(|name| message[name].as_str());
    add_line(&mut agent.reasoning, reasoning.into_iter().flatten().next().unwrap_or_default());
    for part in content.as_array().into_iter().flatten() {
        match part["type"].as_str() {
            Some("thinking") => {
                add_line(&mut agent.reasoning, part["thinking"].as_str().unwrap_or_default());
            }
            Some("tool_use" | "server_tool_use" | "mcp_tool_use") => {
                agent.calls.push(call(&part["id"], &part["name"], &part["input"]));
            }
            _ => {}
        }
    }
    for made in message["tool_calls"].as_array().into_iter().flatten() {
        let (function, arguments) = match made.get("custom") {
            Some(custom) => (custom, "input"),
            None => (&made["function"], "arguments"),
        };
        agent.calls.push(call(&made["id"], &function["name"], &function[arguments]));
    }
    if let Some(function) = message.get("function_call").filter(|function| function.is_object()) {
        agent.calls.push(call(&Value::Null, &function["name"], &function["arguments"]));
    }
    let mut items = vec![Item::Agent(agent)];
    items.extend(results(content));
    items
}

/// Results of tools among the parts of a content.
fn results(content: &Value) -> Vec<Item> {
    let parts = content.as_array().into_iter().flatten();
    let parts = parts.filter(|part| is_result(part));
    let item = |part: &Value| {
        Item::Result(ResultItem {
            call: string(&part["tool_use_id"]),
            name: None,
            text: text(&part["content"]),
            is_error: part["is_error"] == true,
        })
    };
    parts.map(item).collect()
}

fn is_result(part: &Value) -> bool {
    part["type"].as_str().is_some_and(|kind| kind.ends_with("tool_result"))
}

/// Parts of an item of OpenAI responses.
fn of_response(item: &Value) -> Vec<Item> {
    let agent = |agent: AgentItem| vec![Item::Agent(agent)];
    let of_call =
        |call: AtifToolCall| agent(AgentItem { calls: vec![call], ..AgentItem::default() });
    match item["type"].as_str().unwrap_or("message") {
        "message" => of_chat(item),
        "reasoning" => {
            let mut reasoning = text(&item["summary"]);
            add_line(&mut reasoning, &text(&item["content"]));
            agent(AgentItem { reasoning, ..AgentItem::default() })
        }
        "function_call" => of_call(call(&item["call_id"], &item["name"], &item["arguments"])),
        "custom_tool_call" => of_call(call(&item["call_id"], &item["name"], &item["input"])),
        "local_shell_call" => {
            of_call(call(&item["call_id"], &"local_shell".into(), &item["action"]))
        }
        kind if kind.ends_with("_output") => vec![Item::Result(ResultItem {
            call: string(&item["call_id"]),
            name: None,
            text: text(&item["output"]),
            is_error: false,
        })],
        // A tool that the server runs itself.
        kind => {
            let mut arguments = item.as_object().cloned().unwrap_or_default();
            arguments.retain(|name, _| !["id", "type", "status"].contains(&name.as_str()));
            of_call(call(&item["id"], &kind.into(), &Value::Object(arguments)))
        }
    }
}

/// Parts of a content of Gemini.
fn of_gemini(content: &Value) -> Vec<Item> {
    let (mut agent, mut results, mut plain) = (AgentItem::default(), Vec::new(), String::new());
    for part in content["parts"].as_array().into_iter().flatten() {
        let either = |a: &str, b: &str| part.get(a).or_else(|| part.get(b));
        if let Some(text) = part["text"].as_str() {
            let is_thought = part["thought"] == true;
            (if is_thought { &mut agent.reasoning } else { &mut plain }).push_str(text);
        } else if let Some(made) = either("functionCall", "function_call") {
            agent.calls.push(call(&made["id"], &made["name"], &made["args"]));
        } else if let Some(result) = either("functionResponse", "function_response") {
            let response = &result["response"];
            let output =
                ["output", "error", "result"].iter().find_map(|name| response[*name].as_str());
            let only = response.as_object().is_some_and(|members| members.len() == 1);
            let text = output.filter(|_| only).map_or_else(|| response.to_string(), str::to_owned);
            results.push(Item::Result(ResultItem {
                call: string(&result["id"]),
                name: string(&result["name"]),
                text,
                is_error: only && response.get("error").is_some(),
            }));
        } else {
            plain.push_str(&placeholder(part));
        }
    }
    match content["role"].as_str() {
        Some("system") => vec![Item::System(plain)],
        Some("model") => {
            agent.text = plain;
            vec![Item::Agent(agent)]
        }
        _ => {
            if !plain.is_empty() || results.is_empty() {
                results.push(Item::User(plain));
            }
            results
        }
    }
}

/// A call of a tool.
fn call(id: &Value, name: &Value, arguments: &Value) -> AtifToolCall {
    AtifToolCall {
        tool_call_id: string(id).unwrap_or_default(),
        function_name: string(name).unwrap_or_default(),
        arguments: arguments_object(arguments),
    }
}

/// Arguments as an object, which the format asks for.
fn arguments_object(arguments: &Value) -> Map<String, Value> {
    let input = |value: Value| Map::from_iter([("input".to_owned(), value)]);
    match arguments {
        Value::Object(members) => members.clone(),
        Value::Null => Map::new(),
        Value::String(text) if text.trim().is_empty() => Map::new(),
        Value::String(text) => match bounded_json::read(text, &mut { ARGUMENT_VALUES }) {
            Some(Value::Object(members)) => members,
            _ => input(arguments.clone()),
        },
        other => input(other.clone()),
    }
}

/// The text of a content: a text, or parts, each on lines of its own. Parts that are no text are
/// named in brackets.
fn text(content: &Value) -> String {
    let Some(parts) = content.as_array() else {
        return match content {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
    };
    let mut text = String::new();
    for part in parts {
        match (part["text"].as_str(), part["type"].as_str()) {
            (Some(more), _) => add_line(&mut text, more),
            (None, Some("thinking" | "redacted_thinking" | "reasoning")) => {}
            (None, Some(kind)) if kind.ends_with("tool_use") || is_result(part) => {}
            _ => match part.as_str() {
                Some(more) => add_line(&mut text, more),
                None => add_line(&mut text, &placeholder(part)),
            },
        }
    }
    text
}

/// The name of a part that is no text. Its data is in the record of the call.
fn placeholder(part: &Value) -> String {
    let urls = ["/image_url/url", "/image_url", "/source/url", "/fileData/fileUri", "/file_url"];
    let url = urls.iter().find_map(|path| part.pointer(path)?.as_str());
    if let Some(url) = url.filter(|url| !url.starts_with("data:")) {
        return format!("[{url}]");
    }
    let types = ["/source/media_type", "/inlineData/mimeType", "/inline_data/mime_type", "/type"];
    let kind = types.iter().find_map(|path| part.pointer(path)?.as_str());
    let member = || part.as_object().and_then(|part| part.keys().next()).map(String::as_str);
    format!("[{}]", kind.or_else(member).unwrap_or("empty"))
}

fn add_line(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

fn string(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}
