//! `[environment]`, and `[verifier.environment]`, which has the same keys.

use rollout_environment::image_reference::ImageReference;
use rollout_protocol::spec::task::{McpServer, TaskEnvironment};

use super::super::elements::{resources, timeouts};
use super::super::reader::{Field, Fields};
use super::network::{self, NetworkKeys};
use super::{DemandKind, TaskReadContext, healthcheck, mcp};

keys! {
    /// The keys of `environment`.
    pub(crate) table TaskEnvironmentKeys {
        build_timeout_sec: Value("seconds"), "600", "Time limit of the image's build or pull.";
        docker_image: Value("text"), "none",
            "Image to use instead of `environment/Dockerfile`; empty means none.",
            "" => resources::TaskResourceKeys::ALL;
        gpus (Harbor): Value("integer"), "0", "GPUs.";
        gpu_types (Harbor): Value("list of text"), "any",
            "Accepted GPU types if `gpus` is above 0; unsupported: no type can be chosen.";
        tpu (Harbor): Value("table"), "absent", "TPUs; unsupported.",
            "tpu" => TpuKeys::ALL;
        os (Harbor): Value("linux|windows"), "linux", "Operating system, in upper or lower case; windows is unsupported.";
        env: Value("table NAME = text"), "empty",
            "Variables of every script; `${NAME:-default}` refers to a host variable listed in the job's `task_env`.";
        workdir (Harbor): EnvironmentPath("absolute path"), "image default", "Directory that scripts run in.";
        network_mode (Harbor): Value("public|no-network|allowlist"), "public",
            "Network access; `allowlist` is unsupported where it cannot be enforced.";
        allowed_hosts (Harbor): Value("list of hosts"), "empty",
            "Hosts for `allowlist`: names, `*.` and a name, addresses, networks.";
        allow_internet (Harbor): Value("true|false"), "true",
            "Older spelling of `network_mode`: false is `no-network`.";
        healthcheck (Harbor): Value("table"), "absent", "Check that the environment is ready.",
            "healthcheck" => healthcheck::HealthcheckKeys::ALL;
        start_grace_sec: Value("seconds"), "until its own programs have settled",
            "Time between the start of the environment and its first command, without `healthcheck`.";
        skills_dir (Harbor): EnvironmentPath("absolute path"), "none",
            "Directory with skills for agents, in the environment.";
        mcp_servers (Harbor): Value("list"), "empty", "MCP servers for agents.",
            "mcp_servers[]" => mcp::McpKeys::ALL;
    }

    /// The keys of `tpu`.
    pub(crate) table TpuKeys {
        kind as "type": Value("text"), "none", "See `tpu`.";
        topology: Value("text"), "none", "See `tpu`.";
    }
}

/// The network keys of the environment.
const NETWORK_KEYS: NetworkKeys = NetworkKeys {
    mode: TaskEnvironmentKeys::network_mode,
    hosts: TaskEnvironmentKeys::allowed_hosts,
};

/// The environment that the agent works in, with its agent-only settings.
pub(super) struct MainEnvironment {
    pub(super) task: TaskEnvironment,
    pub(super) mcp_servers: Vec<McpServer>,
    pub(super) skills_dir: Option<String>,
}

/// Reads `[environment]`.
pub(super) fn read_main(field: &Field<'_>, context: &mut TaskReadContext) -> MainEnvironment {
    let Some(mut fields) = field.mapping() else {
        return MainEnvironment {
            task: default_environment(context),
            mcp_servers: Vec::new(),
            skills_dir: None,
        };
    };
    let task = read(&mut fields, context);
    let mcp_servers =
        mcp::read(&fields.take(TaskEnvironmentKeys::mcp_servers), &mut context.variables);
    let skills_dir = absolute(&fields.take(TaskEnvironmentKeys::skills_dir), context);
    fields.finish();
    MainEnvironment { task, mcp_servers, skills_dir }
}

/// Reads `[verifier.environment]`, where tools and skills have no effect: no agent runs there.
pub(super) fn read_verifier(
    field: &Field<'_>,
    context: &mut TaskReadContext,
) -> Option<TaskEnvironment> {
    let mut fields = field.mapping()?;
    let task = read(&mut fields, context);
    for key in [TaskEnvironmentKeys::mcp_servers, TaskEnvironmentKeys::skills_dir] {
        let unused = fields.take(key);
        if unused.is_present() {
            unused.warn("has no effect: no agent runs in a verifier's environment");
        }
    }
    fields.finish();
    Some(task)
}

/// The environment of a file without the table.
fn default_environment(context: &TaskReadContext) -> TaskEnvironment {
    let mut environment =
        TaskEnvironment { build_sec: context.defaults.build_sec, ..TaskEnvironment::default() };
    environment.resources.ceilings = context.defaults.ceilings;
    environment
}

fn read(fields: &mut Fields<'_>, context: &mut TaskReadContext) -> TaskEnvironment {
    let build = fields.take(TaskEnvironmentKeys::build_timeout_sec);
    let image = fields.take(TaskEnvironmentKeys::docker_image);
    // Tools write an empty text for no image.
    let named = image.string().filter(|image| !image.is_empty());
    let docker_image = named.and_then(|_| docker_image(&image));
    operating_system(fields, context);
    let mut resources = resources::read_task(fields, context.defaults.ceilings);
    let gpus = fields.take(TaskEnvironmentKeys::gpus);
    resources.gpus = resources::read_gpus(&gpus).unwrap_or(0);
    hardware(fields, &gpus, resources.gpus, context);
    let network =
        network::baseline(fields, NETWORK_KEYS, TaskEnvironmentKeys::allow_internet, context);
    TaskEnvironment {
        docker_image,
        build_sec: timeouts::read(&build, context.defaults.build_sec),
        resources,
        env: context.env(&fields.take(TaskEnvironmentKeys::env)),
        workdir: absolute(&fields.take(TaskEnvironmentKeys::workdir), context),
        network,
        healthcheck: healthcheck::read(&fields.take(TaskEnvironmentKeys::healthcheck)),
        start_grace_sec: timeouts::read_start_grace(
            &fields.take(TaskEnvironmentKeys::start_grace_sec),
        ),
        ..TaskEnvironment::default()
    }
}

/// Reads the operating system.
fn operating_system(fields: &mut Fields<'_>, context: &mut TaskReadContext) {
    let os = fields.take(TaskEnvironmentKeys::os);
    if os.keyword_in_any_case(&[("linux", false), ("windows", true)]) == Some(true) {
        context.demand(DemandKind::Windows, &os);
        context.is_windows = true;
    }
}

/// Reads hardware demands. GPU types matter only if GPUs are asked for.
fn hardware(fields: &mut Fields<'_>, gpus: &Field<'_>, count: u32, context: &mut TaskReadContext) {
    let types = fields.take(TaskEnvironmentKeys::gpu_types);
    let names = types.items().unwrap_or_default();
    let names: Vec<String> = names.iter().filter_map(Field::non_empty_string).collect();
    if count > 0 {
        context.demand(DemandKind::Gpus, gpus);
        if !names.is_empty() {
            context.demand(DemandKind::GpuTypes(names), &types);
        }
    }
    let tpu = fields.take(TaskEnvironmentKeys::tpu);
    if let Some(mut keys) = tpu.mapping() {
        keys.take(TpuKeys::kind).string();
        keys.take(TpuKeys::topology).string();
        keys.finish();
        context.demand(DemandKind::Tpu, &tpu);
    }
}

/// Reads an image reference.
pub(in crate::config) fn docker_image(field: &Field<'_>) -> Option<String> {
    let image = field.non_empty_string()?;
    if image.parse::<ImageReference>().is_err() {
        field.bad_value("an image reference such as `debian:bookworm-slim`");
        return None;
    }
    Some(image)
}

/// Reads an absolute path inside the environment.
fn absolute(field: &Field<'_>, context: &TaskReadContext) -> Option<String> {
    let path = field.non_empty_string()?;
    let is_absolute = path.starts_with('/') || context.is_windows_path(&path);
    if !is_absolute || path.chars().any(char::is_control) {
        field.bad_value("an absolute path inside the environment");
        return None;
    }
    Some(path)
}
