//! Keys of agents about tasks: features of tasks that they use, hosts, continued conversations.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use rollout_base::shown_path::shown;
use rollout_protocol::limits;
use rollout_protocol::spec::agent::{AgentKind, AgentTaskOptions, TaskFeature};

use super::super::catalogue::{AgentEntry, AgentOption};
use super::super::diagnostics::ErrorKind;
use super::super::reader::{Field, Fields};
use super::super::skill_dirs::{self, PackedSkill};
use super::super::task::read_host;
use super::super::trajectory_file;
use super::agents::AgentKeys;

const FEATURES: &[(&str, TaskFeature)] = &[
    (TaskFeature::Mcp.as_str(), TaskFeature::Mcp),
    (TaskFeature::McpSse.as_str(), TaskFeature::McpSse),
    (TaskFeature::Skills.as_str(), TaskFeature::Skills),
    (TaskFeature::Trajectory.as_str(), TaskFeature::Trajectory),
];

/// Parts of tasks that an agent can use, by its definition.
#[derive(Debug, Clone, Default)]
pub(super) struct TaskSupport {
    /// Features that it cannot use.
    unsupported: Vec<TaskFeature>,
    /// The agent, if it cannot continue a conversation.
    cannot_resume: Option<String>,
}

impl TaskSupport {
    /// The parts that an agent of the catalogue can use.
    pub(super) fn of_entry(entry: &AgentEntry) -> Self {
        let options = [
            (AgentOption::Mcp, TaskFeature::Mcp),
            (AgentOption::McpSse, TaskFeature::McpSse),
            (AgentOption::Skills, TaskFeature::Skills),
            (AgentOption::Trajectory, TaskFeature::Trajectory),
        ];
        let lacks = options.into_iter().filter(|(option, _)| !entry.accepts(*option));
        Self {
            unsupported: lacks.map(|(_, feature)| feature).collect(),
            cannot_resume: (!entry.accepts(AgentOption::Resume)).then(|| entry.name.clone()),
        }
    }
}

/// The fields about tasks.
pub(super) struct TaskOptionFields<'a> {
    hosts: Field<'a>,
    resume: Field<'a>,
    unsupported: Field<'a>,
    trajectory: Field<'a>,
    skills: Field<'a>,
}

impl<'a> TaskOptionFields<'a> {
    pub(super) fn take(fields: &mut Fields<'a>) -> Self {
        Self {
            hosts: fields.take(AgentKeys::extra_allowed_hosts),
            resume: fields.take(AgentKeys::resume_trajectory),
            unsupported: fields.take(AgentKeys::unsupported),
            trajectory: fields.take(AgentKeys::load_trajectory),
            skills: fields.take(AgentKeys::skills),
        }
    }

    /// Reads the options of an agent; errors are recorded.
    pub(super) fn read(&self, kind: &AgentKind, support: TaskSupport) -> AgentTaskOptions {
        let resume_trajectory = self.resume.bool().unwrap_or(false);
        let cannot = match kind {
            AgentKind::Oracle => Some("oracle".to_owned()),
            AgentKind::Nop => Some("nop".to_owned()),
            _ => support.cannot_resume,
        };
        if let Some(agent) = cannot.filter(|_| resume_trajectory) {
            let found = format!("`resume_trajectory` of the agent `{agent}`, which cannot do so");
            let expected = "an agent that continues its conversation: `shell`, one with scripts of its \
                            own, or one that `rollout agents show` says so of";
            self.resume.reject(ErrorKind::Unsupported, found, expected);
        }
        let unsupported = if self.unsupported.is_present() {
            if !kind.runs_own_scripts() {
                let found = "features that scripts cannot use";
                self.unsupported.reject(ErrorKind::Conflict, found, "an agent with scripts");
            }
            let items = self.unsupported.items().unwrap_or_default();
            items.iter().filter_map(|item| item.keyword(FEATURES)).collect()
        } else {
            support.unsupported
        };
        let hosts = self.hosts.items().unwrap_or_default();
        let extra_allowed_hosts = hosts.iter().filter_map(read_host).collect();
        AgentTaskOptions {
            unsupported,
            extra_allowed_hosts,
            resume_trajectory,
            trajectory: None,
            skills: Vec::new(),
        }
    }

    /// Reads the skills that the job `file` gives to the agent, by name. Of two with one name, the last
    /// one counts. Errors are recorded.
    pub(super) fn skills(
        &self,
        agent: Option<&str>,
        kind: &AgentKind,
        options: &AgentTaskOptions,
        file: &Path,
    ) -> Vec<PackedSkill> {
        let items = self.skills.items().unwrap_or_default();
        let is_reader = kind.calls_models() && !options.unsupported.contains(&TaskFeature::Skills);
        if !items.is_empty() && !is_reader {
            let found =
                format!("skills, which the agent `{}` cannot use", agent.unwrap_or("of this name"));
            let expected = "`shell`, or an agent with scripts of its own that read them";
            self.skills.reject(ErrorKind::Unsupported, found, expected);
            return Vec::new();
        }
        let base = file.parent().unwrap_or(Path::new(""));
        let mut skills = BTreeMap::new();
        for item in items {
            let Some(path) = item.path() else { continue };
            match skill_dirs::read(&base.join(&path)) {
                Ok(found) => {
                    skills.extend(found.into_iter().map(|skill| (skill.name.clone(), skill)));
                }
                Err(why) => {
                    let found = format!("`{}`, which cannot be used: {why}", shown(&path));
                    let expected = "a directory with the file SKILL.md, or one of such directories";
                    item.reject(ErrorKind::BadValue, found, expected);
                }
            }
        }
        if skills.len() > limits::SKILLS {
            let (found, most) = (format!("{} skills", skills.len()), limits::SKILLS);
            self.skills.reject(ErrorKind::TooLarge, found, format!("at most {most}"));
        }
        skills.into_values().collect()
    }

    /// Reads the conversation that the agent continues, if the job `file` names one; errors are
    /// recorded.
    pub(super) fn trajectory(
        &self,
        agent: Option<&str>,
        kind: &AgentKind,
        options: &AgentTaskOptions,
        file: &Path,
    ) -> Option<Bytes> {
        let path = self.trajectory.path()?;
        let is_reader =
            kind.calls_models() && !options.unsupported.contains(&TaskFeature::Trajectory);
        if !is_reader {
            let agent = agent.unwrap_or("of this name");
            let found = format!("a conversation, which the agent `{agent}` cannot continue");
            let expected = "`shell`, or an agent with scripts of its own that read it";
            self.trajectory.reject(ErrorKind::Unsupported, found, expected);
            return None;
        }
        let path = file.parent().unwrap_or(Path::new("")).join(path);
        match trajectory_file::read_valid(&path) {
            Ok(bytes) => Some(bytes.into()),
            Err(why) => {
                let found = format!("`{}`, which cannot be used: {why}", shown(&path));
                let expected = "a file with a trajectory in Harbor's format (ATIF)";
                self.trajectory.reject(ErrorKind::BadValue, found, expected);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout_protocol::spec::agent::TaskFeature::{Mcp, McpSse, Skills, Trajectory};

    use super::super::testing::{agents as read, read_field};
    use super::*;

    fn options(text: &str) -> (Vec<AgentTaskOptions>, Vec<(String, ErrorKind)>) {
        let (agents, faults, _) = read_field(text, read);
        (agents.into_iter().map(|agent| agent.task_options).collect(), faults)
    }

    #[test]
    fn agents_of_catalogue_lack_features_that_their_entries_do_not_accept() {
        let text = "[{name: aider, model: openai/m}, {name: claude-code, model: anthropic/m}, \
                    {name: codex, model: openai/m}, {name: s, execute: x}]";
        let (found, faults) = options(text);
        assert_eq!(faults, []);
        let lacks: Vec<_> = found.into_iter().map(|options| options.unsupported).collect();
        let none = vec![Mcp, McpSse, Skills, Trajectory];
        assert_eq!(lacks, [none, vec![], vec![McpSse], vec![]]);
    }

    #[test]
    fn options_of_agent_with_scripts_are_read() {
        let text = "[{name: s, execute: x, unsupported: [skills], resume_trajectory: true, extra_allowed_hosts: ['*.a.b', '10.0.0.0/8']}]";
        let (found, faults) = options(text);
        assert_eq!(faults, []);
        let expected = AgentTaskOptions {
            unsupported: vec![Skills],
            extra_allowed_hosts: vec!["*.a.b".into(), "10.0.0.0/8".into()],
            resume_trajectory: true,
            trajectory: None,
            skills: Vec::new(),
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn options_that_agent_cannot_have_are_refused() {
        let text = "[{name: oracle, resume_trajectory: true}, {name: aider, model: openai/m, resume_trajectory: true}, {name: nop, unsupported: [mcp]}, {name: s, execute: x, unsupported: [tools], extra_allowed_hosts: ['http://a']}, {name: aider-2, agent: aider, model: openai/m, skills: [/absent]}, {name: t, execute: x, skills: [/absent]}]";
        let expected = [
            ("x[0].resume_trajectory", ErrorKind::Unsupported),
            ("x[1].resume_trajectory", ErrorKind::Unsupported),
            ("x[2].unsupported", ErrorKind::Conflict),
            ("x[3].unsupported[0]", ErrorKind::BadValue),
            ("x[3].extra_allowed_hosts[0]", ErrorKind::BadValue),
            ("x[4].skills", ErrorKind::Unsupported),
            ("x[5].skills[0]", ErrorKind::BadValue),
        ];
        assert_eq!(options(text).1, expected.map(|(key, kind)| (key.to_owned(), kind)));
    }
}
