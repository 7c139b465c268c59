//! Proxies of what runs in environments, as variables: those of a job or a task, and those of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::template::Template;

use super::proxy_key::ProxyKey;

/// Variables with proxies. Programs read them in this spelling and in lower case.
const PROXIES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY"];

/// The variable with hosts that are reached without one, in both spellings.
pub(super) const EXEMPT: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// The text that stands for all hosts there.
const EVERY_HOST: &str = "*";

/// Hosts that no proxy reaches.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The proxies of an image build, by the names of its predefined arguments: builders give them to its
/// commands, and write them to no instruction and no history. What the commands fetch through them, or
/// write, is in the image. Its debug output has no values.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BuildProxies(BTreeMap<String, String>);

impl BuildProxies {
    /// Those among the variables of an environment.
    pub fn of(env: &BTreeMap<String, String>) -> Self {
        let found =
            variable_names().filter_map(|name| env.get(&name).cloned().map(|value| (name, value)));
        Self(found.collect())
    }

    /// Digest of their names and values, which does not show them; `None` if there are none. That of
    /// proxies with logins depends on the key, so that no one can try passwords.
    pub fn digest(&self, key: &ProxyKey) -> Option<Digest> {
        let mut hasher = DigestHasher::default();
        if !logins(&self.0).is_empty() {
            hasher.update_part(b"keyed");
            hasher.update_part(key.bytes());
        }
        for (name, value) in &self.0 {
            hasher.update_part(name.as_bytes());
            hasher.update_part(value.as_bytes());
        }
        (!self.0.is_empty()).then(|| hasher.finish())
    }

    /// Adds them to the arguments of a build, which win.
    #[must_use]
    pub fn with(&self, args: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut all = self.0.clone();
        all.extend(args.clone());
        all
    }

    /// A name of a host that differs for each set of proxies; `None` without any. BuildKit leaves proxies
    /// out of the keys of its layers, so that the layers of one set would be used for another, but not the
    /// names of hosts.
    pub fn layer_host(&self, key: &ProxyKey) -> Option<String> {
        self.digest(key).map(|digest| format!("proxies-{}.invalid", &digest.hex()[..32]))
    }

    /// The same, where further hosts are reached without a proxy.
    #[must_use]
    pub fn beside(&self, hosts: &[&str]) -> Self {
        let mut env = self.0.clone();
        if proxy_names().any(|name| env.contains_key(&name)) {
            exempt_hosts(&mut env, hosts.iter().map(|host| (*host).to_owned()));
        }
        Self(env)
    }

    /// The same for a builder that fetches images itself: it reaches the hosts of `addresses` without a
    /// proxy.
    pub fn of_builder<'a>(
        &self,
        addresses: impl IntoIterator<Item = &'a str>,
    ) -> BTreeMap<String, String> {
        let mut env = self.0.clone();
        exempt(&mut env, addresses);
        env
    }
}

impl fmt::Debug for BuildProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The proxies that this host gives to environments, by name in capitals. They may have logins, so
/// that they are in no document and its debug output has no values.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HostProxies(BTreeMap<&'static str, String>);

impl HostProxies {
    /// These proxies. Empty ones are none.
    pub fn new(proxies: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        Self(proxies.into_iter().filter(|(_, value)| !value.is_empty()).collect())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those without a user or a password.
    #[must_use]
    pub fn without_logins(&self) -> Self {
        let open = self.0.iter().filter(|(_, value)| login(value).is_none());
        Self(open.map(|(name, value)| (*name, value.clone())).collect())
    }

    /// Adds them to the variables of an environment, except those that it has in one of the spellings.
    pub fn add_to(&self, env: &mut BTreeMap<String, Template>) {
        for (name, value) in &self.0 {
            let spellings = [(*name).to_owned(), name.to_lowercase()];
            if spellings.iter().any(|spelling| env.contains_key(spelling)) {
                continue;
            }
            env.extend(spellings.map(|spelling| (spelling, Template::literal(value))));
        }
    }
}

impl fmt::Debug for HostProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The variables with proxies, in both spellings.
fn proxy_names() -> impl Iterator<Item = String> {
    PROXIES.into_iter().flat_map(|name| [name.to_owned(), name.to_lowercase()])
}

/// Those, and the variables with hosts that are reached without a proxy.
pub fn variable_names() -> impl Iterator<Item = String> {
    proxy_names().chain(EXEMPT.map(str::to_owned))
}

/// The logins in the proxies of an environment, each with the name of its variable: secrets.
pub fn logins(env: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let found = proxy_names().filter_map(|name| {
        let login = login(env.get(&name)?)?.to_owned();
        Some((name, login))
    });
    let mut logins: Vec<_> = found.collect();
    // Both spellings have the same.
    logins.dedup_by(|one, other| one.1 == other.1);
    logins
}

/// The user, and the password after a colon, in the address of a proxy. Each may be a token alone, which
/// programs print without the colon.
fn login(address: &str) -> Option<&str> {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let (login, _) = rest.rsplit_once('@')?;
    Some(login.trim_matches(':')).filter(|login| !login.is_empty())
}

/// Exempts the loopback and the hosts of `addresses` from the proxies of a script, if it has any: the
/// worker's own services are not behind them.
pub fn exempt<'a>(
    env: &mut BTreeMap<String, String>,
    addresses: impl IntoIterator<Item = &'a str>,
) {
    if proxy_names().any(|name| env.contains_key(&name)) {
        exempt_hosts(env, addresses.into_iter().filter_map(host));
    }
}

/// Exempts the loopback and these hosts from the proxies of a process.
pub(super) fn exempt_hosts(
    env: &mut BTreeMap<String, String>,
    more: impl IntoIterator<Item = String>,
) {
    let given = EXEMPT.iter().filter_map(|name| env.get(*name)).flat_map(|hosts| hosts.split(','));
    let mut hosts: Vec<String> = given.map(|host| host.trim().to_owned()).collect();
    hosts.retain(|host| !host.is_empty());
    if hosts.iter().any(|host| host == EVERY_HOST) {
        // Programs take it for all hosts only if it is alone.
        hosts = vec![EVERY_HOST.to_owned()];
    } else {
        hosts.extend(LOOPBACK.map(str::to_owned));
        hosts.extend(more);
    }
    let mut known = BTreeSet::new();
    hosts.retain(|host| known.insert(host.clone()));
    for name in EXEMPT {
        env.insert(name.to_owned(), hosts.join(","));
    }
}

/// The host of an address with a scheme.
fn host(address: &str) -> Option<String> {
    let (_, rest) = address.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let address = authority.rsplit_once('@').map_or(authority, |(_, address)| address);
    let host = match address.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?.0,
        None => address.split_once(':').map_or(address, |(host, _)| host),
    };
    (!host.is_empty()).then(|| host.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
        let variables = variables.iter();
        variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn build_gets_proxies_of_environment_only_and_shows_no_value() {
        let all = env(&[("HTTPS_PROXY", "http://u:secret@p:1"), ("no_proxy", "a"), ("A", "b")]);
        let proxies = BuildProxies::of(&all);
        assert_eq!(format!("{proxies:?}"), r#"{"HTTPS_PROXY", "no_proxy"}"#);
        let of_builder = proxies.of_builder(["http://registry.corp:5000/x"]);
        let exempt = "a,localhost,127.0.0.1,::1,registry.corp";
        assert_eq!(of_builder["NO_PROXY"], exempt);
        let beside = proxies.beside(&[".svc"]);
        assert_eq!(beside.0["no_proxy"], "a,localhost,127.0.0.1,::1,.svc");
        let none = BuildProxies::of(&env(&[("A", "b")]));
        assert_eq!(none.layer_host(&ProxyKey::default()), None);
        assert_eq!(none.beside(&[".svc"]), none);
        let args = proxies.with(&env(&[("no_proxy", "of the build"), ("X", "1")]));
        let expected =
            [("HTTPS_PROXY", "http://u:secret@p:1"), ("X", "1"), ("no_proxy", "of the build")];
        assert_eq!(args, env(&expected));
    }

    #[test]
    fn digest_of_proxies_with_logins_depends_on_a_secret_key() {
        let digest = |proxies: &[(&str, &str)], key: &ProxyKey| {
            BuildProxies::of(&env(proxies)).digest(key).expect("a digest")
        };
        let (key, other_key) = (ProxyKey::default(), ProxyKey::default());
        let plain = [("HTTP_PROXY", "http://p:1"), ("NO_PROXY", "a@b")];
        assert_eq!(digest(&plain, &key), digest(&plain, &other_key));
        for value in ["http://u:pw@p:1", "http://u@p:1", "u:pw@p:1"] {
            let (one, other) = ([("https_proxy", value)], [("https_proxy", "http://u:x@p:1")]);
            assert_eq!(digest(&one, &key), digest(&one, &key), "{value}");
            assert_ne!(digest(&one, &key), digest(&one, &other_key), "{value}");
            assert_ne!(digest(&one, &key), digest(&other, &key), "{value}");
        }
    }

    #[test]
    fn gateway_and_loopback_are_exempt_from_proxies() {
        let gateway =
            ["http://10.0.0.7:4000/v1", "a key", "http://[fd00::1]:80", "http://10.0.0.7/b"];
        let mut plain = env(&[("A", "b")]);
        exempt(&mut plain, gateway);
        assert_eq!(plain, env(&[("A", "b")]), "a script without a proxy");
        let mut proxied =
            env(&[("http_proxy", "http://p:1"), ("no_proxy", "x.example, localhost")]);
        exempt(&mut proxied, gateway);
        let hosts = "x.example,localhost,127.0.0.1,::1,10.0.0.7,fd00::1";
        assert_eq!((&*proxied["NO_PROXY"], &*proxied["no_proxy"]), (hosts, hosts));
    }

    #[test]
    fn hosts_of_both_spellings_stay_exempt_from_proxies() {
        let variables = [("HTTP_PROXY", "http://p:1"), ("NO_PROXY", "a,b"), ("no_proxy", "b,c")];
        let mut proxied = env(&variables);
        exempt(&mut proxied, []);
        let hosts = "a,b,c,localhost,127.0.0.1,::1";
        assert_eq!((&*proxied["NO_PROXY"], &*proxied["no_proxy"]), (hosts, hosts));
        let mut unused = env(&[("HTTP_PROXY", "http://p:1"), ("no_proxy", "a, *")]);
        exempt(&mut unused, ["http://gateway:1"]);
        assert_eq!((&*unused["NO_PROXY"], &*unused["no_proxy"]), ("*", "*"), "all stay exempt");
    }

    #[test]
    fn host_gives_proxies_of_the_kinds_that_an_environment_does_not_name() {
        let proxies =
            [("HTTP_PROXY", "http://u:p$w@h:1"), ("HTTPS_PROXY", "http://h:1"), ("FTP_PROXY", "")];
        let proxies = HostProxies::new(proxies.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(format!("{proxies:?}"), r#"{"HTTPS_PROXY", "HTTP_PROXY"}"#);
        let named = [("https_proxy".to_owned(), Template::new("http://of-job:2"))];
        let mut env = BTreeMap::from(named);
        proxies.add_to(&mut env);
        let value =
            |name: &str| env.get(name).map(|value| value.expand(|_| None).expect("no variable"));
        assert_eq!(value("https_proxy").as_deref(), Some("http://of-job:2"));
        assert_eq!(value("HTTPS_PROXY"), None);
        for name in ["HTTP_PROXY", "http_proxy"] {
            assert_eq!(value(name).as_deref(), Some("http://u:p$w@h:1"), "{name}");
        }
        let open = HostProxies::new([("HTTPS_PROXY", "http://h:1".to_owned())]);
        assert_eq!(proxies.without_logins(), open);
        let of_token = ["http://token@h:1", "http://token:@h:1", "http://:token@h:1"];
        for value in of_token {
            let proxies = HostProxies::new([("HTTP_PROXY", value.to_owned())]);
            assert!(proxies.without_logins().is_empty(), "{value}");
        }
        assert!(HostProxies::default().is_empty() && !open.is_empty());
    }

    #[test]
    fn logins_of_proxies_are_found_with_the_names_of_their_variables() {
        let env = env(&[
            ("HTTP_PROXY", "http://me:p/w@h:1/"),
            ("http_proxy", "http://me:p/w@h:1/"),
            ("https_proxy", "http://h:1"),
            ("FTP_PROXY", "http://token-of-user:@h:1"),
            ("ftp_proxy", "http://:token-of-user@h:1"),
            ("ALL_PROXY", "token@h"),
            ("NO_PROXY", "a@b"),
            ("OTHER", "http://x:y@z"),
        ]);
        let expected =
            [("HTTP_PROXY", "me:p/w"), ("FTP_PROXY", "token-of-user"), ("ALL_PROXY", "token")];
        let expected = expected.map(|(name, login)| (name.to_owned(), login.to_owned()));
        assert_eq!(logins(&env), expected);
    }
}
