//! The file with which a server tells shells of its user its address and its token.

use std::net::IpAddr;
use std::path::Path;

use ureq::http::Uri;

use super::output::quoted;
use crate::config::env_vars;
use crate::launch::host::StateDir;

/// Its name in the directory of a server.
pub(super) const CLIENT_FILE: &str = "client.env";

/// Commands that start a server, whose default directories in the user's state have these names.
const SERVERS: [&str; 2] = ["up", "serve"];

/// The line of the file with the address.
pub(super) fn address_line(url: &str) -> String {
    format!("export {}={url}", env_vars::API_URL.name)
}

/// The hint after a refused token: the commands with which a shell gets that of the server at `url`.
pub(super) fn hint(url: &str) -> String {
    let state = StateDir::for_user(|name| std::env::var_os(name));
    hint_in(state.as_ref().map(StateDir::root), url)
}

fn hint_in(state: Option<&Path>, url: &str) -> String {
    let files = state.map(|state| SERVERS.map(|name| (name, state.join(name).join(CLIENT_FILE))));
    let found: Vec<_> = files.into_iter().flatten().filter(|(_, file)| file.is_file()).collect();
    let named = found.iter().filter(|(_, file)| has_address(file, url));
    let named: Vec<_> = named.map(|(_, file)| format!("`{}`", read(file))).collect();
    if !named.is_empty() {
        let named = named.join(" or ");
        return format!("a server at this address wrote its token for shells: {named}");
    }
    // The token of a server of this host may not be sent to another host.
    if !is_of_this_host(url) {
        return format!(
            "a server without `--tokens` writes its token to `{CLIENT_FILE}` in its directory, on its \
             own host"
        );
    }
    let known = found.iter().map(|(name, file)| format!("`{}` for `rollout {name}`, ", read(file)));
    format!(
        "a server without `--tokens` writes its token for shells: {}`. DIR/{CLIENT_FILE}` with `--dir \
         DIR`",
        known.collect::<String>()
    )
}

/// Whether a URL is one of a server of this host, as far as the URL tells.
fn is_of_this_host(url: &str) -> bool {
    let uri = url.parse::<Uri>().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Whether the file is that of a server at an address. The server may have ended.
fn has_address(file: &Path, url: &str) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().any(|line| line == address_line(url))
}

/// The command with which a shell reads the file.
fn read(file: &Path) -> String {
    format!(". {}", quoted(&file.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the file of a server at an address.
    fn write(root: &Path, server: &str, url: &str) {
        std::fs::create_dir_all(root.join(server)).expect("made");
        let text = format!("{}\nexport X=secret\n", address_line(url));
        std::fs::write(root.join(server).join(CLIENT_FILE), text).expect("written");
    }

    #[test]
    fn refused_token_leads_to_files_of_servers_at_its_address() {
        let state = tempfile::tempdir().expect("a directory");
        let root = state.path().join("it's");
        write(&root, "up", "http://h:1");
        write(&root, "serve", "http://h:2");
        let quoted = format!("{}/it'\\''s", state.path().display());
        let wrote = "a server at this address wrote its token for shells:";
        assert_eq!(
            hint_in(Some(&root), "http://h:1"),
            format!("{wrote} `. '{quoted}/up/client.env'`")
        );
        write(&root, "serve", "http://h:1");
        assert_eq!(
            hint_in(Some(&root), "http://h:1"),
            format!("{wrote} `. '{quoted}/up/client.env'` or `. '{quoted}/serve/client.env'`")
        );
    }

    #[test]
    fn refused_token_of_this_host_leads_to_files_that_exist() {
        let state = tempfile::tempdir().expect("a directory");
        write(state.path(), "serve", "http://127.0.0.1:1");
        let (begin, end) = (
            "a server without `--tokens` writes its token for shells:",
            "`. DIR/client.env` with `--dir DIR`",
        );
        let file = format!("`. {}/serve/client.env` for `rollout serve`", state.path().display());
        for url in ["http://127.0.0.1:12", "http://[::1]:1", "https://LocalHost:1/base"] {
            assert_eq!(hint_in(Some(state.path()), url), format!("{begin} {file}, {end}"), "{url}");
            assert_eq!(hint_in(None, url), format!("{begin} {end}"), "{url}");
        }
    }

    #[test]
    fn refused_token_of_another_host_leads_to_no_file_of_this_one() {
        let state = tempfile::tempdir().expect("a directory");
        write(state.path(), "up", "http://127.0.0.1:1");
        for url in [
            "https://far.example.com",
            "http://127.0.0.1.example.com:1",
            "http://127.0.0.1@far.example.com:1",
            "http://10.0.0.1:1",
            "no url",
        ] {
            assert_eq!(
                hint_in(Some(state.path()), url),
                "a server without `--tokens` writes its token to `client.env` in its directory, on \
                 its own host",
                "{url}"
            );
        }
    }
}
