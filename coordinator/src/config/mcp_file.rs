//! Files with MCP servers (`--mcp-config`): JSON, YAML or TOML, as agents and Harbor read them.

use std::path::Path;

use super::cli_overrides::CliSetting;
use super::task::toml;
use super::value::{ConfigEntry, ConfigNode, ConfigValue};
use super::yaml;

/// Settings that add the servers of a file to the job.
///
/// # Errors
/// The text cannot be parsed, or has no servers.
pub(crate) fn mcp_settings(file: &Path, text: &str) -> Result<Vec<CliSetting>, String> {
    let shown = file.display();
    let cannot = |why: &str| format!("cannot read the MCP servers in {shown}: {why}");
    let root = if file.extension().is_some_and(|ending| ending == "toml") {
        toml::parse(text).map_err(|faults| {
            cannot(faults.first().map_or("it is not TOML", |fault| fault.message.as_str()))
        })?
    } else {
        // JSON is YAML, too.
        let (root, faults) = yaml::parse(text).map_err(|fault| cannot(&fault.message))?;
        if let Some(fault) = faults.first() {
            return Err(cannot(&fault.message));
        }
        root
    };
    let none = "it has neither `mcpServers` nor `mcp_servers`";
    let servers = servers(root).ok_or_else(|| cannot(none))?;
    let flag = format!("--mcp-config {shown}");
    Ok(servers
        .into_iter()
        .map(|server| CliSetting::entry(&flag, "environment.mcp_servers", server))
        .collect())
}

/// The servers: a list, or a table by name.
fn servers(root: ConfigNode) -> Option<Vec<ConfigValue>> {
    let (mut found, mut environment) = (None, None);
    for entry in entries(root)? {
        match entry.key.as_str() {
            "mcpServers" | "mcp_servers" => found = Some(entry.node),
            "environment" => environment = Some(entry.node),
            _ => {}
        }
    }
    match found {
        None => servers(environment?),
        Some(ConfigNode { value: ConfigValue::Sequence(items), .. }) => {
            Some(items.into_iter().map(|item| server(None, item.value)).collect())
        }
        Some(table) => {
            let named = entries(table)?.into_iter();
            Some(named.map(|entry| server(Some(entry.key), entry.node.value)).collect())
        }
    }
}

fn entries(node: ConfigNode) -> Option<Vec<ConfigEntry>> {
    match node.value {
        ConfigValue::Mapping(entries) => Some(entries),
        _ => None,
    }
}

/// A server with the keys of tasks: `type` is `transport`, and a server with a command is a program.
fn server(name: Option<String>, value: ConfigValue) -> ConfigValue {
    let mut entries = match value {
        ConfigValue::Mapping(entries) => entries,
        other => return other,
    };
    let at = |key: &str| entries.iter().position(|entry| entry.key == key);
    match (at("transport"), at("type"), at("command")) {
        (None, Some(kind), _) => "transport".clone_into(&mut entries[kind].key),
        (None, None, Some(_)) => entries.push(text("transport", "stdio")),
        _ => {}
    }
    if let Some(name) = name {
        entries.insert(0, text("name", &name));
    }
    ConfigValue::Mapping(entries)
}

fn text(key: &str, value: &str) -> ConfigEntry {
    let node = ConfigNode { line: 0, value: ConfigValue::String(value.to_owned()) };
    ConfigEntry { key: key.to_owned(), line: 0, node }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{CliDataset, Diagnostics, JobOptions, job_document, job_from_settings};
    use super::*;

    #[test]
    fn servers_of_every_form_of_file_are_added_to_job() {
        let program = json!({"name": "a", "transport": "stdio", "command": "c", "args": ["-v"]});
        let remote = json!({"name": "b", "transport": "streamable-http", "url": "http://b",
            "headers": {"X-Token": "${TOKEN}"}});
        for (file, content) in [
            (
                "c.json",
                r#"{"mcpServers": {"a": {"command": "c", "args": ["-v"]}, "b": {"type": "http",
                    "url": "http://b", "headers": {"X-Token": "${TOKEN}"}}}}"#,
            ),
            (
                "c.yaml",
                "mcp_servers:\n- {name: a, transport: stdio, command: c, args: [-v]}\n\
                 - {name: b, transport: http, url: 'http://b', headers: {X-Token: '${TOKEN}'}}\n",
            ),
            (
                "task.toml",
                "[[environment.mcp_servers]]\nname = 'a'\ntransport = 'stdio'\ncommand = 'c'\n\
                 args = ['-v']\n[[environment.mcp_servers]]\nname = 'b'\ntransport = 'http'\n\
                 url = 'http://b'\nheaders = {X-Token = '${TOKEN}'}\n",
            ),
        ] {
            let tasks = CliDataset::Path("tasks".into());
            let mut settings =
                vec![CliSetting::dataset("-p", tasks), CliSetting::agent("-a", "oracle")];
            settings.extend(mcp_settings(Path::new(file), content).expect(file));
            let options = JobOptions { settings, ..JobOptions::for_command_line(&|_| true) };
            let mut problems = Diagnostics::default();
            let job = job_from_settings(&options, &mut problems).expect("a job");
            let (job, _) = problems.finish(job).expect("no faults");
            let said = job_document(&job);
            assert_eq!(said["environment"]["mcp_servers"], json!([program, remote]), "{file}");
            assert!(job.variables().contains("TOKEN"), "{file}");
        }
    }

    #[test]
    fn file_without_servers_is_refused_with_its_name() {
        for content in ["{}", "[]", "{\"mcpServers\": 1}", "{"] {
            let error = mcp_settings(Path::new("c.json"), content).expect_err(content);
            assert!(error.contains("MCP servers in c.json"), "{error}");
        }
    }
}
