//! Labels that identify the owner of a container or image.

use std::collections::HashMap;

use rollout_environment::{EnvironmentLabels, Owner};

/// On every container: the owner as JSON.
pub(super) const OWNER: &str = "dev.rollout.owner";

/// On every built image: digest of its context.
pub(super) const CONTEXT: &str = "dev.rollout.context";

/// On every built image: build info as JSON.
pub(super) const BUILD: &str = "dev.rollout.build";

/// On every built image: digest of the build without its base images.
pub(super) const RECIPE: &str = "dev.rollout.recipe";

/// Label of a layer: digest of the proxies with which later ones are made, where the builder does not tell
/// them apart. That of proxies with logins has a secret key.
pub(super) const PROXIES: &str = "dev.rollout.proxies";

/// On every container: the execution.
pub(super) const EXEC: &str = "dev.rollout.exec";

/// On everything of an environment with services: the environment.
pub(super) const PROJECT: &str = "dev.rollout.project";

/// The service that a container belongs to, as set by Docker Compose.
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
