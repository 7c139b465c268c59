//! Proxies that a job gives to its environments, as variables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rollout_protocol::digest::{Digest, DigestHasher};

/// Variables with proxies, and with hosts that are reached without one, in both spellings.
const VARIABLES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];
const EXEMPT: [&str; 2] = ["NO_PROXY", "no_proxy"];

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
        let names = VARIABLES.into_iter().chain(EXEMPT);
        let found = names.filter_map(|name| Some((name.to_owned(), env.get(name)?.clone())));
        Self(found.collect())
    }

    /// Digest of their names and values, which does not show them; `None` if there are none.
    pub fn digest(&self) -> Option<Digest> {
        let mut hasher = DigestHasher::default();
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
}

impl fmt::Debug for BuildProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Exempts the loopback and the hosts of `addresses` from the proxies of a script, if it has any: the
/// worker's own services are not behind them.
pub(crate) fn exempt<'a>(
    env: &mut BTreeMap<String, String>,
    addresses: impl IntoIterator<Item = &'a str>,
) {
    if !VARIABLES.iter().any(|name| env.contains_key(*name)) {
        return;
    }
    let given = EXEMPT.iter().filter_map(|name| env.get(*name)).flat_map(|hosts| hosts.split(','));
    let mut hosts: Vec<String> = given.map(|host| host.trim().to_owned()).collect();
    hosts.retain(|host| !host.is_empty());
    hosts.extend(LOOPBACK.map(str::to_owned));
    hosts.extend(addresses.into_iter().filter_map(host));
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
        let args = proxies.with(&env(&[("no_proxy", "of the build"), ("X", "1")]));
        let expected =
            [("HTTPS_PROXY", "http://u:secret@p:1"), ("X", "1"), ("no_proxy", "of the build")];
        assert_eq!(args, env(&expected));
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
    }
}
