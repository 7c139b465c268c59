//! Options of `rollout run` for those who know Harbor: its spellings, and what only its options set.

use std::path::{Path, PathBuf};

use clap::Args;
use rollout_base::regular_file;
use rollout_protocol::limits::CONFIG_FILE_BYTES;

use super::overrides::pair;
use crate::config::{CliSetting, expected_retry, mcp_settings};

/// Harbor's spellings of keys of the job.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Harbor's options")]
pub(super) struct HarborOptions {
    /// Memory of every environment, MiB
    #[arg(hide = true, long, value_name = "MIB", conflicts_with = "override_memory")]
    override_memory_mb: Option<String>,

    /// Storage of every environment, MiB
    #[arg(hide = true, long, value_name = "MIB", conflicts_with = "override_storage")]
    override_storage_mb: Option<String>,

    /// Remove every environment after its trial, as without the option
    #[arg(hide = true, long, conflicts_with_all = ["no_delete", "preserve_env"])]
    delete: bool,

    /// Build images with the cache, as without the option
    #[arg(hide = true, long, conflicts_with = "force_build")]
    no_force_build: bool,

    /// Run the test scripts, as without the option
    #[arg(hide = true, long, conflicts_with = "disable_verification")]
    enable_verification: bool,

    /// Reasoning effort of every agent: `--ak effort=LEVEL`
    #[arg(hide = true, long, value_name = "LEVEL")]
    effort: Option<String>,

    /// Setting of the provider, with its value in YAML: `--ek network=none`
    #[arg(hide = true, long = "ek", alias = "environment-kwarg", value_name = "KEY=VALUE")]
    environment_key: Vec<String>,

    /// Host that may be reached in tasks without network or with an allowlist
    #[arg(hide = true, long, value_name = "HOST")]
    allow_environment_host: Vec<String>,

    /// Host that test scripts may reach in such tasks
    #[arg(hide = true, long, value_name = "HOST")]
    allow_verifier_host: Vec<String>,

    /// File with MCP servers for agents, as `environment.mcp_servers`
    #[arg(hide = true, long, value_name = "FILE")]
    mcp_config: Vec<PathBuf>,

    /// Directory with skills for agents, as `agents[].skills`
    #[arg(hide = true, long = "skill", alias = "skills", value_name = "DIR")]
    skill: Vec<PathBuf>,

    /// Compose file that is merged onto those of tasks, as `environment.extra_docker_compose`
    #[arg(hide = true, long, value_name = "FILE")]
    extra_docker_compose: Vec<PathBuf>,

    /// Install the agents and end, as `install_only`
    #[arg(hide = true, long)]
    install_only: bool,

    /// Exception of Harbor that stands for a failure of the infrastructure: these are repeated anyway
    #[arg(hide = true, long, value_name = "EXCEPTION")]
    retry_include: Vec<String>,

    /// Exception of Harbor that stands for another failure: these are never repeated
    #[arg(hide = true, long, value_name = "EXCEPTION")]
    retry_exclude: Vec<String>,

    /// Print the job as JSON, with all its keys, and start nothing
    #[arg(hide = true, long, conflicts_with = "dry_run")]
    pub(super) print_config: bool,
}

impl HarborOptions {
    /// Adds the settings.
    ///
    /// # Errors
    /// An option is not `KEY=VALUE`, names an exception that cannot be chosen, a file without MCP
    /// servers, or a path that is no UTF-8.
    pub(super) fn add_to(&self, settings: &mut Vec<CliSetting>) -> Result<(), String> {
        for (flag, names, is_included) in [
            ("--retry-include", &self.retry_include, true),
            ("--retry-exclude", &self.retry_exclude, false),
        ] {
            for name in names {
                if let Some(expected) = expected_retry(name, is_included) {
                    return Err(format!("cannot use `{flag} {name}`: expected {expected}"));
                }
            }
        }
        for (flag, key, value) in [
            ("--override-memory-mb", "environment.override_memory_mb", &self.override_memory_mb),
            ("--override-storage-mb", "environment.override_storage_mb", &self.override_storage_mb),
        ] {
            if let Some(value) = value {
                settings.push(CliSetting::plain(&format!("{flag} {value}"), key, value));
            }
        }
        if let Some(effort) = &self.effort {
            let text = serde_json::Value::from(effort.as_str()).to_string();
            let flag = format!("--effort {effort}");
            settings.push(CliSetting::each_agent_key(&flag, "effort", &text));
        }
        for text in &self.environment_key {
            let (key, value) = pair("--ek", text)?;
            let path = format!("environment.provider_config.{key}");
            settings.push(CliSetting::yaml(&format!("--ek {key}"), &path, value));
        }
        for (flag, key, hosts) in [
            (
                "--allow-environment-host",
                "environment.extra_allowed_hosts",
                &self.allow_environment_host,
            ),
            ("--allow-verifier-host", "verifier.extra_allowed_hosts", &self.allow_verifier_host),
        ] {
            for host in hosts {
                settings.push(CliSetting::item(&format!("{flag} {host}"), key, host));
            }
        }
        self.add_paths(settings)?;
        if self.install_only {
            settings.push(CliSetting::plain("--install-only", "install_only", "true"));
        }
        for file in &self.mcp_config {
            let text = regular_file::read_any_text(file, CONFIG_FILE_BYTES).map_err(|error| {
                format!("cannot read the MCP servers in {}: {error}", file.display())
            })?;
            settings.extend(mcp_settings(file, &text)?);
        }
        Ok(())
    }

    /// Adds the settings whose values are paths.
    fn add_paths(&self, settings: &mut Vec<CliSetting>) -> Result<(), String> {
        for path in &self.skill {
            let (flag, path) = with_path("--skill", path)?;
            settings.push(CliSetting::each_agent_item(&flag, "skills", path));
        }
        for path in &self.extra_docker_compose {
            let (flag, path) = with_path("--extra-docker-compose", path)?;
            settings.push(CliSetting::item(&flag, "environment.extra_docker_compose", path));
        }
        Ok(())
    }
}

/// An option with its path, for messages, and the path as text.
fn with_path<'a>(flag: &str, path: &'a Path) -> Result<(String, &'a str), String> {
    let flag = format!("{flag} {}", path.display());
    path.to_str()
        .map(|path| (flag.clone(), path))
        .ok_or_else(|| format!("{flag}: the path is no UTF-8"))
}
