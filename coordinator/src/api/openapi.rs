//! The description of the API in OpenAPI 3.1, generated from its types.

use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi as _};

use super::{datasets, events, export, farms, items, problem, runs, trials};

/// The API.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Rollout",
        description = "Submit, watch and control runs of agents on tasks, and farms of trainers.",
        license(name = "MIT OR Apache-2.0"),
    ),
    paths(
        runs::submit,
        runs::list,
        runs::show,
        runs::delete,
        runs::cancel,
        runs::pause,
        runs::resume,
        runs::search,
        events::events,
        export::export,
        items::list,
        items::show,
        items::outputs,
        items::logs,
        items::artifacts,
        items::artifact,
        trials::finish,
        trials::list,
        trials::start,
        trials::status,
        trials::events,
        trials::control,
        trials::cancel,
        trials::output,
        trials::artifacts,
        trials::blob,
        datasets::show,
        datasets::upload,
    ),
    components(schemas(problem::Problem)),
    modifiers(&BearerTokens),
    security(("token" = [])),
    tags(
        (name = "runs", description = "Runs of jobs"),
        (name = "items", description = "Items of runs: trials of a job"),
        (name = "trials", description = "Trials that a user starts one by one, in a run of the kind `executor`"),
        (name = "datasets", description = "Datasets that jobs use, by digest"),
    ),
)]
struct ApiDescription;

/// Adds the way in which clients state their tokens.
struct BearerTokens;

impl Modify for BearerTokens {
    fn modify(&self, description: &mut utoipa::openapi::OpenApi) {
        let components = description.components.get_or_insert_default();
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
        let bearer = bearer.description(Some("A token of the server's file of tokens."));
        components.add_security_scheme("token", SecurityScheme::Http(bearer.build()));
    }
}

/// The description of the API.
pub fn openapi() -> serde_json::Value {
    let mut description = ApiDescription::openapi();
    description.merge(farms::FarmsDescription::openapi());
    serde_json::to_value(description).unwrap_or_default()
}
