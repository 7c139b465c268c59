//! The model servers of an execution, and the choice among them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use rollout_protocol::spec::gateway::ModelDialect;

use super::route::OwnReply;
use super::server::ModelServer;

/// Longest part of a model's name in a message, characters.
const SHOWN_MODEL: usize = 200;

/// Characters that make a pattern match more than itself.
const WILDCARDS: [char; 4] = ['*', '?', '[', '\\'];

/// Servers in the order of the job.
#[derive(Debug)]
pub(super) struct Upstreams {
    servers: Vec<Arc<ModelServer>>,
    /// Their downtimes when the execution began.
    before: Vec<Duration>,
}

impl Upstreams {
    pub(super) fn new(servers: Vec<Arc<ModelServer>>) -> Self {
        let before = servers.iter().map(|server| server.downtime()).collect();
        Self { servers, before }
    }

    fn of(&self, dialect: ModelDialect) -> impl Iterator<Item = &Arc<ModelServer>> {
        self.servers.iter().filter(move |server| server.dialect() == dialect)
    }

    /// The dialects that agents can use.
    pub(super) fn dialects(&self) -> BTreeSet<ModelDialect> {
        self.servers.iter().map(|server| server.dialect()).collect()
    }

    /// Fails unless there is a server of a dialect.
    ///
    /// # Errors
    /// The reply to the agent.
    pub(super) fn require(&self, dialect: ModelDialect) -> Result<(), OwnReply> {
        if self.of(dialect).next().is_some() {
            return Ok(());
        }
        let message = format!("the job has no model server of the dialect {dialect}");
        Err(OwnReply::new(StatusCode::NOT_FOUND, message))
    }

    /// Names of models that the job lists for a dialect, without patterns of several names.
    pub(super) fn models(&self, dialect: ModelDialect) -> Vec<&str> {
        let models = self.of(dialect).flat_map(|server| &server.spec().models);
        let mut names: Vec<&str> =
            models.map(String::as_str).filter(|name| !name.contains(WILDCARDS)).collect();
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(*name));
        names
    }

    /// The server for a call, and then those that it falls back to.
    ///
    /// # Errors
    /// The reply to the agent if no server takes the model.
    pub(super) fn select(
        &self,
        dialect: ModelDialect,
        model: Option<&str>,
    ) -> Result<Vec<Arc<ModelServer>>, OwnReply> {
        let mut selected = Vec::new();
        for server in self.of(dialect).filter(|server| server.takes(model)) {
            selected.push(Arc::clone(server));
            if !server.spec().fallback {
                break;
            }
        }
        if !selected.is_empty() {
            return Ok(selected);
        }
        Err(match model {
            Some(model) => {
                let model: String = model.chars().take(SHOWN_MODEL).collect();
                let message = format!("no model server of the job takes the model `{model}`");
                OwnReply::new(StatusCode::NOT_FOUND, message)
            }
            None => OwnReply::new(StatusCode::BAD_REQUEST, "the request names no model"),
        })
    }

    /// Servers whose outages stop clocks: the calls of others go elsewhere.
    fn stopping(&self) -> impl Iterator<Item = (&Arc<ModelServer>, &Duration)> {
        self.servers.iter().zip(&self.before).filter(|(server, _)| !server.spec().fallback)
    }

    /// Total time in which servers did not answer, since the execution began.
    pub(super) fn downtime(&self) -> Duration {
        self.stopping().map(|(server, before)| server.downtime().saturating_sub(*before)).sum()
    }

    /// Whether a server does not answer at present.
    pub(super) fn are_down(&self) -> bool {
        self.stopping().any(|(server, _)| server.is_down())
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::spec::gateway::UpstreamSpec;

    use super::super::client::Clients;
    use super::*;
    use crate::Upstream;

    fn upstreams(specs: &[(&str, ModelDialect, &[&str], bool)]) -> Upstreams {
        let server = |(name, dialect, models, fallback): &(&str, ModelDialect, &[&str], bool)| {
            let spec = UpstreamSpec {
                models: models.iter().map(|model| (*model).to_owned()).collect(),
                fallback: *fallback,
                ..UpstreamSpec::new(name, *dialect, "http://127.0.0.1:1")
            };
            let upstream = Upstream { spec, key: None };
            Arc::new(ModelServer::new(&upstream, None, &Clients::default()).expect("a server"))
        };
        Upstreams::new(specs.iter().map(server).collect())
    }

    fn names(found: Result<Vec<Arc<ModelServer>>, OwnReply>) -> Result<Vec<String>, u16> {
        let names = |servers: Vec<Arc<ModelServer>>| {
            servers.iter().map(|server| server.name().to_owned()).collect()
        };
        found.map(names).map_err(|reply| reply.status.as_u16())
    }

    #[test]
    fn first_server_of_dialect_that_takes_the_model_is_selected() {
        let (openai, gemini) = (ModelDialect::Openai, ModelDialect::Gemini);
        let servers = upstreams(&[
            ("small", openai, &["qwen/*-0.5b", "tiny"], false),
            ("other", gemini, &[], false),
            ("large", openai, &["qwen/*", "org/m?"], false),
        ]);
        let select = |model: &str| names(servers.select(openai, Some(model)));
        assert_eq!(select("qwen/a-0.5b"), Ok(vec!["small".to_owned()]));
        assert_eq!(select("qwen/a-7b"), Ok(vec!["large".to_owned()]));
        assert_eq!(select("org/m1"), Ok(vec!["large".to_owned()]));
        assert_eq!(select("gpt"), Err(404));
        let unknown = servers.select(openai, Some("gpt")).expect_err("no server");
        assert!(unknown.message.contains("`gpt`"), "{}", unknown.message);
        assert_eq!(names(servers.select(openai, None)), Err(400));
        assert_eq!(names(servers.select(gemini, None)), Ok(vec!["other".to_owned()]));
        assert_eq!(servers.models(openai), ["tiny"]);
        assert!(servers.require(ModelDialect::Anthropic).is_err());
    }

    #[test]
    fn fallback_leads_to_next_server_that_takes_the_model() {
        let openai = ModelDialect::Openai;
        let servers = upstreams(&[
            ("a", openai, &["m*"], true),
            ("b", openai, &["n"], false),
            ("c", openai, &["m1"], false),
            ("d", openai, &[], false),
        ]);
        let select = |model: &str| names(servers.select(openai, Some(model))).expect("a server");
        assert_eq!(select("m1"), ["a", "c"]);
        assert_eq!(select("m2"), ["a", "d"]);
        assert_eq!(select("n"), ["b"]);
    }

    #[tokio::test]
    async fn outage_of_server_with_fallback_stops_no_clock() {
        let openai = ModelDialect::Openai;
        let servers = upstreams(&[("a", openai, &[], true), ("b", openai, &[], false)]);
        servers.servers[0].mark_down("refused");
        assert!(servers.servers[0].is_down() && !servers.are_down());
        servers.servers[1].mark_down("refused");
        assert!(servers.are_down());
    }
}
