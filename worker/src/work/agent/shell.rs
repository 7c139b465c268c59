//! Execution of the agent `shell`: its model calls go through the gateway, its commands run in the
//! environment.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollout_environment::{
    CommandExit, Environment, ExecCommand, Failure, OutputSink, OutputStream,
};
use rollout_gateway::agents::{
    self, BoundedOutput, INSTRUCTION_VARIABLE, PriorConversation, SKILLS_VARIABLE, ShellCommand,
    ShellRequest, ShellSession, ShellStep,
};
use rollout_gateway::{GatewayReply, TryGateway};
use rollout_protocol::spec::agent::{AgentKind, AgentSpec, ShellSpec};
use rollout_protocol::spec::gateway::{GatewaySpec, ModelDialect};
use tokio::sync::watch;

use super::ScriptEnv;
use crate::executor;

/// Largest instruction with the texts that a job adds, bytes.
const INSTRUCTION_BYTES: usize = 1280 * 1024;

/// Prints the paths of the task's skills and the first lines of each, which describe it.
const LIST_SKILLS: &str = "\
for file in \"$ROLLOUT_SKILLS_DIR\"/SKILL.md \"$ROLLOUT_SKILLS_DIR\"/*/SKILL.md; do
  [ -f \"$file\" ] || continue
  printf '%s\\n' \"$file\"
  head -n 12 -- \"$file\"
  printf '\\n'
done";

/// Wait before a call is repeated, if the server does not name one.
const REPEAT_PAUSE: Duration = Duration::from_secs(5);

/// Longest wait before a call is repeated.
const MAX_REPEAT_PAUSE: Duration = Duration::from_secs(60);

/// The agent, ready to attempt a step.
#[derive(Debug)]
pub(in crate::work) struct ShellAgent {
    spec: ShellSpec,
    model: String,
    dialect: ModelDialect,
    gateway: Arc<dyn TryGateway>,
    /// The conversation of the step before, if it is continued.
    kept: KeptSession,
    /// The conversation that the step begins with.
    prior: Option<Arc<PriorConversation>>,
}

/// The conversation of a trial between its steps.
pub(in crate::work) type KeptSession = Arc<Mutex<Option<ShellSession>>>;

/// Where and how its commands run.
pub(in crate::work) struct ShellPlace<'a> {
    pub(in crate::work) environment: &'a dyn Environment,
    pub(in crate::work) env: ScriptEnv,
    pub(in crate::work) workdir: Option<String>,
    pub(in crate::work) user: Option<String>,
    /// Gets everything that the agent says and its commands print.
    pub(in crate::work) output: Arc<dyn OutputSink>,
    /// True when the agent must end its call and begin nothing new.
    pub(in crate::work) stopped: watch::Receiver<bool>,
}

impl ShellAgent {
    /// The loop of an agent; `None` if it is another one, or its model server is missing. `kept`: the
    /// conversation of the step before, if the agent continues it.
    pub(in crate::work) fn new(
        agent: &AgentSpec,
        servers: Option<&GatewaySpec>,
        gateway: Option<&Arc<dyn TryGateway>>,
        kept: &KeptSession,
    ) -> Option<Self> {
        let AgentKind::Shell(spec) = &agent.kind else { return None };
        let model = agent.model.as_ref()?;
        let upstream = servers?.upstreams.iter().find(|server| server.name == model.upstream)?;
        Some(Self {
            spec: spec.clone(),
            model: model.name.clone(),
            dialect: upstream.dialect,
            gateway: Arc::clone(gateway?),
            kept: match agent.task_options.resume_trajectory {
                true => Arc::clone(kept),
                false => KeptSession::default(),
            },
            prior: None,
        })
    }

    /// Lets it continue an earlier conversation, and not that of the step before.
    pub(in crate::work) fn with_prior(mut self, prior: Option<Arc<PriorConversation>>) -> Self {
        self.prior = prior;
        self
    }

    /// The conversation, which begins with the instruction of the step or continues with it.
    async fn session(
        &self,
        place: &ShellPlace<'_>,
        instruction: &str,
    ) -> Result<ShellSession, Failure> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut session) = kept.filter(|_| self.prior.is_none()) {
            session.resume(&self.spec, instruction);
            return Ok(session);
        }
        let skills = if place.env.contains_key(SKILLS_VARIABLE) {
            let list = Collected::new(agents::OUTPUT_BYTES, None);
            place.exec(LIST_SKILLS, Arc::clone(&list)).await?;
            let list = list.text();
            if list.is_empty() {
                place.warn("there are no skills in the directory of the task's skills");
            }
            Some(list).filter(|list| !list.is_empty())
        } else {
            None
        };
        let (spec, model) = (&self.spec, &self.model);
        let (skills, prior) = (skills.as_deref(), self.prior.as_deref());
        Ok(ShellSession::new(spec, model, self.dialect, instruction, skills, prior))
    }

    /// Attempts the step. The exit code is 0 if the model says that it is done.
    pub(in crate::work) async fn run(self, place: ShellPlace<'_>) -> Result<CommandExit, Failure> {
        let read = format!("cat -- \"${INSTRUCTION_VARIABLE}\"");
        let instruction = Collected::new(INSTRUCTION_BYTES, None);
        let exit = place.exec(&read, Arc::clone(&instruction)).await?;
        if exit.code != 0 {
            return Ok(place.fail("cannot read the instruction"));
        }
        let instruction = instruction.text();
        let mut session = self.session(&place, &instruction).await?;
        let exit = self.converse(&mut session, &place).await?;
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        Ok(exit)
    }

    /// Calls the model and runs its commands until it is done.
    async fn converse(
        &self,
        session: &mut ShellSession,
        place: &ShellPlace<'_>,
    ) -> Result<CommandExit, Failure> {
        while let Some(request) = session.next_request() {
            let called = tokio::select! {
                biased;
                () = place.wait_until_stopped() => None,
                reply = self.call(&request) => Some(reply),
            };
            let Some(reply) = called else { return Ok(place.fail("it was stopped")) };
            if reply.status != 200 {
                let body = String::from_utf8_lossy(&reply.body);
                return Ok(place.fail(&format!(
                    "the model server answered with status {}: {body}",
                    reply.status
                )));
            }
            match session.read_reply(&reply.body) {
                Err(unknown) => return Ok(place.fail(&unknown.to_string())),
                Ok(ShellStep::Done(text)) => {
                    place.say(&text);
                    return Ok(CommandExit { code: 0 });
                }
                Ok(ShellStep::Run { text, commands }) => {
                    place.say(&text);
                    let mut outputs = Vec::new();
                    for command in commands {
                        let output = self.run_command(&command, place).await?;
                        outputs.push((command.id, output));
                    }
                    session.add_outputs(&outputs);
                }
            }
        }
        Ok(place.fail(&format!("the model did not end within {} calls", self.spec.max_turns)))
    }

    /// Calls the model. A call that the server or the gateway asks to repeat is repeated, as long as
    /// the agent has time.
    async fn call(&self, request: &ShellRequest) -> GatewayReply {
        loop {
            let reply = self.gateway.call(self.dialect, &request.path, request.body.clone()).await;
            if !matches!(reply.status, 429 | 502 | 503 | 504 | 529) {
                return reply;
            }
            let pause = reply.retry_after.unwrap_or(REPEAT_PAUSE).min(MAX_REPEAT_PAUSE);
            tokio::time::sleep(pause).await;
        }
    }

    /// Runs a command; returns the text for the model.
    async fn run_command(
        &self,
        command: &ShellCommand,
        place: &ShellPlace<'_>,
    ) -> Result<String, Failure> {
        let Some(text) = &command.command else {
            return Ok("there is only the tool `bash`, with the parameter `command`".to_owned());
        };
        if place.is_stopped() {
            return Ok(String::new());
        }
        place.say(&format!("$ {text}"));
        let output = Collected::new(agents::OUTPUT_BYTES, Some(Arc::clone(&place.output)));
        let limit = Duration::from_secs_f64(self.spec.command_sec);
        let ran = tokio::time::timeout(limit, place.exec(text, Arc::clone(&output))).await;
        let end = match ran {
            Ok(exit) => format!("exit code {}", exit?.code),
            Err(_) => {
                if let Some(left) = executor::kill_processes(place.environment).await {
                    return Err(left);
                }
                format!("killed after {} s, with all other processes", limit.as_secs_f64())
            }
        };
        Ok(format!("{end}\n{}", output.text()))
    }
}

impl ShellPlace<'_> {
    async fn exec(&self, text: &str, output: Arc<Collected>) -> Result<CommandExit, Failure> {
        let command = ExecCommand {
            argv: agents::shell(text.to_owned()),
            env: self.env.clone(),
            workdir: self.workdir.clone(),
            user: self.user.clone(),
        };
        self.environment.exec(command, output).await
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    async fn wait_until_stopped(&self) {
        let mut stopped = self.stopped.clone();
        // The sender lives as long as the agent runs.
        if stopped.wait_for(|stopped| *stopped).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn say(&self, text: &str) {
        if !text.is_empty() {
            self.output.write(OutputStream::Stdout, format!("{text}\n").as_bytes());
        }
    }

    fn warn(&self, text: &str) {
        self.output.write(OutputStream::Stderr, format!("shell: {text}\n").as_bytes());
    }

    fn fail(&self, why: &str) -> CommandExit {
        self.warn(why);
        CommandExit { code: 1 }
    }
}

/// The output of a command, bounded, and passed on.
struct Collected {
    kept: Mutex<BoundedOutput>,
    passed_on: Option<Arc<dyn OutputSink>>,
}

impl Collected {
    fn new(most: usize, passed_on: Option<Arc<dyn OutputSink>>) -> Arc<Self> {
        Arc::new(Self { kept: Mutex::new(BoundedOutput::new(most)), passed_on })
    }

    fn text(&self) -> String {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).text()
    }
}

impl OutputSink for Collected {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        if let Some(sink) = &self.passed_on {
            sink.write(stream, bytes);
        }
    }
}
