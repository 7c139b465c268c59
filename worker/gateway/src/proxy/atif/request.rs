//! Requests of model calls: their messages, each with its digest, and the facts that steps name.

use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::record::ModelEndpoint;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::content::{Item, items};
use crate::proxy::{bounded_json, messages};

/// Size of a request that is read, bytes.
const REQUEST_BYTES: usize = 8 * 1024 * 1024;

/// JSON values of the tools of a request. More are left out.
const TOOL_VALUES: usize = 256 * 1024;

/// A request.
#[derive(Debug, Default)]
pub(super) struct ReadRequest {
    pub(super) messages: Vec<RequestMessage>,
    /// The model that it asks for.
    pub(super) model: Option<String>,
    pub(super) effort: Option<String>,
    /// Its tools, in the form of OpenAI's functions.
    pub(super) tools: Vec<Value>,
}

/// A message of a request.
#[derive(Debug)]
pub(super) struct RequestMessage {
    /// Digest of what clients send unchanged; `None` if they may leave it out.
    pub(super) digest: Option<Digest>,
    pub(super) items: Vec<Item>,
}

/// The members that are read, in all dialects.
#[derive(Deserialize)]
struct Members<'a> {
    model: Option<Value>,
    reasoning_effort: Option<Value>,
    reasoning: Option<Value>,
    output_config: Option<Value>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
}

impl ReadRequest {
    /// Reads a request; `None` if it has no messages, or is too large.
    pub(super) fn read(endpoint: ModelEndpoint, path: &str, body: &str) -> Option<Self> {
        if body.len() > REQUEST_BYTES {
            return None;
        }
        let members: Members<'_> = serde_json::from_str(body).ok()?;
        let mut read = Vec::new();
        if endpoint == ModelEndpoint::Completions {
            read.push(prompt(members.prompt?.get())?);
        } else {
            messages::each_of_request(endpoint, body.as_bytes(), |message| {
                read.push(RequestMessage {
                    digest: messages::of_message(endpoint, &message),
                    items: items(endpoint, &message),
                });
            })?;
        }
        let effort = [
            members.reasoning_effort,
            members.reasoning.as_ref().and_then(|reasoning| reasoning.get("effort").cloned()),
            members.output_config.as_ref().and_then(|config| config.get("effort").cloned()),
        ];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some(Self {
            messages: read,
            model: members.model.as_ref().and_then(text).or_else(|| model_in(path)),
            effort: effort.iter().flatten().find_map(text),
            tools: members.tools.map(|tools| definitions(tools.get())).unwrap_or_default(),
        })
    }
}

/// The model in a path of Gemini.
fn model_in(path: &str) -> Option<String> {
    let (_, rest) = path.split_once("models/")?;
    let (model, _) = rest.split_once(':')?;
    Some(model.to_owned())
}

/// The prompt of a completion.
fn prompt(text: &str) -> Option<RequestMessage> {
    let prompt = bounded_json::read(text, &mut { REQUEST_BYTES / 2 })?;
    let text = match &prompt {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
        }
        Value::Array(items) => format!("[{} token ids]", items.len()),
        _ => return None,
    };
    let mut hasher = DigestHasher::default();
    hasher.update_part(text.as_bytes());
    Some(RequestMessage { digest: Some(hasher.finish()), items: vec![Item::User(text)] })
}

/// The tools of a request in the form of OpenAI's functions. Tools that servers run are kept as they
/// are.
fn definitions(tools: &str) -> Vec<Value> {
    let mut left = TOOL_VALUES;
    let Some(Value::Array(tools)) = bounded_json::read(tools, &mut left) else {
        return Vec::new();
    };
    let mut definitions = Vec::new();
    for tool in tools {
        let declared = ["functionDeclarations", "function_declarations"];
        let declared = declared.iter().find_map(|name| tool.get(*name)?.as_array());
        match declared {
            Some(declared) => definitions.extend(declared.iter().map(definition)),
            None if tool.get("function").is_some() => definitions.push(tool),
            None if tool.get("name").is_some() => definitions.push(definition(&tool)),
            None if tool.is_object() => definitions.push(tool),
            None => {}
        }
    }
    definitions
}

fn definition(tool: &Value) -> Value {
    let schemas = ["parameters", "parametersJsonSchema", "input_schema"];
    let schema = schemas.iter().find_map(|name| tool.get(*name));
    let Some(schema) = schema.filter(|schema| schema.is_object()) else { return tool.clone() };
    let mut function = json!({"name": tool["name"], "parameters": schema});
    if let Some(description) = tool.get("description").filter(|text| text.is_string()) {
        function["description"] = description.clone();
    }
    json!({"type": "function", "function": function})
}
