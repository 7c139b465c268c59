//! `[environment]`, and `[verifier.environment]`, which has the same keys.

use rollout_protocol::spec::task::{McpServer, TaskEnvironment};

use super::super::elements::{resources, timeouts};
use super::super::fields::{Field, Fields};
use super::{DemandKind, Reading, healthcheck, mcp, network};

/// The environment that the agent works in, with what concerns agents only.
pub(super) struct Main {
    pub(super) task: TaskEnvironment,
    pub(super) mcp_servers: Vec<McpServer>,
    pub(super) skills_dir: Option<String>,
}

/// `[environment]`.
pub(super) fn read_main(field: &Field<'_>, reading: &mut Reading) -> Main {
    let Some(mut fields) = field.mapping() else {
        return Main { task: absent(reading), mcp_servers: Vec::new(), skills_dir: None };
    };
    let task = read(&mut fields, reading);
    let mcp_servers = mcp::read(&fields.take("mcp_servers"), reading);
    let skills_dir = absolute(&fields.take("skills_dir"));
    fields.finish();
    Main { task, mcp_servers, skills_dir }
}

/// `[verifier.environment]`: no agent is there to use tools or skills.
pub(super) fn read_own(field: &Field<'_>, reading: &mut Reading) -> Option<TaskEnvironment> {
    let mut fields = field.mapping()?;
    let task = read(&mut fields, reading);
    for key in ["mcp_servers", "skills_dir"] {
        let unused = fields.take(key);
        if unused.is_present() {
            unused.warn("has no effect: no agent runs in a verifier's environment");
        }
    }
    fields.finish();
    Some(task)
}

/// What holds without the table.
fn absent(reading: &Reading) -> TaskEnvironment {
    let mut environment =
        TaskEnvironment { build_sec: reading.defaults.build_sec, ..TaskEnvironment::default() };
    environment.resources.ceilings = reading.defaults.ceilings;
    environment
}

fn read(fields: &mut Fields<'_>, reading: &mut Reading) -> TaskEnvironment {
    let build = fields.take("build_timeout_sec");
    let image = fields.take("docker_image");
    // Tools write an empty one where there is none.
    let named = image.string().filter(|image| !image.is_empty());
    let docker_image = named.and_then(|_| docker_image(&image));
    let mut resources = resources::read_task(fields, reading.defaults.ceilings);
    let gpus = fields.take("gpus");
    resources.gpus = resources::read_gpus(&gpus).unwrap_or(0);
    hardware(fields, &gpus, resources.gpus, reading);
    let network = network::baseline(fields, reading);
    TaskEnvironment {
        docker_image,
        build_sec: timeouts::read(&build, reading.defaults.build_sec),
        resources,
        env: reading.env(&fields.take("env")),
        workdir: absolute(&fields.take("workdir")),
        network,
        healthcheck: healthcheck::read(&fields.take("healthcheck")),
        ..TaskEnvironment::default()
    }
}

/// Hardware and systems that few environments have. Types of graphics processors matter only where
/// some are asked for.
fn hardware(fields: &mut Fields<'_>, gpus: &Field<'_>, count: u32, reading: &mut Reading) {
    let types = fields.take("gpu_types");
    let names = types.items().unwrap_or_default();
    let names: Vec<String> = names.iter().filter_map(Field::name).collect();
    if count > 0 {
        reading.demand(DemandKind::Gpus, gpus);
        if !names.is_empty() {
            reading.demand(DemandKind::GpuTypes(names), &types);
        }
    }
    let os = fields.take("os");
    if os.word(&[("linux", false), ("windows", true)]) == Some(true) {
        reading.demand(DemandKind::Windows, &os);
    }
    let tpu = fields.take("tpu");
    if let Some(mut keys) = tpu.mapping() {
        keys.take("type").string();
        keys.take("topology").string();
        keys.finish();
        reading.demand(DemandKind::Tpu, &tpu);
    }
}

/// The reference of an image.
pub(in crate::config) fn docker_image(field: &Field<'_>) -> Option<String> {
    let image = field.name()?;
    if image.chars().any(|c| c.is_whitespace() || c.is_control()) || image.starts_with('-') {
        field.bad_value("an image reference such as `debian:bookworm-slim`");
        return None;
    }
    Some(image)
}

/// An absolute path inside the environment.
fn absolute(field: &Field<'_>) -> Option<String> {
    let path = field.name()?;
    if !path.starts_with('/') || path.chars().any(char::is_control) {
        field.bad_value("an absolute path inside the environment");
        return None;
    }
    Some(path)
}
