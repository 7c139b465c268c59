//! The keys of task files.

use super::{Key, Reference, key};

/// The keys of task files.
pub const TASK: Reference = Reference { file: "task.toml", keys: KEYS, alike: &[] };

const KEYS: &[Key] = &[
    key("version", "text", "1.0", "Version of the format."),
    key("schema_version", "text", "1.0", "Version of the format."),
    key("source", "text", "none", "Where the task comes from."),
    key("metadata", "table", "", "Anything."),
    key("agent", "table", "", "How agents run."),
    key("agent.timeout_sec", "number", "600", "Time limit of an attempt, s."),
    key("agent.install_timeout_sec", "number", "300", "Time limit of the install script, s."),
    key("verifier", "table", "", "How the result is verified."),
    key("verifier.timeout_sec", "number", "600", "Time limit of the test script, s."),
    key("environment", "table", "", "Where the agent works."),
    key("environment.build_timeout_sec", "number", "600", "Time limit of build or pull, s."),
    key("environment.docker_image", "text", "none", "Image to use instead of building one."),
    key("environment.cpus", "number", "1", "Processors."),
    key("environment.memory_mb", "integer", "2048", "Memory, MiB."),
    key("environment.memory", "amount", "2G", "Older spelling of `memory_mb`."),
    key("environment.storage_mb", "integer", "10240", "Storage, MiB."),
    key("environment.storage", "amount", "10G", "Older spelling of `storage_mb`."),
    key("environment.env", "table NAME = text", "", "Variables of every script."),
];
