//! The keys of task files.

use rollout_protocol::spec::task::TaskFormat;

use super::{Key, Reference, key};

/// The keys of task files. Both formats take all of them; `format` says which one a key comes from,
/// and so which one a file is in when the job does not say it.
pub const TASK: Reference = Reference { file: "task.toml", keys: KEYS, alike: ALIKE };

const ALIKE: &[(&str, &str)] = &[
    ("steps[].verifier.environment", "environment"),
    ("steps[].verifier", "verifier"),
    ("steps[].agent", "agent"),
    ("steps[].healthcheck", "environment.healthcheck"),
    ("steps[].artifacts[]", "artifacts[]"),
    ("verifier.environment", "environment"),
];

const KEYS: &[Key] = &[
    // What the task is.
    harbor("schema_version", "text", "1.4", "Version of the format."),
    key("version", "text", "1.0", "Version of the format; Harbor's older word for it, too."),
    key("source", "text", "none", "Where the task comes from, for people."),
    key("metadata", "table", "empty", "Anything, for people."),
    harbor("task", "table", "absent", "What registries know of the task, for people."),
    harbor(
        "task.name",
        "text",
        "none",
        "`organization/name`; `task_name` in exports for Harbor, else the directory's name counts.",
    ),
    harbor("task.version", "text", "none", "Version of the task."),
    harbor("task.description", "text", "none", "What the task is about."),
    harbor("task.authors", "list", "empty", "Who wrote it."),
    harbor("task.authors[].name", "text", "none", "Name."),
    harbor("task.authors[].email", "text", "none", "Address."),
    harbor("task.keywords", "list of text", "empty", "What to find it by."),
    // The agent.
    key("agent", "table", "empty", "How agents run."),
    key(
        "agent.timeout_sec",
        "seconds",
        "rollout: 600, harbor: no limit",
        "Time limit of an attempt.",
    ),
    rollout(
        "agent.install_timeout_sec",
        "seconds",
        "rollout: 300, harbor: 360",
        "Time limit of the agent's install script.",
    ),
    harbor("agent.user", "text|integer", "the image's", "User that the agent's scripts run as."),
    harbor(
        "agent.network_mode",
        "public|no-network|allowlist",
        "the environment's",
        "What the agent may reach.",
    ),
    harbor("agent.allowed_hosts", "list of hosts", "empty", "For `allowlist`, as below."),
    // The verifier.
    key("verifier", "table", "empty", "How the result is verified."),
    key("verifier.timeout_sec", "seconds", "600", "Time limit of the test script."),
    harbor(
        "verifier.env",
        "table NAME = text",
        "empty",
        "Variables of the test script; `${NAME:-default}` takes one of the host that the job's `task_env` lists.",
    ),
    harbor("verifier.user", "text|integer", "the image's", "User that the test script runs as."),
    harbor(
        "verifier.network_mode",
        "public|no-network|allowlist",
        "the environment's",
        "What the test script may reach.",
    ),
    harbor("verifier.allowed_hosts", "list of hosts", "empty", "For `allowlist`, as below."),
    harbor(
        "verifier.environment_mode",
        "shared|separate",
        "separate with `verifier.environment`, else shared",
        "Whether the test script runs where the agent did, or in an environment that only the artifacts reach.",
    ),
    harbor(
        "verifier.environment",
        "table",
        "as `environment`",
        "The verifier's own environment, with the keys of `environment`; built from `tests/` unless it names an image.",
    ),
    harbor(
        "verifier.collect",
        "list",
        "empty",
        "Commands that run before the artifacts are taken.",
    ),
    harbor("verifier.collect[].command", "text", "required", "The command."),
    harbor("verifier.collect[].service", "text", "main", "Service that it runs in."),
    harbor("verifier.collect[].timeout_sec", "seconds", "60", "Its time limit."),
    harbor("verifier.collect[].user", "text|integer", "the image's", "User that it runs as."),
    // The environment.
    key("environment", "table", "empty", "Where the agent works."),
    key(
        "environment.build_timeout_sec",
        "seconds",
        "600",
        "Time limit of the image's build or pull.",
    ),
    key(
        "environment.docker_image",
        "text",
        "none",
        "Image to use instead of `environment/Dockerfile`; empty text is none.",
    ),
    key(
        "environment.cpus",
        "number|text",
        "rollout: 1, harbor: no ceiling",
        "Processors; fractions are rounded up.",
    ),
    key("environment.memory_mb", "integer", "rollout: 2048, harbor: no ceiling", "Memory, MiB."),
    key("environment.memory", "text", "none", "Older spelling of `memory_mb`, with a unit: `2G`."),
    key("environment.storage_mb", "integer", "rollout: 10240, harbor: no ceiling", "Storage, MiB."),
    key(
        "environment.storage",
        "text",
        "none",
        "Older spelling of `storage_mb`, with a unit: `10G`.",
    ),
    harbor("environment.gpus", "integer", "0", "Graphics processors."),
    harbor(
        "environment.gpu_types",
        "list of text",
        "any",
        "Types of which one will do, where `gpus` asks for some; unsupported: none can be chosen.",
    ),
    harbor("environment.tpu", "table", "absent", "Tensor processors; unsupported: there are none."),
    harbor("environment.tpu.type", "text", "none", "See `tpu`."),
    harbor("environment.tpu.topology", "text", "none", "See `tpu`."),
    harbor("environment.os", "linux|windows", "linux", "Operating system; windows is unsupported."),
    key(
        "environment.env",
        "table NAME = text",
        "empty",
        "Variables of every script; `${NAME:-default}` takes one of the host that the job's `task_env` lists.",
    ),
    harbor("environment.workdir", "absolute path", "the image's", "Directory that scripts run in."),
    harbor(
        "environment.network_mode",
        "public|no-network|allowlist",
        "public",
        "What the environment may reach; `allowlist` is unsupported where it cannot be enforced.",
    ),
    harbor(
        "environment.allowed_hosts",
        "list of hosts",
        "empty",
        "For `allowlist`: names, `*.` and a name, addresses, networks.",
    ),
    harbor(
        "environment.allow_internet",
        "true|false",
        "true",
        "Older spelling of `network_mode`: false is `no-network`.",
    ),
    harbor(
        "environment.healthcheck",
        "table",
        "absent",
        "How to tell that the environment is ready.",
    ),
    harbor("environment.healthcheck.command", "text", "required", "Ends with code 0 when it is."),
    harbor("environment.healthcheck.interval_sec", "seconds", "5", "From one check to the next."),
    harbor("environment.healthcheck.timeout_sec", "seconds", "30", "Time limit of a check."),
    harbor(
        "environment.healthcheck.start_period_sec",
        "seconds",
        "0",
        "How long failures do not count.",
    ),
    harbor(
        "environment.healthcheck.start_interval_sec",
        "seconds",
        "5",
        "From one check to the next while failures do not count.",
    ),
    harbor("environment.healthcheck.retries", "integer", "3", "Failures in a row that are one."),
    harbor(
        "environment.skills_dir",
        "absolute path",
        "none",
        "Skills for agents, in the environment.",
    ),
    harbor("environment.mcp_servers", "list", "empty", "Servers of tools for agents."),
    harbor("environment.mcp_servers[].name", "text", "required", "Name."),
    harbor(
        "environment.mcp_servers[].transport",
        "stdio|sse|streamable-http|http",
        "sse",
        "How it is reached.",
    ),
    harbor("environment.mcp_servers[].url", "text", "required but for stdio", "Address."),
    harbor("environment.mcp_servers[].command", "text", "required for stdio", "Program."),
    harbor("environment.mcp_servers[].args", "list of text", "empty", "Its arguments."),
    harbor(
        "environment.mcp_servers[].headers",
        "table NAME = text",
        "empty",
        "Headers of every request; credentials as `${NAME}` only.",
    ),
    // The rest.
    harbor("solution", "table", "empty", "How the oracle runs the solution."),
    harbor("solution.env", "table NAME = text", "empty", "Variables of `solve.sh`."),
    harbor(
        "artifacts",
        "list of text or tables",
        "empty",
        "Files to keep, and to bring to a separate verifier.",
    ),
    harbor(
        "artifacts[].source",
        "absolute path",
        "required",
        "What is taken; the entry itself when it is text.",
    ),
    harbor("artifacts[].destination", "path", "the source's", "Where it goes, below `artifacts/`."),
    harbor("artifacts[].exclude", "list of patterns", "empty", "What is left out."),
    harbor("artifacts[].service", "text", "main", "Service that it is taken from."),
    harbor(
        "multi_step_reward_strategy",
        "mean|final",
        "mean",
        "What the rewards of several steps come to.",
    ),
    harbor("steps", "list", "one step", "What is asked, one after the other in one environment."),
    harbor("steps[].name", "text", "required", "Its directory below `steps/`."),
    harbor(
        "steps[].agent",
        "table",
        "as `agent`",
        "The keys of `agent`, but for the install script's.",
    ),
    harbor(
        "steps[].verifier",
        "table",
        "as `verifier`",
        "The keys of `verifier`; `env` and `collect` come on top.",
    ),
    harbor(
        "steps[].min_reward",
        "number or table KEY = number",
        "none",
        "Reward below which later steps are not run; a number is for the key `reward`.",
    ),
    harbor("steps[].healthcheck", "table", "absent", "The keys of `environment.healthcheck`."),
    harbor("steps[].artifacts", "list", "empty", "Files to keep beside those of `artifacts`."),
];

const fn harbor(
    key: &'static str,
    kind: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { key, kind, default, meaning, format: Some(TaskFormat::Harbor) }
}

const fn rollout(
    key: &'static str,
    kind: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { key, kind, default, meaning, format: Some(TaskFormat::Rollout) }
}
