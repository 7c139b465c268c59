//! `model` of an agent: its provider, and the model server that its calls go to.

use rollout_protocol::spec::agent::AgentModel;
use rollout_protocol::spec::gateway::{ModelDialect, UpstreamSpec};
use rollout_protocol::template::Template;

use super::super::catalogue::{find_provider, provider_names};
use super::super::diagnostics::{ErrorKind, nearest};
use super::super::reader::{Field, Fields};
use super::agents::AgentKeys;
use super::gateway::{self, GatewayConfig};
use super::variables::Variable;

const EXPECTED_MODEL: &str = "PROVIDER/MODEL, such as anthropic/claude-sonnet-4-5";

/// The fields of an agent's model.
pub(super) struct ModelFields<'a> {
    model: Field<'a>,
    base_url: Field<'a>,
    key_env: Field<'a>,
    dialect: Field<'a>,
}

/// The model of an agent.
pub(super) struct AgentModelChoice {
    pub(super) model: AgentModel,
    dialect: ModelDialect,
}

impl AgentModelChoice {
    /// The variables of the agent's scripts.
    pub(super) fn variables(&self) -> impl Iterator<Item = (String, Template)> + use<> {
        let variables = [
            ("ROLLOUT_MODEL", self.model.name.clone()),
            ("ROLLOUT_MODEL_PROVIDER", self.model.provider.clone()),
            ("ROLLOUT_MODEL_DIALECT", self.dialect.to_string()),
        ];
        variables.into_iter().map(|(name, value)| (name.to_owned(), Template::literal(&value)))
    }
}

impl<'a> ModelFields<'a> {
    pub(super) fn take(fields: &mut Fields<'a>) -> Self {
        Self {
            model: fields.take(AgentKeys::model),
            base_url: fields.take(AgentKeys::base_url),
            key_env: fields.take(AgentKeys::key_env),
            dialect: fields.take(AgentKeys::dialect),
        }
    }

    /// Reads the model for an agent that speaks `dialects`, and adds its server to the gateway.
    /// `None` if there is an error, which is recorded.
    pub(super) fn read(
        &self,
        item: &Field<'_>,
        dialects: &[ModelDialect],
        is_needed: bool,
        gateway: &mut Option<GatewayConfig>,
    ) -> Option<Option<AgentModelChoice>> {
        if !self.model.is_present() {
            for field in [&self.base_url, &self.key_env, &self.dialect] {
                if field.is_present() {
                    field.reject(ErrorKind::Conflict, "a model server without a model", "`model`");
                }
            }
            if is_needed {
                let expected = "`model`, which this agent calls";
                let hint = "add `model: PROVIDER/MODEL`, or -m PROVIDER/MODEL";
                item.reject_with_hint(ErrorKind::MissingKey, "no model", expected, hint);
            }
            return (!is_needed).then_some(None);
        }
        if dialects.is_empty() {
            self.model.reject(ErrorKind::Conflict, "a model", "none: this agent calls no model");
            return None;
        }
        let text = self.model.string()?;
        let (provider, name) = text.split_once('/').unwrap_or_default();
        let is_name = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
        if !is_name(name) || rollout_protocol::name::check(provider).is_err() {
            self.model.bad_value(EXPECTED_MODEL);
            return None;
        }
        let server = self.server(provider, dialects, gateway)?;
        let (name, provider) = (name.to_owned(), provider.to_owned());
        let model = AgentModel { provider, name, upstream: server.0 };
        Some(Some(AgentModelChoice { model, dialect: server.1 }))
    }

    /// Name and dialect of the model server, added to the gateway if it is not there.
    fn server(
        &self,
        provider: &str,
        dialects: &[ModelDialect],
        gateway: &mut Option<GatewayConfig>,
    ) -> Option<(String, ModelDialect)> {
        let present = gateway.iter().flat_map(|gateway| &gateway.spec.upstreams);
        let present: Vec<UpstreamSpec> = present.cloned().collect();
        let (url, key, dialect) = if self.base_url.is_present() {
            self.own_server(dialects)?
        } else {
            for field in [&self.key_env, &self.dialect] {
                if field.is_present() {
                    field.reject(ErrorKind::Conflict, "no address of a server", "`base_url`");
                }
            }
            let configured =
                present.iter().filter(|upstream| gateway::is_of_provider(upstream, provider));
            let configured: Vec<_> = configured.collect();
            if let [first, ..] = configured[..] {
                let spoken = configured.iter().find(|one| dialects.contains(&one.dialect));
                if let Some(spoken) = spoken {
                    return Some((spoken.name.clone(), spoken.dialect));
                }
                self.reject_dialect(provider, &[first.dialect], dialects);
                return None;
            }
            self.provider_server(provider, dialects)?
        };
        let same = |upstream: &&UpstreamSpec| {
            upstream.url == url
                && upstream.dialect == dialect
                && upstream.key == key.as_ref().map(|key| key.template.clone())
        };
        if let Some(same) = present.iter().find(same) {
            return Some((same.name.clone(), dialect));
        }
        let names = [provider.to_owned(), format!("{provider}-{dialect}")];
        let is_free = |name: &&String| present.iter().all(|upstream| upstream.name != **name);
        let Some(name) = names.iter().find(is_free) else {
            let found = format!("another server of `{provider}`");
            self.base_url.reject(ErrorKind::Conflict, found, "one server for each provider");
            return None;
        };
        let spec = UpstreamSpec::new(name, dialect, &url);
        let gateway = gateway.get_or_insert_default();
        let key_template = key.as_ref().map(|key| key.template.clone());
        gateway.spec.upstreams.push(UpstreamSpec { key: key_template, ..spec });
        gateway.keys.extend(key);
        Some((name.clone(), dialect))
    }

    fn own_server(
        &self,
        dialects: &[ModelDialect],
    ) -> Option<(String, Option<Variable>, ModelDialect)> {
        let url = gateway::read_address(&self.base_url)?;
        let key = gateway::read_key(&self.key_env);
        if self.key_env.is_present() && key.is_none() {
            return None;
        }
        let dialect = match self.dialect.is_present() {
            true => self.dialect.keyword(gateway::DIALECTS)?,
            false => dialects[0],
        };
        if !dialects.contains(&dialect) {
            self.reject_dialect("the server", &[dialect], dialects);
            return None;
        }
        Some((url, key, dialect))
    }

    fn provider_server(
        &self,
        provider: &str,
        dialects: &[ModelDialect],
    ) -> Option<(String, Option<Variable>, ModelDialect)> {
        let Some(known) = find_provider(provider) else {
            let near = nearest(provider, provider_names()).map(|near| format!("`{near}`?"));
            let other =
                "give its server as `base_url`, or as an upstream of `gateway` with its name";
            let hint =
                near.map_or(other.to_owned(), |near| format!("did you mean {near} Or {other}"));
            let names: Vec<_> = provider_names().collect();
            let expected = format!("one of {}", names.join(", "));
            let found = format!("the unknown provider `{provider}`");
            self.model.reject_with_hint(ErrorKind::BadValue, found, expected, hint);
            return None;
        };
        let Some(server) = known.server(dialects) else {
            let served: Vec<_> = known.servers.iter().map(|server| server.dialect).collect();
            self.reject_dialect(provider, &served, dialects);
            return None;
        };
        let template = Template::new(format!("${{{}}}", known.key_env));
        let key = Variable { template, location: self.model.location() };
        Some((server.url.clone(), Some(key), server.dialect))
    }

    fn reject_dialect(&self, who: &str, served: &[ModelDialect], spoken: &[ModelDialect]) {
        let list = |dialects: &[ModelDialect]| {
            dialects.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
        };
        let found = format!("{who}, which speaks {}", list(served));
        let expected = format!("a server that speaks {}, as this agent does", list(spoken));
        self.model.reject(ErrorKind::Conflict, found, expected);
    }
}
