//! Agents and models that the command line selects: every selected agent with every model.

use super::super::diagnostics::Diagnostics;
use super::super::value::{ConfigEntry, ConfigNode, ConfigValue, flag_line};
use super::{CliSetting, CliSettingChange, mapping, reject, remove};

/// Agents that call no model.
const WITHOUT_MODEL: [&str; 2] = ["oracle", "nop"];

/// Applies the selection: agents of the file, or others by name.
pub(super) fn apply(settings: &[CliSetting], root: &mut ConfigNode, problems: &mut Diagnostics) {
    let ConfigValue::Mapping(entries) = &root.value else { return };
    let there = entries.iter().find(|entry| entry.key == "agents");
    let of_file = match there.map(|entry| &entry.node.value) {
        Some(ConfigValue::Sequence(nodes)) => nodes.as_slice(),
        _ => &[],
    };
    let (mut agents, mut models) = (Vec::new(), Vec::new());
    for (index, setting) in settings.iter().enumerate() {
        let line = flag_line(index);
        match &setting.change {
            CliSettingChange::Agent(name) => {
                let own = of_file.iter().find(|node| text(node, "name") == Some(name));
                agents.push(own.cloned().unwrap_or_else(|| named(name, line)));
            }
            CliSettingChange::Model(model) => models.push((model, line)),
            _ => {}
        }
    }
    if agents.is_empty() && models.is_empty() {
        return;
    }
    if agents.is_empty() {
        agents = of_file.to_vec();
    }
    if !agents.is_empty() && agents.iter().all(calls_no_model) {
        let is_model = |setting: &&CliSetting| matches!(setting.change, CliSettingChange::Model(_));
        for setting in settings.iter().filter(is_model) {
            reject(
                setting,
                "a model for agents that call none",
                "an agent that calls a model",
                problems,
            );
        }
    }
    let selected = agents.into_iter().flat_map(|agent| with_models(agent, &models)).collect();
    let line = there.map_or(root.line, |entry| entry.line);
    let node = ConfigNode { line, value: ConfigValue::Sequence(selected) };
    remove(root, "agents");
    if let ConfigValue::Mapping(entries) = &mut root.value {
        entries.push(ConfigEntry { key: "agents".to_owned(), line, node });
    }
}

fn named(name: &str, line: usize) -> ConfigNode {
    let name = ConfigValue::String(name.to_owned());
    ConfigNode { line, value: mapping(&[("name", name)], line) }
}

/// The agent with each of the models. Several models need several names.
fn with_models(agent: ConfigNode, models: &[(&String, usize)]) -> Vec<ConfigNode> {
    let name = text(&agent, "name").map(str::to_owned);
    if models.is_empty() || calls_no_model(&agent) {
        return vec![agent];
    }
    let with = |(model, line): &(&String, usize)| {
        let mut node = agent.clone();
        set(&mut node, "model", model, *line);
        if let (Some(name), true) = (&name, models.len() > 1) {
            if text(&node, "agent").is_none() && !has_scripts(&node) {
                set(&mut node, "agent", name, *line);
            }
            set(&mut node, "name", &format!("{name}-{}", model.replace(['/', '\\'], "-")), *line);
        }
        node
    };
    models.iter().map(with).collect()
}

fn calls_no_model(agent: &ConfigNode) -> bool {
    text(agent, "name").is_some_and(|name| WITHOUT_MODEL.contains(&name))
}

fn has_scripts(node: &ConfigNode) -> bool {
    let ConfigValue::Mapping(entries) = &node.value else { return false };
    entries.iter().any(|entry| ["install", "execute", "harness"].contains(&entry.key.as_str()))
}

/// The text at a key of a mapping.
fn text<'a>(node: &'a ConfigNode, key: &str) -> Option<&'a str> {
    let ConfigValue::Mapping(entries) = &node.value else { return None };
    entries.iter().find_map(|entry| match &entry.node.value {
        ConfigValue::String(text) if entry.key == key => Some(text.as_str()),
        _ => None,
    })
}

fn set(node: &mut ConfigNode, key: &str, text: &str, line: usize) {
    let ConfigValue::Mapping(entries) = &mut node.value else { return };
    entries.retain(|entry| entry.key != key);
    let value = ConfigNode { line, value: ConfigValue::String(text.to_owned()) };
    entries.push(ConfigEntry { key: key.to_owned(), line, node: value });
}

#[cfg(test)]
mod tests {
    use super::super::super::{Diagnostics, JobOptions, job_from_settings};
    use super::*;

    /// Names and models of the agents of a job, or the errors.
    fn agents(settings: Vec<CliSetting>) -> Result<Vec<(String, Option<String>)>, Vec<String>> {
        let mut settings = settings;
        settings.push(CliSetting::dataset("-p d", super::super::CliDataset::Path("d".to_owned())));
        let options = JobOptions { settings, ..JobOptions::for_command_line(&|_| true) };
        let mut problems = Diagnostics::default();
        let job = job_from_settings(&options, &mut problems);
        problems.finish(()).map_err(|errors| errors.lines())?;
        let agents = job.expect("a job").agents.into_iter().map(|agent| {
            let model = agent.spec.model.map(|model| format!("{}/{}", model.provider, model.name));
            (agent.spec.name, model)
        });
        Ok(agents.collect())
    }

    #[test]
    fn agents_and_models_make_their_product() {
        let found = agents(vec![
            CliSetting::agent("-a oracle", "oracle"),
            CliSetting::agent("-a codex", "codex"),
            CliSetting::agent("-a opencode@1.0.0", "opencode@1.0.0"),
            CliSetting::model("-m openai/a", "openai/a"),
            CliSetting::model("-m openrouter/b/c", "openrouter/b/c"),
        ]);
        let of = |name: &str, model: &str| (name.to_owned(), Some(model.to_owned()));
        assert_eq!(
            found.expect("agents"),
            [
                ("oracle".to_owned(), None),
                of("codex-openai-a", "openai/a"),
                of("codex-openrouter-b-c", "openrouter/b/c"),
                of("opencode@1.0.0-openai-a", "openai/a"),
                of("opencode@1.0.0-openrouter-b-c", "openrouter/b/c"),
            ]
        );
    }

    #[test]
    fn agent_with_one_model_keeps_its_name() {
        let found = agents(vec![
            CliSetting::agent("-a claude-code", "claude-code"),
            CliSetting::model("-m anthropic/x", "anthropic/x"),
        ]);
        let expected = ("claude-code".to_owned(), Some("anthropic/x".to_owned()));
        assert_eq!(found.expect("agents"), [expected]);
    }

    #[test]
    fn wrong_agent_and_model_name_their_options() {
        let faults = agents(vec![
            CliSetting::agent("-a codx", "codx"),
            CliSetting::agent("-a codex", "codex"),
            CliSetting::agent("-a claude-code", "claude-code"),
            CliSetting::model("-m opnai/x", "opnai/x"),
        ]);
        let faults = faults.expect_err("errors").join("\n");
        for expected in [
            "-a codx (agents[0]): found no agent with the name `codx`",
            "did you mean `codex`?",
            "-m opnai/x (agents[1].model): found the unknown provider `opnai`",
            "did you mean `openai`?",
        ] {
            assert!(faults.contains(expected), "{expected}: {faults}");
        }
        let faults = agents(vec![
            CliSetting::agent("-a claude-code", "claude-code"),
            CliSetting::agent("-a codex", "codex"),
            CliSetting::model("-m openai/x", "openai/x"),
        ]);
        let faults = faults.expect_err("errors").join("\n");
        let expected = "found openai, which speaks openai, expected a server that speaks anthropic";
        assert!(faults.contains(expected), "{faults}");
        let faults = agents(vec![
            CliSetting::agent("-a oracle", "oracle"),
            CliSetting::model("-m openai/x", "openai/x"),
        ]);
        let faults = faults.expect_err("errors").join("\n");
        assert!(
            faults.contains("-m openai/x: found a model for agents that call none"),
            "{faults}"
        );
        let faults = agents(vec![CliSetting::agent("-a shell", "shell")]).expect_err("no model");
        assert!(faults.join("\n").contains("found no model"), "{faults:?}");
    }
}
