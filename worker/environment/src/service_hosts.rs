//! Names of the services of an environment, and of hosts that its task adds: no proxy leads to them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::proxies;
use crate::egress::is_public;

/// The word for the address of the host of an engine.
const HOST_GATEWAY: &str = "host-gateway";

/// The names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceHosts(BTreeSet<String>);

impl ServiceHosts {
    /// These names and addresses. Other texts would mean more in a list of hosts, such as `*` and `.com`.
    pub fn new(hosts: impl IntoIterator<Item = String>) -> Self {
        let is_host = |host: &String| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
            !host.is_empty() && !host.starts_with('.') && host.chars().all(is_part)
        };
        Self(hosts.into_iter().filter(is_host).collect())
    }

    /// Exempts them from the proxies of a process with these variables. Hosts that are exempt stay so. A
    /// list without a proxy takes the place of another one, so that it has the names, too.
    pub fn exempt(&self, env: &mut BTreeMap<String, String>) {
        let is_proxied = proxies::variable_names().any(|name| env.contains_key(&name));
        if is_proxied && !self.0.is_empty() {
            proxies::exempt_hosts(env, self.0.iter().cloned());
        }
    }

    /// The same for a command in a container with these lists: those that the command does not name are
    /// the container's, and their hosts stay exempt.
    pub fn exempt_command(
        &self,
        env: &mut BTreeMap<String, String>,
        of_container: &BTreeMap<String, String>,
    ) {
        let is_proxied = proxies::variable_names().any(|name| env.contains_key(&name));
        if !is_proxied || self.0.is_empty() {
            return;
        }
        for name in proxies::EXEMPT {
            if let Some(list) = of_container.get(name) {
                env.entry(name.to_owned()).or_insert_with(|| list.clone());
            }
        }
        self.exempt(env);
    }
}

/// The lists of hosts among the variables of a container.
pub fn lists_of<'a>(
    variables: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<String, String> {
    let lists = variables.into_iter().filter(|(name, _)| proxies::EXEMPT.contains(name));
    lists.map(|(name, list)| (name.to_owned(), list.to_owned())).collect()
}

/// Whether a host that a file adds has an address of this host or a private network. A proxy may be the only
/// way to others, whose addresses a file may pin.
pub fn is_inner(address: &str) -> bool {
    let plain = address.trim();
    let plain = plain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(plain);
    plain == HOST_GATEWAY || plain.parse::<IpAddr>().is_ok_and(|address| !is_public(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
        let variables = variables.iter();
        variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn services_are_exempt_from_proxies_in_both_spellings() {
        let names = ["db", "*", "", ".com", "a,b", "web.test", "x y", "fd00::2"];
        let hosts = ServiceHosts::new(names.map(str::to_owned));
        let own = "localhost,127.0.0.1,::1,db,fd00::2,web.test";
        for (given, expected) in [
            (env(&[("HTTP_PROXY", "http://p:1")]), own.to_owned()),
            (
                env(&[("https_proxy", "http://p:1"), ("no_proxy", "a, db")]),
                "a,db,localhost,127.0.0.1,::1,fd00::2,web.test".to_owned(),
            ),
            (env(&[("NO_PROXY", "a"), ("no_proxy", "b")]), format!("a,b,{own}")),
            (env(&[("ALL_PROXY", "socks5://p:1"), ("NO_PROXY", "*")]), "*".to_owned()),
        ] {
            let mut found = given.clone();
            hosts.exempt(&mut found);
            let lists = (found["NO_PROXY"].as_str(), found["no_proxy"].as_str());
            assert_eq!(lists, (&*expected, &*expected), "{given:?}");
            found.retain(|name, _| given.contains_key(name));
            assert_eq!(found.len(), given.len(), "{given:?}");
        }
    }

    #[test]
    fn lists_of_a_container_stay_in_its_commands_that_name_a_proxy() {
        let hosts = ServiceHosts::new(["db".to_owned()]);
        let lists = lists_of([("NO_PROXY", "corp"), ("A", "b"), ("http_proxy", "http://q:1")]);
        assert_eq!(lists, env(&[("NO_PROXY", "corp")]));
        let own = "localhost,127.0.0.1,::1,db";
        for (given, list) in [
            (env(&[("HTTP_PROXY", "http://p:1")]), format!("corp,{own}")),
            (env(&[("HTTP_PROXY", "http://p:1"), ("no_proxy", "a")]), format!("corp,a,{own}")),
            (env(&[("HTTP_PROXY", "http://p:1"), ("NO_PROXY", "a")]), format!("a,{own}")),
        ] {
            let mut found = given.clone();
            hosts.exempt_command(&mut found, &lists);
            assert_eq!((&found["NO_PROXY"], &found["no_proxy"]), (&list, &list), "{given:?}");
        }
        let plain = env(&[("A", "b")]);
        let mut found = plain.clone();
        hosts.exempt_command(&mut found, &lists);
        assert_eq!(found, plain, "the container's own variables hold");
    }

    #[test]
    fn added_host_is_inner_by_its_address() {
        for inner in ["host-gateway", "127.0.0.1", "10.0.0.9", "fd00::2", "[fd00::2]", "[::1]"] {
            assert!(is_inner(inner), "{inner}");
        }
        for other in ["151.101.0.223", "2606:4700::1111", "[2606:4700::1111]", "", "a.test"] {
            assert!(!is_inner(other), "{other}");
        }
    }

    #[test]
    fn process_without_proxies_and_environment_without_services_stay() {
        let plain = env(&[("A", "b")]);
        let mut found = plain.clone();
        ServiceHosts::new(["db".to_owned()]).exempt(&mut found);
        assert_eq!(found, plain);
        let proxied = env(&[("HTTP_PROXY", "http://p:1")]);
        let mut found = proxied.clone();
        ServiceHosts::default().exempt(&mut found);
        assert_eq!(found, proxied);
    }
}
