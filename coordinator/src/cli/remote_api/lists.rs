//! Lists and single documents of a server: runs, trials of a run, farms.

use std::path::PathBuf;

use rollout_protocol::exit::ExitCode;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::{ApiServerClient, RunUrl, is_api_url, is_id};
use super::commands::encoded;
use crate::cli::error::CliError;
use crate::results::view::{TrialFilter, TrialRow};

/// Entries of a page of runs or farms.
const PAGE: usize = 500;

/// Trials of a page.
const TRIALS_PAGE: usize = 1000;

/// A server, as a user names it: `http://host:4280`, also with the path of a list.
#[derive(Debug, Clone)]
pub(in crate::cli) struct ServerUrl {
    server: ApiServerClient,
    base: String,
}

impl ServerUrl {
    /// The server that a text means; `None` for a text that is no URL.
    ///
    /// # Errors
    /// The URL is that of one run or farm.
    pub(in crate::cli) fn parse(text: &str) -> Result<Option<Self>, CliError> {
        if !is_api_url(text) {
            return Ok(None);
        }
        let base = text.trim_end_matches('/');
        let list = ["/v1/runs", "/v1/farms"].iter().find_map(|list| base.strip_suffix(list));
        let base = list.unwrap_or(base);
        if base.contains("/v1/") {
            return Err(CliError::usage(format!("cannot list `{text}`: it is not a server"))
                .hint("the URL of a server is `http://host:4280`"));
        }
        let server = ApiServerClient::new(base, None)?;
        Ok(Some(Self { server, base: base.to_owned() }))
    }

    /// The runs of the user, newest first.
    ///
    /// # Errors
    /// [`CliError`].
    pub(in crate::cli) async fn runs(&self) -> Result<Vec<Value>, CliError> {
        self.all("runs", "next").await
    }

    /// The farms of the user, newest first.
    ///
    /// # Errors
    /// [`CliError`].
    pub(in crate::cli) async fn farms(&self) -> Result<Vec<Value>, CliError> {
        self.all("farms", "next_cursor").await
    }

    /// The address of a run or a farm of a list, which other commands take.
    pub(in crate::cli) fn address(&self, list: &str, id: &str) -> PathBuf {
        PathBuf::from(format!("{}/v1/{list}/{id}", self.base))
    }

    /// The entries of all pages of a list; of those that cannot be opened, `id` and `reason`.
    async fn all(&self, list: &str, next: &str) -> Result<Vec<Value>, CliError> {
        let mut entries = Vec::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/v1/{list}?limit={PAGE}{cursor}");
            let mut page = self.server.document(&path).await?;
            for key in [list, "unreadable"] {
                entries.extend(entries_of(&mut page, key));
            }
            match page[next].as_str() {
                Some(after) => cursor = format!("&cursor={}", encoded(after)),
                None => return Ok(entries),
            }
        }
    }
}

/// A farm, as a user names it: `http://host:4280/v1/farms/ID`.
#[derive(Debug, Clone)]
pub(in crate::cli) struct FarmUrl {
    server: ApiServerClient,
    id: String,
}

impl FarmUrl {
    /// The farm that a text means.
    ///
    /// # Errors
    /// The text is not the URL of a farm.
    pub(in crate::cli) fn parse(text: &str) -> Result<Self, CliError> {
        let parts = text.trim_end_matches('/').split_once("/v1/farms/");
        let parts = parts.filter(|(base, id)| is_api_url(base) && is_id(id));
        let Some((base, id)) = parts else {
            return Err(CliError::usage(format!(
                "cannot use `{text}`: it is not the URL of a farm"
            ))
            .hint("the URL of a farm is `http://host:4280/v1/farms/ID`"));
        };
        Ok(Self { server: ApiServerClient::new(base, None)?, id: id.to_owned() })
    }

    /// Its document.
    ///
    /// # Errors
    /// [`CliError`].
    pub(in crate::cli) async fn document(&self) -> Result<Value, CliError> {
        self.server.document(&format!("/v1/farms/{}", self.id)).await
    }
}

impl RunUrl {
    /// The document of the run.
    ///
    /// # Errors
    /// [`CliError`].
    pub(in crate::cli) async fn document(&self) -> Result<Value, CliError> {
        self.server.document(&self.path("")).await
    }

    /// The trials that a filter selects, in the plan's order.
    ///
    /// # Errors
    /// [`CliError`].
    pub(in crate::cli) async fn trials(
        &self,
        filter: &TrialFilter,
    ) -> Result<Vec<TrialRow>, CliError> {
        let mut query = format!("?limit={TRIALS_PAGE}");
        let state = filter.failed.then(|| "failed".to_owned());
        let filters = [("state", &state), ("agent", &filter.agent), ("task", &filter.task)];
        for (name, value) in filters {
            let value = value.iter().map(|value| format!("&{name}={}", encoded(value)));
            query.extend(value);
        }
        let (mut rows, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = self.path(&format!("/items{query}{cursor}"));
            let mut page = self.server.document(&path).await?;
            for item in entries_of(&mut page, "items") {
                rows.push(read(item)?);
            }
            match page["next"].as_u64() {
                Some(after) => cursor = format!("&cursor={after}"),
                None => return Ok(rows),
            }
        }
    }

    /// The document of a trial, as `rollout show RUN TRIAL --json` prints it.
    ///
    /// # Errors
    /// [`CliError`].
    pub(in crate::cli) async fn trial(&self, key: &str) -> Result<Value, CliError> {
        self.server.document(&self.path(&format!("/items/{}", encoded(key)))).await
    }

    /// The captured outputs of a trial.
    ///
    /// # Errors
    /// [`CliError`].
    pub(in crate::cli) async fn outputs(&self, key: &str) -> Result<Vec<ListedOutput>, CliError> {
        let path = self.path(&format!("/items/{}/outputs", encoded(key)));
        let mut document = self.server.document(&path).await?;
        entries_of(&mut document, "outputs").into_iter().map(read).collect()
    }
}

/// A captured output of a trial on a server.
#[derive(Debug, Deserialize, Serialize)]
pub(in crate::cli) struct ListedOutput {
    /// Its path, a name for `rollout logs`.
    pub(in crate::cli) path: String,
    /// Bytes that are kept.
    pub(in crate::cli) size_bytes: u64,
    /// Bytes that were written.
    total_bytes: u64,
    /// Digest of its content.
    digest: String,
    /// Whether a part was left out.
    truncated: bool,
}

fn entries_of(document: &mut Value, key: &str) -> Vec<Value> {
    match document.get_mut(key).map(Value::take) {
        Some(Value::Array(entries)) => entries,
        _ => Vec::new(),
    }
}

/// Reads a document of a server.
///
/// # Errors
/// The server is of a version that this program does not know.
pub(in crate::cli) fn read<T: DeserializeOwned>(document: Value) -> Result<T, CliError> {
    serde_json::from_value(document).map_err(|error| {
        CliError::from_cause(ExitCode::Failure, "cannot read the answer of the server", &error)
            .hint("use the version of rollout that the server has")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_told_from_directory_and_run() {
        assert!(ServerUrl::parse("jobs").expect("a path").is_none());
        for text in ["http://h:1", "http://h:1/", "http://h:1/v1/runs", "http://h:1/v1/farms/"] {
            let server = ServerUrl::parse(text).expect(text).expect("a server");
            assert_eq!(server.address("runs", "r1"), PathBuf::from("http://h:1/v1/runs/r1"));
        }
        let refused = ServerUrl::parse("http://h:1/v1/runs/r1").expect_err("a run");
        assert!(refused.message.contains("it is not a server"), "{}", refused.message);
    }

    #[test]
    fn farm_has_a_url_with_its_id() {
        let farm = FarmUrl::parse("https://h/base/v1/farms/f12/").expect("a farm");
        assert_eq!(farm.id, "f12");
        for text in ["f12", "http://h/v1/farms/", "http://h/v1/runs/r1", "h/v1/farms/f1"] {
            assert!(FarmUrl::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn answer_of_unknown_form_is_explained() {
        let refused = read::<TrialRow>(serde_json::json!({"name": 1})).expect_err("no trial");
        assert!(refused.message.starts_with("cannot read the answer"), "{}", refused.message);
        assert_eq!(refused.hints.len(), 1);
    }
}
