//! `proxy` of an environment: proxies of the network, as variables of its scripts and builds.

use std::collections::BTreeMap;

use rollout_protocol::template::{Template, is_variable_name};
use serde_json::{Map, Value, json};

use super::super::diagnostics::ErrorKind;
use super::super::reader::Field;
use super::variables::Variable;

keys! {
    /// The keys of `proxy`.
    pub(crate) table ProxyKeys {
        http: Value("URL"), "none", "Proxy for HTTP, such as http://${PROXY_LOGIN}@proxy:3128.";
        https: Value("URL"), "none", "Proxy for HTTPS.";
        no_proxy: Value("text"), "none", "Hosts that are reached without a proxy, with commas between.";
    }
}

/// Beginnings of the addresses of proxies. A variable may have the whole address.
const SCHEMES: [&str; 5] = ["http://", "https://", "socks5://", "socks5h://", "${"];

/// The proxies of an environment, by key. Equal ones may be written at several places.
#[derive(Debug, Clone, Default)]
pub struct ProxyConfig(BTreeMap<&'static str, Variable>);

impl PartialEq for ProxyConfig {
    fn eq(&self, other: &Self) -> bool {
        self.document() == other.document()
    }
}

impl ProxyConfig {
    /// The values, which may refer to variables.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Variable> {
        self.0.values()
    }

    /// The variables that programs read, in both spellings.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (String, &Variable)> {
        self.0.iter().flat_map(|(key, value)| {
            let name = match *key {
                "http" => "HTTP_PROXY",
                "https" => "HTTPS_PROXY",
                _ => "NO_PROXY",
            };
            [(name.to_lowercase(), value), (name.to_owned(), value)]
        })
    }

    /// Adds them to the variables of the same table, which win: a proxy that these name in one spelling has
    /// the same value in the other, as programs read either.
    pub(crate) fn add_to(&self, env: &mut BTreeMap<String, Variable>) {
        for (name, value) in self.variables() {
            if !env.contains_key(&name) {
                let spellings = [name.to_lowercase(), name.to_uppercase()];
                let named = spellings.iter().find_map(|spelling| env.get(spelling));
                let value = named.unwrap_or(value).clone();
                env.insert(name, value);
            }
        }
    }

    /// The table as in a file, unexpanded; null without a proxy.
    pub(crate) fn document(&self) -> Value {
        let values = self.0.iter().map(|(key, value)| ((*key).to_owned(), json!(value.template)));
        let table: Map<_, _> = values.collect();
        if table.is_empty() { Value::Null } else { Value::Object(table) }
    }
}

/// Reads the proxies of an environment.
pub(crate) fn read(field: &Field<'_>) -> ProxyConfig {
    let Some(mut fields) = field.mapping() else { return ProxyConfig::default() };
    let mut found = BTreeMap::new();
    for (key, is_url) in
        [(ProxyKeys::http, true), (ProxyKeys::https, true), (ProxyKeys::no_proxy, false)]
    {
        if let Some(value) = read_value(&fields.take(key), is_url) {
            found.insert(key.name, value);
        }
    }
    fields.finish();
    ProxyConfig(found)
}

/// Reads a proxy, or the hosts without one. A password would be in the plan and in every manifest.
fn read_value(field: &Field<'_>, is_url: bool) -> Option<Variable> {
    let template = Template::new(field.non_empty_string()?);
    let text = template.as_str();
    if let Err(error) = template.check() {
        let expected = "text with `${NAME}` (`$$` is a dollar)";
        field.reject(ErrorKind::BadValue, error.to_string(), expected);
        return None;
    }
    if is_url && !SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
        let expected = "a URL such as http://proxy:3128";
        field.reject(ErrorKind::BadValue, "text without a scheme", expected);
        return None;
    }
    if is_url && has_written_login(text) {
        let expected = "a variable with user and password: http://${PROXY_LOGIN}@proxy:3128";
        field.reject(ErrorKind::BadValue, "a login that is written out", expected);
        return None;
    }
    Some(Variable { template, location: field.location() })
}

/// Whether the login in a URL is more than one variable without a default.
fn has_written_login(url: &str) -> bool {
    let Some((before, _)) = url.rsplit_once('@') else { return false };
    let login = before.split_once("://").map_or(before, |(_, login)| login);
    let name = login.strip_prefix("${").and_then(|login| login.strip_suffix('}'));
    !name.is_some_and(is_variable_name)
}

#[cfg(test)]
mod tests {
    use super::super::testing::read_field;
    use super::*;

    fn faults(text: &str) -> Vec<(String, ErrorKind)> {
        read_field(text, read).1
    }

    #[test]
    fn proxy_is_a_variable_in_both_spellings_and_a_key_of_the_document() {
        let (proxies, found, _) = read_field("{https: 'http://${LOGIN}@p:1', no_proxy: a}", read);
        assert_eq!(found, []);
        let variables = proxies.variables();
        let variables: BTreeMap<_, _> =
            variables.map(|(name, value)| (name, value.template.as_str().to_owned())).collect();
        let expected = [
            ("HTTPS_PROXY", "http://${LOGIN}@p:1"),
            ("NO_PROXY", "a"),
            ("https_proxy", "http://${LOGIN}@p:1"),
            ("no_proxy", "a"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables, BTreeMap::from(expected));
        let document = json!({"https": "http://${LOGIN}@p:1", "no_proxy": "a"});
        assert_eq!(proxies.document(), document);
        assert_eq!(read_field("{}", read).0.document(), Value::Null);
    }

    #[test]
    fn proxy_with_login_that_is_written_out_or_without_scheme_is_refused_without_showing_it() {
        for value in [
            "http://${L:-me:pw}@p:1",
            "http://me:pw@p:1",
            "http://me:${PW}@p:1",
            "p:3128",
            "http://${X",
            "ftp://p",
        ] {
            let refused = [("x.http".to_owned(), ErrorKind::BadValue)];
            assert_eq!(faults(&format!("{{http: '{value}'}}")), refused, "{value}");
        }
        for value in ["http://p:3128", "${PROXY}", "https://${LOGIN}@p:1"] {
            assert_eq!(faults(&format!("{{http: '{value}'}}")), [], "{value}");
        }
    }
}
