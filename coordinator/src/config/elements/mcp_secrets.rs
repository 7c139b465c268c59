//! Secrets in the addresses and arguments of a job's MCP servers. The job is stored and shown, and only
//! headers refer to variables: a secret anywhere else would be readable by everybody who may see the run.

use rollout_base::secrets::looks_secret;
use rollout_protocol::spec::task::{McpServer, McpTransport};

use super::super::diagnostics::ErrorKind;
use super::super::reader::Field;

/// Beginnings of values that are files, such as the one with a certificate's key.
const PATHS: [&str; 4] = ["/", "./", "../", "~/"];

/// The header of an argument that is a credential under every scheme.
const AUTHORIZATION: &str = "authorization";

/// Rejects servers with a literal secret outside of their headers.
pub(super) fn reject(field: &Field<'_>, servers: &[McpServer]) {
    for server in servers {
        let (is_secret, hint) = match &server.transport {
            McpTransport::Stdio { command, args } => (
                has_secret_argument(args) || is_secret_text("", command),
                "give the program the secret as a variable, with `env` of the agents",
            ),
            McpTransport::Sse { url, .. } | McpTransport::StreamableHttp { url, .. } => {
                (is_secret_address(url), "send the secret in `headers`, as `${NAME}`")
            }
        };
        if is_secret {
            let found = format!("a literal credential of the server `{}`", server.name);
            let expected = "addresses and arguments without secrets";
            field.reject_with_hint(ErrorKind::BadValue, found, expected, hint);
        }
    }
}

/// Whether an argument is a secret, by itself or by the option before it.
fn has_secret_argument(args: &[String]) -> bool {
    let mut option = "";
    args.iter().any(|argument| {
        let before = std::mem::take(&mut option);
        // Variables and headers are arguments of launchers.
        let named = argument.split_once(['=', ':']);
        if argument.starts_with('-') && named.is_none() {
            option = argument.trim_start_matches('-');
            return false;
        }
        let is_named_secret = named.is_some_and(|(name, value)| {
            is_secret_text(name.trim_start_matches('-'), value.trim_start())
        });
        is_named_secret || is_secret_text(before, argument)
    })
}

/// Whether a text with a name is a secret. One that refers to a variable is none.
fn is_secret_text(name: &str, text: &str) -> bool {
    if text.contains("${") || text.starts_with('$') {
        return false;
    }
    if text.contains("://") {
        return is_secret_address(text);
    }
    let is_path = PATHS.iter().any(|path| text.starts_with(path));
    let is_header = name.eq_ignore_ascii_case(AUTHORIZATION) && !text.is_empty();
    !is_path && (is_header || looks_secret(name, text))
}

/// Whether an address has a user, or a secret in its query.
fn is_secret_address(address: &str) -> bool {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let (rest, _fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = place.split('/').next().unwrap_or_default();
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    let is_user = !user.is_empty() && !user.contains('$');
    is_user
        || query.split('&').any(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or(("", pair));
            !value.contains('$') && looks_secret(name, value)
        })
}

#[cfg(test)]
mod tests {
    use super::super::super::task::read_mcp_servers;
    use super::super::testing::read_field;
    use super::*;

    fn faults(server: &str) -> Vec<(String, ErrorKind)> {
        let read = |field: &Field<'_>| reject(field, &read_mcp_servers(field, &mut Vec::new()));
        read_field(&format!("[{{name: a, {server}}}]"), read).1
    }

    #[test]
    fn secret_in_address_or_argument_of_a_server_is_refused() {
        for server in [
            "url: 'https://user:hunter2@h/mcp'",
            "url: 'https://hunter2@h/mcp'",
            "transport: http, url: 'https://h/sse?token=hunter2'",
            "url: 'https://h/sse?a=b&apiKey=hunter2#x'",
            "transport: stdio, command: c, args: [--api-key, hunter2]",
            "transport: stdio, command: c, args: [-v, --token=hunter2]",
            "transport: stdio, command: c, args: [-e, API_TOKEN=hunter2]",
            "transport: stdio, command: c, args: [--header, 'X-Api-Key: hunter2']",
            "transport: stdio, command: c, args: [--header, 'Authorization: Bearer hunter2']",
            "transport: stdio, command: c, args: [sk-proj-abcdefgh]",
            "transport: stdio, command: c, args: ['https://h/mcp?api_key=hunter2']",
        ] {
            let expected = [("x".to_owned(), ErrorKind::BadValue)];
            assert_eq!(faults(server), expected, "{server}");
        }
    }

    #[test]
    fn server_without_secret_or_with_a_variable_is_accepted() {
        for server in [
            "url: 'https://h:8000/mcp?version=2&max_tokens=1000'",
            "url: 'https://h/@scope/mcp'",
            "url: 'https://h/sse?token=${TOKEN}'",
            "transport: stdio, command: npx, args: [-y, '@scope/server-files@1.2.0', /data]",
            "transport: stdio, command: c, args: [--api-key, '${API_KEY}', --key, ./key.pem]",
            "transport: stdio, command: docker, args: [run, -e, API_TOKEN, 'org/image:1.0']",
            "transport: stdio, command: c, args: [--header, 'Authorization: Bearer ${TOKEN}']",
        ] {
            let faults = faults(server);
            assert!(faults.is_empty(), "{server}: {faults:?}");
        }
    }
}
