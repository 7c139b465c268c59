//! Labels that say whose a container or image is.

use std::collections::HashMap;

use crate::environment::{EnvironmentLabels, Owner};

/// On every container: the owner as JSON.
pub(super) const OWNER: &str = "dev.rollout.owner";

/// On every image that was built: digest of its context.
pub(super) const CONTEXT: &str = "dev.rollout.context";

/// On every image that was built: how, as JSON.
pub(super) const BUILD: &str = "dev.rollout.build";

/// On every image that was built: the build, whatever its base images are.
pub(super) const RECIPE: &str = "dev.rollout.recipe";

/// On every container: the execution.
pub(super) const EXEC: &str = "dev.rollout.exec";

/// On everything of an environment with services: the environment.
pub(super) const PROJECT: &str = "dev.rollout.project";

/// The service that a container belongs to, as Docker Compose notes it.
pub(super) const COMPOSE_SERVICE: &str = "com.docker.compose.service";

/// The labels of a container.
pub(super) fn for_container(labels: &EnvironmentLabels) -> HashMap<String, String> {
    let owner = serde_json::to_string(&labels.owner).expect("an owner is plain data");
    HashMap::from(
        [
            ("dev.rollout.run", labels.run.to_string()),
            ("dev.rollout.item", labels.item.to_string()),
            ("dev.rollout.try", labels.try_id.to_string()),
            (EXEC, labels.exec.to_string()),
            ("dev.rollout.worker", labels.worker.to_string()),
            (OWNER, owner),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    )
}

/// The owner that a container's labels name.
pub(super) fn owner(labels: &HashMap<String, String>) -> Option<Owner> {
    labels.get(OWNER).and_then(|json| serde_json::from_str(json).ok())
}
