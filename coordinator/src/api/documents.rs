//! Documents of the API: bodies of requests and answers.

use rollout_protocol::Timestamp;
use serde::{Deserialize, Serialize};
#[cfg(feature = "openapi")]
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
#[cfg(feature = "openapi")]
use utoipa::{IntoParams, ToSchema};

use super::whole_number;
use crate::daemon::{
    HostedKind, HostedProgress, HostedRunState, HostedRunView, RunFailure, RunPage, UnreadableRun,
};

/// A submission.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct SubmitRun {
    /// Kind of the run.
    #[serde(default)]
    pub(super) kind: SubmittedKind,
    /// The job: the document of a job file as JSON, or the text of one in YAML.
    #[cfg_attr(feature = "openapi", schema(schema_with = document_schema))]
    pub(super) document: serde_json::Value,
    /// Name for people, in place of the document's.
    #[serde(default)]
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 100, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")
    )]
    pub(super) name: Option<String>,
    /// Runs of the user with a higher priority start first.
    #[serde(default, deserialize_with = "whole_number::json")]
    #[cfg_attr(feature = "openapi", schema(minimum = -1000, maximum = 1000))]
    pub(super) priority: i32,
}

/// A document is an object, or the text of a file.
#[cfg(feature = "openapi")]
pub(super) fn document_schema() -> Schema {
    let object = ObjectBuilder::new().schema_type(Type::Object);
    let text = ObjectBuilder::new().schema_type(Type::String);
    OneOfBuilder::new().item(object).item(text).build().into()
}

/// Kinds of submissions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
pub(super) enum SubmittedKind {
    /// All trials of a job.
    #[default]
    Job,
    /// Trials of a job that its user starts one by one, until `finish`.
    Executor,
    /// A search over the commits of a repository: `document` is a search file.
    Tree,
}

impl From<SubmittedKind> for HostedKind {
    fn from(kind: SubmittedKind) -> Self {
        match kind {
            SubmittedKind::Job => Self::Job,
            SubmittedKind::Executor => Self::Executor,
            SubmittedKind::Tree => Self::Tree,
        }
    }
}

/// Parameters of a submission whose body is a job file.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct SubmitQuery {
    /// With a body of YAML: kind of the run.
    #[serde(default)]
    pub(super) kind: SubmittedKind,
    /// With a body of YAML: name for people, in place of the document's.
    #[cfg_attr(
        feature = "openapi",
        param(min_length = 1, max_length = 100, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")
    )]
    pub(super) name: Option<String>,
    /// With a body of YAML: runs of the user with a higher priority start first.
    #[serde(default, deserialize_with = "whole_number::query_option")]
    #[cfg_attr(feature = "openapi", param(minimum = -1000, maximum = 1000))]
    pub(super) priority: Option<i32>,
}

/// Which runs to list.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct ListQuery {
    /// Only runs in this state.
    pub(super) state: Option<HostedRunState>,
    /// Only runs of this user.
    pub(super) user: Option<String>,
    /// Only runs with this name.
    pub(super) name: Option<String>,
    /// Most runs of a page, from 1 to 500; 100 by default.
    #[serde(default, deserialize_with = "whole_number::query_option")]
    pub(super) limit: Option<usize>,
    /// `next` of the page before.
    #[cfg_attr(feature = "openapi", param(pattern = "^r[0-9a-f]{24}$"))]
    pub(super) cursor: Option<String>,
}

/// A page of runs.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct RunList {
    /// Runs, newest first.
    runs: Vec<RunDocument>,
    /// Runs that cannot be opened; only administrators see them, on the first page.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<UnreadableDocument>,
    /// `cursor` of the next page; null on the last one.
    next: Option<String>,
}

/// A run.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct RunDocument {
    /// Its id.
    id: String,
    /// Its kind.
    kind: HostedKind,
    /// Name of its job.
    name: String,
    /// The user who submitted it.
    user: String,
    /// Its priority.
    priority: i32,
    /// Its state.
    state: HostedRunState,
    /// Whether it has ended for good.
    is_final: bool,
    /// When it was submitted.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    created_at: Timestamp,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    ended_at: Option<Timestamp>,
    /// The exit code that `rollout run` has for its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u8>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<RunFailure>,
    /// Its trials.
    progress: HostedProgress,
}

/// A run that cannot be opened.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct UnreadableDocument {
    /// Its id.
    id: String,
    /// Why.
    reason: String,
}

impl From<HostedRunView> for RunDocument {
    fn from(view: HostedRunView) -> Self {
        let HostedRunView { record, state, .. } = view;
        Self {
            id: record.id.to_string(),
            kind: record.kind,
            name: record.name,
            user: record.user,
            priority: record.priority,
            state,
            is_final: record.end.is_some(),
            created_at: record.created_at,
            ended_at: record.end.as_ref().map(|end| end.at),
            code: record.end.as_ref().map(|end| end.code),
            failure: record.failure,
            progress: record.progress,
        }
    }
}

impl From<RunPage> for RunList {
    fn from(page: RunPage) -> Self {
        let RunPage { runs, unreadable, next } = page;
        let unreadable = unreadable.into_iter();
        Self {
            runs: runs.into_iter().map(RunDocument::from).collect(),
            unreadable: unreadable
                .map(|UnreadableRun { id, reason }| UnreadableDocument {
                    id: id.to_string(),
                    reason,
                })
                .collect(),
            next: next.map(|id| id.to_string()),
        }
    }
}
