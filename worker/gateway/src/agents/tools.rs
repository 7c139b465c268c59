//! Tool servers and skills that a task offers to agents.

use bytes::Bytes;
use rollout_protocol::spec::task::{McpServer, McpTransport};
use rollout_protocol::template::{Template, UnsetVariable};
use serde_json::{Map, Value, json};

/// The file that lists the servers, as most agents read it.
pub const MCP_FILE: &str = "/rollout/mcp.json";

/// Variable with the path of [`MCP_FILE`], set if there are servers.
pub const MCP_VARIABLE: &str = "ROLLOUT_MCP_CONFIG";

/// Variable with the path of the directory with skills, if there is one.
pub const SKILLS_VARIABLE: &str = "ROLLOUT_SKILLS_DIR";

/// Directory of the skills of a job, in tasks without a skills directory of their own.
pub const SKILLS_DIR: &str = "/rollout/skills";

/// Variable that is set to `1` when an agent is to continue its conversation of the step before.
pub const RESUME_VARIABLE: &str = "ROLLOUT_RESUME";

/// The content of [`MCP_FILE`]. `value` expands the values of headers.
///
/// # Errors
/// Those of `value`.
pub fn mcp_config(
    servers: &[McpServer],
    value: impl Fn(&Template) -> Result<String, UnsetVariable>,
) -> Result<Bytes, UnsetVariable> {
    let mut entries = Map::new();
    for server in servers {
        let remote = |kind: &str, url: &str, headers: &_| -> Result<Value, UnsetVariable> {
            let headers: &std::collections::BTreeMap<String, Template> = headers;
            let mut entry = json!({ "type": kind, "url": url });
            if !headers.is_empty() {
                let values = headers.iter().map(|(k, v)| Ok((k.clone(), Value::from(value(v)?))));
                entry["headers"] = Value::Object(values.collect::<Result<_, UnsetVariable>>()?);
            }
            Ok(entry)
        };
        let entry = match &server.transport {
            McpTransport::Stdio { command, args } => {
                json!({ "type": "stdio", "command": command, "args": args })
            }
            McpTransport::Sse { url, headers } => remote("sse", url, headers)?,
            McpTransport::StreamableHttp { url, headers } => remote("http", url, headers)?,
        };
        entries.insert(server.name.clone(), entry);
    }
    Ok(json!({ "mcpServers": entries }).to_string().into())
}
