//! The file with which a server tells shells of its user its address and its token.

use std::path::Path;

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

/// The hint after a refused token: the command with which a shell gets that of the server at `url`.
pub(super) fn hint(url: &str) -> String {
    let state = StateDir::for_user(|name| std::env::var_os(name));
    hint_in(state.as_ref().map(StateDir::root), url)
}

fn hint_in(state: Option<&Path>, url: &str) -> String {
    let of_directory = format!("`. DIR/{CLIENT_FILE}` with `--dir DIR`");
    let files = state.map(|state| SERVERS.map(|name| state.join(name).join(CLIENT_FILE)));
    let own = files.iter().flatten().find(|file| has_address(file, url));
    if let Some(file) = own {
        return format!("the server at this address wrote its token for shells: `{}`", read(file));
    }
    let known = files.iter().flatten().zip(SERVERS);
    let known = known.map(|(file, name)| format!("`{}` for `rollout {name}`, ", read(file)));
    format!(
        "a server without `--tokens` writes its token for shells: {}{of_directory}",
        known.collect::<String>()
    )
}

/// Whether the file is that of the server at an address.
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

    #[test]
    fn refused_token_leads_to_file_of_the_server_at_its_address() {
        let state = tempfile::tempdir().expect("a directory");
        let root = state.path().join("it's");
        let file = root.join("up").join(CLIENT_FILE);
        std::fs::create_dir_all(root.join("up")).expect("made");
        std::fs::write(&file, format!("{}\nexport X=1\n", address_line("http://h:1")))
            .expect("written");
        let quoted = format!("{}/it'\\''s", state.path().display());
        assert_eq!(
            hint_in(Some(&root), "http://h:1"),
            format!(
                "the server at this address wrote its token for shells: `. '{quoted}/up/client.env'`"
            )
        );
        assert_eq!(
            hint_in(Some(Path::new("/s")), "http://h:12"),
            "a server without `--tokens` writes its token for shells: `. /s/up/client.env` for \
             `rollout up`, `. /s/serve/client.env` for `rollout serve`, `. DIR/client.env` with \
             `--dir DIR`"
        );
        assert_eq!(
            hint_in(None, "http://h:1"),
            "a server without `--tokens` writes its token for shells: `. DIR/client.env` with \
             `--dir DIR`"
        );
    }
}
