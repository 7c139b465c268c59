//! Agents that do the work of the commands `ideas`, `implement` and `review`.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use rollout_base::regular_file;
use rollout_base::shown_path::shown;
use rollout_protocol::limits::CONFIG_FILE_BYTES;
use rollout_protocol::spec::agent::AgentSpec;
use rollout_protocol::spec::eval::EvalStage;
use rollout_protocol::spec::prompt;
use serde_json::{Map, Value, json};

use super::super::agents_directory;
use super::super::catalogue::AgentCatalogue;
use super::super::diagnostics::ErrorKind;
use super::super::elements::gateway::GatewayConfig;
use super::super::elements::step_agent::{self, StepAgentKeys};
use super::super::reader::{Field, Fields};

/// An agent that does the work of a command.
#[derive(Debug, Clone, PartialEq)]
pub struct StepAgent {
    /// The agent. Its variables do not include those of the command.
    pub spec: AgentSpec,
    /// Template of its prompt.
    pub prompt: String,
    /// Whether the file has the template; otherwise it is the shipped one.
    pub has_own_prompt: bool,
    /// The keys of the file that define the agent, for comparison when the search is resumed.
    pub(super) options: Map<String, Value>,
}

/// Context in which agents of commands are read.
pub(super) struct AgentReading<'a> {
    pub(super) catalogue: Cow<'static, AgentCatalogue>,
    pub(super) gateway: Option<GatewayConfig>,
    /// Directory of the file.
    pub(super) base: &'a Path,
}

impl<'a> AgentReading<'a> {
    /// Reads the keys that the agents of all commands share.
    pub(super) fn new(
        agents_dir: &Field<'_>,
        gateway: Option<GatewayConfig>,
        file: &'a Path,
    ) -> Self {
        let catalogue = agents_directory::catalogue(agents_dir, file);
        Self { catalogue, gateway, base: super::base_dir(file) }
    }

    /// Reads the agent of a command, if it has one. The agent's keys are always taken.
    pub(super) fn read(
        &mut self,
        stage: EvalStage,
        item: &Field<'_>,
        fields: &mut Fields<'_>,
    ) -> Option<StepAgent> {
        let agent = fields.take(StepAgentKeys::agent);
        let (file, text) =
            (fields.take(StepAgentKeys::prompt), fields.take(StepAgentKeys::prompt_text));
        let options = step_agent::take_options(fields);
        if !agent.is_present() {
            for field in options.iter().map(|(_, field)| field).chain([&file, &text]) {
                if field.is_present() {
                    let found = "a key of an agent, without `agent`";
                    field.reject(ErrorKind::Conflict, found, "`agent`, or no such key");
                }
            }
            // Its keys are known all the same.
            return None;
        }
        let own = self.prompt(stage, &file, &text);
        let spec = step_agent::read(item, fields, &self.catalogue, &mut self.gateway)?;
        let given = options
            .iter()
            .filter_map(|(name, field)| Some(((*name).to_owned(), given(name, field)?)));
        let (has_own_prompt, shipped) = (own.is_some(), || shipped_prompt(stage).to_owned());
        Some(StepAgent {
            spec,
            prompt: own.unwrap_or_else(shipped),
            has_own_prompt,
            options: given.collect(),
        })
    }

    /// The template of the file; `None` for the shipped one.
    fn prompt(&self, stage: EvalStage, file: &Field<'_>, inline: &Field<'_>) -> Option<String> {
        if file.is_present() && inline.is_present() {
            inline.reject(ErrorKind::Conflict, "also `prompt`", "only one of the two");
            return None;
        }
        let (field, text) = match file.is_present() {
            true => (file, self.read_prompt(file)?),
            false => (inline, inline.non_empty_string()?),
        };
        if let Err(why) = prompt::check(&text, stage) {
            let known: Vec<_> =
                prompt::placeholders(stage).iter().map(|name| format!("{{{{{name}}}}}")).collect();
            let expected = format!("a template with placeholders of {}", known.join(", "));
            field.reject(ErrorKind::BadValue, why.to_string(), expected);
        }
        Some(text)
    }

    fn read_prompt(&self, field: &Field<'_>) -> Option<String> {
        let path: PathBuf = field.path()?;
        let text = regular_file::read_text(&self.base.join(&path), CONFIG_FILE_BYTES);
        if text.is_err() {
            let found = format!("`{}`, which cannot be read as a text", shown(&path));
            field.reject(ErrorKind::NotFound, found, "a file with a template");
        }
        text.ok()
    }
}

/// The value of an option as written, if it is present.
fn given(name: &str, field: &Field<'_>) -> Option<Value> {
    if !field.is_present() {
        return None;
    }
    if name == StepAgentKeys::args.name {
        let items = field.items().unwrap_or_default();
        return Some(json!(items.iter().filter_map(Field::text).collect::<Vec<_>>()));
    }
    field.text().map(Value::String)
}

/// The shipped template of a step.
fn shipped_prompt(stage: EvalStage) -> &'static str {
    match stage {
        EvalStage::Ideas => include_str!("../../../prompts/ideas.md"),
        EvalStage::Review => include_str!("../../../prompts/review.md"),
        EvalStage::Implement | EvalStage::Tests | EvalStage::Sweep => {
            include_str!("../../../prompts/implement.md")
        }
    }
}

impl StepAgent {
    /// The agent as part of the document of a search.
    pub(super) fn document(&self) -> Map<String, Value> {
        let own_prompt = self.has_own_prompt.then_some(&self.prompt);
        let mut document = self.options.clone();
        document.insert("agent".to_owned(), json!(self.spec.name));
        if let Some(text) = own_prompt {
            document.insert("prompt_text".to_owned(), json!(text));
        }
        let resolved = json!({ "spec": self.spec, "prompt": self.prompt });
        document.insert(RESOLVED.to_owned(), resolved);
        document
    }

    /// Takes scripts and shipped prompt of the document of an earlier session, if the file defines
    /// the same agent: a newer program or catalogue does not change a search that has begun.
    pub(super) fn keep_scripts(&mut self, recorded: &Value) {
        let mut own = self.document();
        own.remove(RESOLVED);
        if own.iter().any(|(key, value)| recorded.get(key) != Some(value)) {
            return;
        }
        let resolved = &recorded[RESOLVED];
        let spec = serde_json::from_value::<AgentSpec>(resolved["spec"].clone());
        let (Ok(spec), Some(prompt)) = (spec, resolved["prompt"].as_str()) else { return };
        // The model server may have another name by now.
        self.spec = AgentSpec { model: self.spec.model.take(), ..spec };
        prompt.clone_into(&mut self.prompt);
    }
}

/// Key of the agent's scripts and prompt in the document of a search.
const RESOLVED: &str = "resolved";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_prompts_are_templates_of_their_steps() {
        for stage in [EvalStage::Ideas, EvalStage::Implement, EvalStage::Review] {
            let text = shipped_prompt(stage);
            assert_eq!(prompt::check(text, stage), Ok(()), "{}", stage.as_str());
            assert!(text.contains("{{metrics}}"), "{}", stage.as_str());
        }
    }
}
