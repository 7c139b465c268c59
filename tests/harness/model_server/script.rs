//! A model that solves a task: it runs a command with a tool of its client, and then says that it is
//! done. The same request gets the same reply.

mod chat;
mod gemini;
mod messages;
mod responses;

use std::sync::Arc;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};

use super::{ServerShared, event_stream, lock, replies};

/// Tools that run a command.
const SHELL_TOOLS: [&str; 9] = [
    "bash",
    "Bash",
    "shell",
    "exec_command",
    "run_shell_command",
    "run_commands",
    "run_command",
    "execute_bash",
    "terminal",
];

/// Tools that end an attempt.
const ENDING_TOOLS: [&str; 3] = ["finish", "complete", "attempt_completion"];

/// The line at which the client of mini-SWE-agent ends, if a command prints it.
const END_MARK: &str = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";

/// Members of requests that are results of tools.
const RESULTS: [&str; 4] =
    ["\"role\":\"tool\"", "\"function_call_output\"", "\"tool_result\"", "\"functionResponse\""];

/// Tools that find other tools, which a request does not have in full.
const SEARCH_TOOLS: [&str; 2] = ["ToolSearch", "tool_search"];

/// The tool of qwen-code that calls those that were found.
const BRIDGE_TOOL: &str = "tool_call";

/// Tokens of every reply, and those of them that are of its reasoning.
const OUTPUT_TOKENS: usize = 10;
const REASONING_TOKENS: usize = 4;

/// Tokens of every request that the model read from its cache, and that it wrote there in the dialect
/// that says so.
const CACHED_TOKENS: usize = 30;
const WRITTEN_TOKENS: usize = 20;

/// The task that a scripted model solves: it writes a line into a file of the working directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptedTask {
    /// Name of the file.
    pub file: String,
    /// The line.
    pub line: String,
    /// Tools that are called first, by the ends of their names, each with a text.
    pub tool_calls: Vec<(String, String)>,
    /// Commands that are run then, one for each call.
    pub commands: Vec<String>,
}

/// The decision of a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// A call of a tool.
    Call {
        /// Id of the call.
        id: String,
        /// The tool.
        name: String,
        /// The namespace that the tool is in.
        namespace: Option<String>,
        /// Its arguments.
        arguments: Value,
    },
    /// A text without a call.
    Text(String),
}

/// Input tokens of a reply, and its number in its conversation.
struct InputTokens {
    input: usize,
    number: usize,
}

/// A reply: its events as a stream, and the whole of it.
struct ScriptedReply {
    events: Vec<String>,
    whole: Value,
}

/// A tool of a request: its name, its namespace and the schema of its arguments.
struct Tool<'a> {
    name: &'a str,
    namespace: Option<&'a str>,
    schema: &'a Value,
}

impl ScriptedTask {
    /// A task without commands before its answer.
    pub fn new(file: &str, line: &str) -> Self {
        Self {
            file: file.to_owned(),
            line: line.to_owned(),
            tool_calls: Vec::new(),
            commands: Vec::new(),
        }
    }

    /// The reply to a request; `None` if the path is of no dialect.
    fn reply(&self, path: &str, request: &Value) -> Option<ScriptedReply> {
        let turn = self.turn(request);
        let (input, number) = (100 + 10 * history(request).len(), results(request) + 1);
        let input = InputTokens { input, number };
        match path {
            _ if path.ends_with("/chat/completions") => Some(chat::reply(request, &turn, &input)),
            _ if path.ends_with("/responses") => Some(responses::reply(request, &turn, &input)),
            _ if path.ends_with("/messages") => Some(messages::reply(request, &turn, &input)),
            _ if path.contains("enerateContent") => Some(gemini::reply(path, &turn, &input)),
            _ => None,
        }
    }

    /// The model's decision.
    pub fn turn(&self, request: &Value) -> Turn {
        let tools = tools(request);
        let named = |names: &[&str]| {
            names.iter().find_map(|name| tools.iter().find(|tool| tool.name == *name))
        };
        let number = results(request);
        let call = |tool: &Tool<'_>, text: &str| Turn::Call {
            id: format!("call_{}", number + 1),
            name: tool.name.to_owned(),
            namespace: tool.namespace.map(str::to_owned),
            arguments: arguments(tool.schema, text),
        };
        // Searches for tools are no part of the script.
        let results = number.saturating_sub(searches(request));
        if let Some((end, text)) = self.tool_calls.get(results) {
            if let Some(tool) = tools.iter().find(|tool| tool.name.ends_with(end.as_str())) {
                return call(tool, text);
            }
            let Some(name) = deferred_tool(request, end) else {
                return Turn::Text(format!("there is no tool {end}"));
            };
            let query = format!("select:{name}");
            return match named(&SEARCH_TOOLS) {
                Some(search) if !request.to_string().contains(&query) => call(search, &query),
                _ => found_call(name, text, named(&[BRIDGE_TOOL]), number),
            };
        }
        let results = results - self.tool_calls.len();
        let (done, text) = (format!("{} is written.", self.file), request.to_string());
        let Some(shell) = named(&SHELL_TOOLS) else {
            return Turn::Text(self.edit(&text).unwrap_or(done));
        };
        if results < self.commands.len() {
            return call(shell, &self.commands[results]);
        }
        if results == self.commands.len() {
            return call(shell, &format!("printf '%s\\n' '{}' >{}", self.line, self.file));
        }
        if text.contains(END_MARK) {
            return call(shell, &format!("echo {END_MARK}"));
        }
        named(&ENDING_TOOLS).map_or(Turn::Text(done.clone()), |ending| call(ending, &done))
    }

    /// The answer for clients without tools, in a form that their prompt explains.
    fn edit(&self, prompt: &str) -> Option<String> {
        let Self { file, line, .. } = self;
        if prompt.contains("SEARCH/REPLACE") {
            let edit = format!("<<<<<<< SEARCH\n=======\n{line}\n>>>>>>> REPLACE");
            return Some(format!("{file}\n```\n{edit}\n```\n"));
        }
        prompt.contains("file listing").then(|| format!("{file}\n```\n{line}\n```\n"))
    }
}

/// Answers a call, and logs the answer.
pub(super) fn answer(
    shared: &Arc<ServerShared>,
    index: usize,
    task: &ScriptedTask,
    path: &str,
    request: &Value,
) -> Response {
    let reply = task.reply(path, request);
    if let (Some(reply), true) = (&reply, replies::is_stream(path, request)) {
        let events = reply.events.iter().cloned().map(Some).collect();
        let body = Body::from_stream(event_stream(Arc::clone(shared), index, events));
        return ([("content-type", "text/event-stream")], body).into_response();
    }
    let status = if reply.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let text = reply.map_or_else(String::new, |reply| reply.whole.to_string());
    let call = &mut lock(&shared.calls)[index];
    (call.status, call.reply, call.finished) = (status.as_u16(), text.clone().into_bytes(), true);
    (status, [("content-type", "application/json")], text).into_response()
}

/// The messages of a request.
fn history(request: &Value) -> &[Value] {
    let lists = ["messages", "input", "contents"];
    lists.iter().find_map(|name| request[*name].as_array()).map_or(&[], Vec::as_slice)
}

/// Number of results of tools in a request, one for each call.
fn results(request: &Value) -> usize {
    let is_result = |message: &Value| {
        let text = message.to_string();
        RESULTS.iter().any(|result| text.contains(result))
    };
    history(request).iter().filter(|message| is_result(message)).count()
}

/// Number of searches for tools in a request.
fn searches(request: &Value) -> usize {
    let is_search = |message: &&Value| {
        let text = message.to_string();
        text.contains("\"query\":\"select:") || text.contains("\\\"query\\\":\\\"select:")
    };
    history(request).iter().filter(is_search).count()
}

/// The whole name of a tool that a request mentions without having it.
fn deferred_tool(request: &Value, end: &str) -> Option<String> {
    let text = request.to_string();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = text.split(|c| !is_name(c)).filter(|name| name.ends_with(end));
    // Escapes of line breaks are before some.
    names
        .map(|name| name.strip_prefix('n').filter(|rest| rest.starts_with("mcp_")).unwrap_or(name))
        .next()
        .map(str::to_owned)
}

/// A call of a tool that was found, over the client's bridge if it has one.
fn found_call(name: String, text: &str, bridge: Option<&Tool<'_>>, number: usize) -> Turn {
    let arguments = json!({"message": text});
    let id = format!("call_{}", number + 1);
    let (name, arguments) = match bridge {
        Some(bridge) => (bridge.name.to_owned(), json!({"name": name, "arguments": arguments})),
        None => (name, arguments),
    };
    Turn::Call { id, name, namespace: None, arguments }
}

/// The tools of a request, in the form of any dialect.
fn tools(request: &Value) -> Vec<Tool<'_>> {
    let listed = request["tools"].as_array().into_iter().flatten();
    let flat = listed.flat_map(|tool| match tool["functionDeclarations"].as_array() {
        Some(declarations) => declarations.iter().collect(),
        None => vec![tool.get("function").unwrap_or(tool)],
    });
    let all = flat.flat_map(|tool| match tool["tools"].as_array() {
        Some(tools) => tools.iter().map(|inner| (inner, tool["name"].as_str())).collect(),
        None => vec![(tool, None)],
    });
    let schemas = ["parameters", "parametersJsonSchema", "input_schema"];
    all.filter_map(|(tool, namespace)| {
        let schema = schemas.iter().find_map(|name| tool.get(*name)).unwrap_or(&Value::Null);
        Some(Tool { name: tool["name"].as_str()?, namespace, schema })
    })
    .collect()
}

/// Arguments that fit a schema and have a text as the command, or as the last word.
fn arguments(schema: &Value, text: &str) -> Value {
    let names = ["command", "cmd", "commands", "message", "content", "query"];
    let mut arguments = Map::new();
    let main = names.into_iter().find(|name| schema["properties"].get(*name).is_some());
    let main = main.unwrap_or("command");
    let is_list = schema["properties"][main].to_string().contains("\"array\"");
    let value = match (is_list, main) {
        (false, _) => json!(text),
        (true, "commands") => json!([text]),
        (true, _) => json!(["bash", "-c", text]),
    };
    arguments.insert(main.to_owned(), value);
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in required {
        let property = &schema["properties"][name];
        arguments.entry(name).or_insert_with(|| match property["type"].as_str() {
            Some("boolean") => json!(false),
            Some("integer" | "number") => json!(1),
            Some("array") => json!([]),
            Some("object") => json!({}),
            _ => property["enum"].get(0).cloned().unwrap_or_else(|| json!("write the answer")),
        });
    }
    Value::Object(arguments)
}

/// The events of a stream whose events have no names.
fn unnamed(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}
