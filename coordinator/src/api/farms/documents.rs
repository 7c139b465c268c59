//! Documents of farms: bodies of requests and answers. Groups, completions, settings and states have
//! the documents of the library.

use rollout_protocol::Timestamp;
use rollout_protocol::farm::{
    Completion, FarmModelCalls, FarmSettings, FarmStatus, GroupEnd, GroupId, GroupStatus,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
#[cfg(feature = "openapi")]
use utoipa::{IntoParams, ToSchema};

use super::problems;
#[cfg(feature = "openapi")]
use crate::api::documents::document_schema;
use crate::api::problem::ApiProblem;
use crate::api::whole_number;
use crate::daemon::{FarmPage, GroupState, HostedFarmState, HostedFarmView, RunFailure};

/// A farm to open.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct OpenFarm {
    /// Its name: part of the key of every sample.
    pub(super) name: String,
    /// The job: the document of a job file as JSON, or the text of one in YAML. It has one agent; its
    /// datasets are the tasks of the farm.
    #[cfg_attr(feature = "openapi", schema(schema_with = document_schema))]
    pub(super) document: serde_json::Value,
    /// Its settings.
    #[serde(default)]
    pub(super) settings: OpenFarmSettings,
    /// Its samples take free slots of the user before those of a lower priority.
    #[serde(default, deserialize_with = "whole_number::json")]
    #[cfg_attr(feature = "openapi", schema(minimum = -1000, maximum = 1000))]
    pub(super) priority: i32,
}

/// Settings of a farm.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(deny_unknown_fields, default)]
pub(super) struct OpenFarmSettings {
    /// Names of the readers of completions; `["train"]` by default.
    consumers: Option<Vec<String>>,
    /// Bounds on what the farm holds: `open_groups`, `open_samples`, `unacknowledged`,
    /// `remembered_groups`, `cancelled_groups`, `journal_bytes`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    limits: serde_json::Value,
    /// How many versions behind the newest one a policy version may be: `admission`, `queue`,
    /// `in_flight`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    staleness: serde_json::Value,
}

impl OpenFarmSettings {
    /// The settings of a farm with a name.
    ///
    /// # Errors
    /// 422.
    pub(super) fn named(self, name: String) -> Result<FarmSettings, ApiProblem> {
        let Self { consumers, limits, staleness } = self;
        let settings = FarmSettings::new(name);
        Ok(FarmSettings {
            name: settings.name,
            limits: setting("limits", limits)?,
            staleness: setting("staleness", staleness)?,
            consumers: consumers.unwrap_or(settings.consumers),
        })
    }
}

/// Reads a table of the settings; without one, all its values have their defaults.
fn setting<T: DeserializeOwned + Default>(
    name: &str,
    value: serde_json::Value,
) -> Result<T, ApiProblem> {
    if value.is_null() {
        return Ok(T::default());
    }
    serde_json::from_value(value).map_err(|error| {
        problems::invalid_farm(format!("cannot open the farm: settings.{name}: {error}"))
    })
}

/// Which farms to list.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct ListFarmsQuery {
    /// Only farms in this state.
    pub(super) state: Option<HostedFarmState>,
    /// Only farms of this user.
    pub(super) user: Option<String>,
    /// Only farms with this name.
    pub(super) name: Option<String>,
    /// Most farms of a page, from 1 to 500; 100 by default.
    #[serde(default, deserialize_with = "whole_number::query_option")]
    pub(super) limit: Option<usize>,
    /// `next_cursor` of the page before.
    #[cfg_attr(feature = "openapi", param(pattern = "^f[0-9a-f]{24}$"))]
    pub(super) cursor: Option<String>,
}

/// A page of farms.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct FarmList {
    /// Farms, newest first.
    farms: Vec<FarmDocument>,
    /// Farms that cannot be opened; only administrators see them, on the first page.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<UnreadableFarm>,
    /// `cursor` of the next page; null on the last one.
    next_cursor: Option<String>,
}

/// A farm.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct FarmDocument {
    /// Its id.
    id: String,
    /// Its name.
    name: String,
    /// The user who opened it.
    user: String,
    /// Its priority.
    priority: i32,
    /// Its state.
    state: HostedFarmState,
    /// Whether it has ended for good.
    is_final: bool,
    /// When it was opened.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    created_at: Timestamp,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    ended_at: Option<Timestamp>,
    /// Why its last session failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<RunFailure>,
    /// Its settings.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    settings: FarmSettings,
    /// The state of its groups and samples; absent until it is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    status: Option<FarmStatus>,
}

/// A farm that cannot be opened.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct UnreadableFarm {
    /// Its id.
    id: String,
    /// Why.
    reason: String,
}

impl From<HostedFarmView> for FarmDocument {
    fn from(view: HostedFarmView) -> Self {
        let HostedFarmView { record, state, status } = view;
        Self {
            id: record.id.to_string(),
            name: record.settings.name.clone(),
            user: record.user,
            priority: record.priority,
            state,
            is_final: record.end.is_some(),
            created_at: record.created_at,
            ended_at: record.end.as_ref().map(|end| end.at),
            failure: record.failure,
            settings: record.settings,
            status,
        }
    }
}

impl From<FarmPage> for FarmList {
    fn from(page: FarmPage) -> Self {
        let FarmPage { farms, unreadable, next } = page;
        let unreadable = unreadable.into_iter();
        Self {
            farms: farms.into_iter().map(FarmDocument::from).collect(),
            unreadable: unreadable
                .map(|(id, reason)| UnreadableFarm { id: id.to_string(), reason })
                .collect(),
            next_cursor: next.map(|id| id.to_string()),
        }
    }
}

/// The answer to a group that was admitted, now or before.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct SubmittedGroupDocument {
    /// Its id.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub(super) group: GroupId,
    /// Whether it was admitted before.
    pub(super) known: bool,
    /// How it ended, if it has: `complete`, `dropped` or `cancelled`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub(super) end: Option<GroupEnd>,
}

/// The state of a group.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct GroupDocument {
    /// Its id.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    group: GroupId,
    /// Samples that it owes. Like the next three, absent if the farm remembers the id only.
    #[serde(skip_serializing_if = "Option::is_none")]
    n: Option<u32>,
    /// Samples that have not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    open: Option<u32>,
    /// Usable samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    usable: Option<u32>,
    /// Samples that were replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    refills: Option<u32>,
    /// How it ended, if it has: `complete`, `dropped` or `cancelled`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    end: Option<GroupEnd>,
}

impl GroupDocument {
    pub(super) fn new(group: GroupId, state: GroupState) -> Self {
        match state {
            GroupState::Held(GroupStatus { group, n, open, usable, refills, end }) => Self {
                group,
                n: Some(n),
                open: Some(open),
                usable: Some(usable),
                refills: Some(refills),
                end,
            },
            GroupState::Former(end) => {
                Self { group, n: None, open: None, usable: None, refills: None, end: Some(end) }
            }
        }
    }
}

/// The answer to a cancellation.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct CancelledGroupDocument {
    /// The id of the group.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub(super) group: GroupId,
    /// Samples that the cancellation ended.
    pub(super) samples: u64,
    /// Whether the farm did not know the group: it is never admitted.
    pub(super) unknown: bool,
    /// How the group had ended before, if it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub(super) end: Option<GroupEnd>,
}

/// Which completions to read.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct CompletionsQuery {
    /// Their consumer; by default the first one of the farm.
    pub(super) consumer: Option<String>,
    /// Only completions with a higher cursor; 0 by default.
    #[serde(default, deserialize_with = "whole_number::query")]
    #[cfg_attr(feature = "openapi", param(value_type = usize))]
    pub(super) after: u64,
    /// Most completions, from 1 to 4096; 100 by default.
    #[serde(default, deserialize_with = "whole_number::query_option")]
    pub(super) limit: Option<usize>,
    /// Seconds to wait for the first completion, from 0 to 60; 0 by default.
    #[serde(default, deserialize_with = "whole_number::query")]
    #[cfg_attr(feature = "openapi", param(value_type = usize, maximum = 60))]
    pub(super) wait: u64,
}

/// Where a stream of completions begins.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(IntoParams))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub(super) struct CompletionStreamQuery {
    /// Their consumer; by default the first one of the farm.
    pub(super) consumer: Option<String>,
    /// Only completions with a higher cursor; 0 by default. `Last-Event-ID` takes its place.
    #[serde(default, deserialize_with = "whole_number::query")]
    #[cfg_attr(feature = "openapi", param(value_type = usize))]
    pub(super) after: u64,
}

/// Completions.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct CompletionList<'a> {
    /// Completions that their consumer has not acknowledged, in the order of their cursors.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub(super) completions: Vec<&'a Completion>,
    /// `after` of the next read.
    pub(super) next_after: u64,
}

/// Completions that their consumer has taken.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct AcknowledgeCompletions {
    /// The consumer; by default the first one of the farm.
    #[serde(default)]
    pub(super) consumer: Option<String>,
    /// Their cursors, at most 4096.
    #[serde(deserialize_with = "whole_number::json_list")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<usize>))]
    pub(super) cursors: Vec<u64>,
}

/// The answer to an acknowledgement.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct AcknowledgedDocument {
    /// Completions that were acknowledged now.
    pub(super) acknowledged: u64,
    /// Completions that were acknowledged before.
    pub(super) repeated: u64,
    /// Cursors that no completion of the consumer has.
    pub(super) unknown: u64,
}

/// A version of the policy.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyVersionDocument {
    /// The version.
    #[serde(deserialize_with = "whole_number::json")]
    #[cfg_attr(feature = "openapi", schema(value_type = usize))]
    pub(super) version: u64,
}

/// The end of a pause.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct ResumeFarm {
    /// Version of the policy from now on, if it changed.
    #[serde(default, deserialize_with = "whole_number::json_option")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<usize>))]
    pub(super) version: Option<u64>,
}

/// Whether a farm is paused.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(ToSchema))]
pub(super) struct PauseDocument {
    /// Whether it is.
    paused: bool,
    /// Samples that were begun and have not ended.
    in_flight: u64,
    /// Their model calls, as in the status; absent without a gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    model_calls: Option<FarmModelCalls>,
}

impl From<FarmStatus> for PauseDocument {
    fn from(status: FarmStatus) -> Self {
        Self {
            paused: status.pause.is_some(),
            in_flight: status.begun_samples,
            model_calls: status.model_calls,
        }
    }
}
