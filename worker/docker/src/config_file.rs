//! The proxies in Docker's `config.json`, which its user gives to containers and builds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Once;

use rollout_base::regular_file;
use rollout_base::shown_path::shown;
use rollout_environment::HostProxies;
use rollout_protocol::limits::CONFIG_FILE_BYTES;
use serde::Deserialize;

/// Variable with the directory of the file.
const VARIABLE: &str = "DOCKER_CONFIG";

/// The entry for engines without one of their own.
const DEFAULT: &str = "default";

/// The parts of the file that are used.
#[derive(Deserialize)]
struct ConfigFile {
    #[serde(default)]
    proxies: Option<BTreeMap<String, ProxyEntry>>,
}

/// The proxies of an engine.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProxyEntry {
    http_proxy: Option<String>,
    https_proxy: Option<String>,
    ftp_proxy: Option<String>,
    all_proxy: Option<String>,
    no_proxy: Option<String>,
}

/// The directory of the file: `named`, else the value of `DOCKER_CONFIG`, else `~/.docker`.
pub(super) fn directory(named: Option<PathBuf>) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    named
        .or_else(|| set(VARIABLE).map(PathBuf::from))
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".docker")))
}

/// The proxies for the engine at `host`. Without a file there are none; one that cannot be read is
/// reported and left out, as the program `docker` does.
pub(super) fn proxies(directory: &Path, host: &str) -> HostProxies {
    let path = directory.join("config.json");
    let text = match regular_file::read(&path, CONFIG_FILE_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return HostProxies::default();
        }
        Err(error) => {
            tracing::warn!("cannot read the proxies in {}: {error}", shown(&path));
            return HostProxies::default();
        }
    };
    match serde_json::from_slice::<ConfigFile>(&text) {
        Ok(file) => of_engine(file.proxies.unwrap_or_default(), host),
        Err(error) => {
            // Its text may have a value, and so a password.
            let (line, column) = (error.line(), error.column());
            tracing::warn!(
                "cannot read the proxies in {}: line {line}, column {column}: not of the expected form",
                shown(&path)
            );
            HostProxies::default()
        }
    }
}

/// The entry of an engine by its address, or that of all others.
fn of_engine(mut entries: BTreeMap<String, ProxyEntry>, host: &str) -> HostProxies {
    let entry = entries.remove(host).or_else(|| entries.remove(DEFAULT)).unwrap_or_default();
    let proxies = [
        ("HTTP_PROXY", entry.http_proxy),
        ("HTTPS_PROXY", entry.https_proxy),
        ("FTP_PROXY", entry.ftp_proxy),
        ("ALL_PROXY", entry.all_proxy),
        ("NO_PROXY", entry.no_proxy),
    ];
    HostProxies::new(proxies.into_iter().filter_map(|(name, value)| Some((name, value?))))
}

/// The proxies for environments of users of a server: a login is that of the server's user.
pub(super) fn for_users_of_server(proxies: &HostProxies) -> HostProxies {
    static NOTICE: Once = Once::new();
    let open = proxies.without_logins();
    if open != *proxies {
        NOTICE.call_once(|| {
            tracing::warn!(
                "proxies with a login in Docker's config.json are not for users of a server: a job \
                 names its own with `environment.proxy`"
            );
        });
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, host: &str) -> HostProxies {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("config.json"), text).expect("written");
        proxies(directory.path(), host)
    }

    fn expected(values: &[(&'static str, &str)]) -> HostProxies {
        HostProxies::new(values.iter().map(|(name, value)| (*name, (*value).to_owned())))
    }

    #[test]
    fn entry_of_engine_wins_over_default_as_a_whole() {
        let text = r#"{"auths": {"r": {"auth": "eA=="}, "s": {"identitytoken": "t"}, "u": {}},
            "credsStore": "pass", "credHelpers": {"v": "w"}, "proxies": {
            "default": {"httpProxy": "http://u:p@d:1", "httpsProxy": "http://d:2",
                "noProxy": "*.corp", "ftpProxy": "http://d:3", "allProxy": "socks5://d:4"},
            "tcp://engine:2375": {"httpsProxy": "http://e:1", "httpProxy": ""}}}"#;
        let default = [
            ("HTTP_PROXY", "http://u:p@d:1"),
            ("HTTPS_PROXY", "http://d:2"),
            ("NO_PROXY", "*.corp"),
            ("FTP_PROXY", "http://d:3"),
            ("ALL_PROXY", "socks5://d:4"),
        ];
        assert_eq!(read(text, "unix:///var/run/docker.sock"), expected(&default));
        let own = expected(&[("HTTPS_PROXY", "http://e:1")]);
        assert_eq!(read(text, "tcp://engine:2375"), own);
        let for_users = for_users_of_server(&read(text, "unix:///x"));
        assert_eq!(for_users, expected(&default[1..]));
    }

    #[test]
    fn file_without_proxies_or_in_another_form_gives_none() {
        for text in
            ["{}", r#"{"proxies": null}"#, r#"{"proxies": {"x": {}}}"#, "{", r#"{"proxies": 1}"#]
        {
            assert!(read(text, "unix:///x").is_empty(), "{text}");
        }
        let nowhere = tempfile::tempdir().expect("a directory");
        assert!(proxies(nowhere.path(), "unix:///x").is_empty());
    }
}
