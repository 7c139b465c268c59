//! Specs and contexts for tests of whatever runs trials.

use std::collections::BTreeMap;

use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::{TaskFiles, TaskSpec};
use rollout_protocol::spec::timeout::Timeouts;

/// A task without files.
pub fn task() -> TaskSpec {
    TaskSpec {
        dataset: "dataset".into(),
        name: "task".into(),
        git_commit_id: None,
        docker_image: Some("image".into()),
        resources: Resources::default(),
        timeouts: Timeouts {
            build_sec: 60.0,
            install_sec: 60.0,
            agent_sec: 60.0,
            verifier_sec: 60.0,
        },
        env: BTreeMap::new(),
        files: TaskFiles::default(),
        fault: None,
    }
}
