//! Skills and MCP servers of tasks in the Harbor format, conversations that continue in the next step,
//! and extra instructions.

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::model_server::{ModelServer, ScriptedTask};
use rollout_tests::project::Project;
use rollout_tests::results::TrialDirectory;

use crate::agents::fixture::{AgentRun, assert_solved, task};
use crate::agents::programs::is_tested;
use crate::agents::{DEADLINE, INSTALL_DEADLINE};

/// An MCP server with the tool `write_NAME`, which writes its text to /tmp/NAME. It speaks on its
/// standard streams, or as an HTTP server on a port, where it has the tool `write_stream` below `/sse`,
/// with server-sent events.
const MCP_SERVER: &str = r#"
use IO::Socket::INET;
my ($name, $port) = @ARGV;
sub answer {
  my ($line, $name) = @_;
  return unless $line =~ /"id":("[^"]*"|\d+)/;
  my ($id, $result) = ($1, '{}');
  my ($method) = $line =~ /"method":"([^"]+)"/;
  if ($method eq 'initialize') {
    my ($version) = $line =~ /"protocolVersion":"([^"]+)"/;
    $result = qq({"protocolVersion":"$version","capabilities":{"tools":{}},"serverInfo":{"name":"$name","version":"1"}});
  } elsif ($method eq 'tools/list') {
    $result = qq({"tools":[{"name":"write_$name","description":"Writes a text","inputSchema":{"type":"object","properties":{"message":{"type":"string"}},"required":["message"]}}]});
  } elsif ($method eq 'tools/call') {
    my ($text) = $line =~ /"message":"([^"]*)"/;
    open(my $file, '>', "/tmp/$name") or die; print $file $text; close($file);
    $result = '{"content":[{"type":"text","text":"written"}]}';
  }
  return qq({"jsonrpc":"2.0","id":$id,"result":$result});
}
($|, $SIG{PIPE}) = (1, 'IGNORE');
if (!$port) { while (my $line = <STDIN>) { my $said = answer($line, $name); print "$said\n" if $said; } exit; }
my $server = IO::Socket::INET->new(Listen => 9, LocalAddr => '127.0.0.1', LocalPort => $port, ReuseAddr => 1) or die;
my @streams;
while (my $client = $server->accept()) {
  my ($length, $request, $body) = (0, scalar(<$client>), '');
  while (my $header = <$client>) { last if $header =~ /^\r?$/; $length = $1 if $header =~ /^content-length: *(\d+)/i; }
  read($client, $body, $length) if $length;
  if ($request =~ m{^GET /sse}) {
    push(@streams, $client);
    print $client "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: endpoint\ndata: /messages/$#streams\n\n";
    next;
  }
  my ($stream) = $request =~ m{^POST /messages/(\d+)};
  my $said = $request =~ m{^POST /m} ? answer($body, defined($stream) ? 'stream' : $name) : undef;
  if (defined($stream) && $said) { print { $streams[$stream] } "event: message\ndata: $said\n\n"; $said = undef; }
  my $status = $request !~ m{^POST /m} ? '405 No' : $said ? '200 OK' : '202 Accepted';
  $said //= '';
  print $client "HTTP/1.1 $status\r\nContent-Type: application/json\r\nContent-Length: ", length($said), "\r\nConnection: close\r\n\r\n$said";
  close($client);
}
"#;

/// A skill.
const SKILL: &str = "---\nname: zebra\ndescription: Work with zebra files\n---\nCount stripes.\n";

/// A task with a skill, and MCP servers over standard streams and over HTTP. The first check of its
/// health starts the latter, a later one finds it.
const TASK: &str = r#"
schema_version = '1.4'
[environment]
skills_dir = '/skills'
[environment.healthcheck]
command = '(exec 3<>/dev/tcp/127.0.0.1/8931) || { setsid perl /opt/mcp.pl remote 8931 </dev/null >/dev/null 2>&1 & exit 1; }'
interval_sec = 1
retries = 9
[[environment.mcp_servers]]
name = 'near'
transport = 'stdio'
command = 'perl'
args = ['/opt/mcp.pl', 'local']
[[environment.mcp_servers]]
name = 'far'
transport = 'streamable-http'
url = 'http://127.0.0.1:8931/mcp'
"#;

/// Adds lines to the Dockerfile of the task.
fn add_to_image(project: &Project, lines: &str) {
    let path = project.path().join("tasks/t/environment/Dockerfile");
    let image = std::fs::read_to_string(&path).expect("a Dockerfile");
    std::fs::write(path, format!("{image}{lines}")).expect("written");
}

fn write_skills(project: &Project) {
    project.write_file("tasks/t/environment/skills/zebra/SKILL.md", SKILL);
    add_to_image(project, "COPY skills /skills\n");
}

#[track_caller]
fn assert_passed(trial: &TrialDirectory, server: &ModelServer) {
    let output = trial.text("command/stdout.txt").unwrap_or_default();
    let errors = trial.text("command/stderr.txt").unwrap_or_default();
    assert_eq!(trial.reward(), Some(1.0), "{:#}\n{output}\n{errors}", trial.result);
    assert!(!server.calls().is_empty());
}

fn request(server: &ModelServer, call: usize) -> String {
    String::from_utf8_lossy(&server.calls()[call].request).into_owned()
}

/// The server with server-sent events.
const SSE_SERVER: &str = "[[environment.mcp_servers]]\nname = 'old'\ntransport = 'sse'\n\
                          url = 'http://127.0.0.1:8931/sse'\n";

/// Runs an agent with a task that its model solves with the tools of its servers, if the agent has MCP
/// servers, and with the shell otherwise; its skill is in the requests.
#[track_caller]
fn assert_uses_tools(agent: &'static str, dialect: &'static str, tools: &[&str]) {
    if !is_tested(agent) {
        return;
    }
    let run = AgentRun::on_docker(agent, dialect);
    let texts = [("local", "elk"), ("remote", "moose"), ("stream", "deer")];
    let used = texts.into_iter().filter(|(name, _)| tools.contains(name));
    let tool_calls =
        used.clone().map(|(name, text)| (format!("write_{name}"), text.to_owned())).collect();
    let server = ModelServer::start_scripted(ScriptedTask { tool_calls, ..task() });
    let project = run.project();
    project.write_agent_image("tasks/t/environment");
    write_skills(&project);
    let mut toml = TASK.to_owned();
    if tools.contains(&"stream") {
        toml.push_str(SSE_SERVER);
    }
    if tools.is_empty() {
        toml = "schema_version = '1.4'\n[environment]\nskills_dir = '/skills'\n".to_owned();
    }
    project.write_file("tasks/t/environment/mcp.pl", MCP_SERVER);
    add_to_image(&project, "COPY mcp.pl /opt/mcp.pl\n");
    project.write_file("tasks/t/task.toml", &toml);
    let checks: String = used
        .map(|(name, text)| format!("[ \"$(cat /tmp/{name})\" = {text} ] || reward=0\n"))
        .collect();
    let solved = "[ \"$(cat answer.txt)\" = 42 ] && reward=1";
    let tests = format!("{solved}\n{checks}echo ${{reward:-0}} >/logs/verifier/reward.txt\n");
    project.write_file("tasks/t/tests/test.sh", &tests);
    let trial = run.run_in(&project, &server, INSTALL_DEADLINE);
    assert_passed(&trial, &server);
    let requests: Vec<_> = (0..server.calls().len()).map(|call| request(&server, call)).collect();
    assert!(requests.iter().any(|text| text.contains("Work with zebra files")), "{}", requests[0]);
}

macro_rules! agents_with_tools {
    ($($test:ident: $agent:literal in $dialect:literal with $tools:expr;)*) => {
        $(
            #[test]
            fn $test() {
                assert_uses_tools($agent, $dialect, &$tools);
            }
        )*
    };
}

agents_with_tools! {
    claude_code_uses_mcp_servers_and_skills_of_task_on_docker:
        "claude-code" in "anthropic" with ["local", "remote", "stream"];
    codex_uses_mcp_servers_and_skills_of_task_on_docker:
        "codex" in "openai" with ["local", "remote"];
    copilot_cli_uses_mcp_servers_and_skills_of_task_on_docker:
        "copilot-cli" in "openai" with ["local", "remote", "stream"];
    gemini_cli_uses_mcp_servers_and_skills_of_task_on_docker:
        "gemini-cli" in "gemini" with ["local", "remote", "stream"];
    opencode_uses_mcp_servers_and_skills_of_task_on_docker:
        "opencode" in "openai" with ["local", "remote", "stream"];
    pi_uses_skills_of_task_on_docker: "pi" in "openai" with [];
    qwen_code_uses_mcp_servers_and_skills_of_task_on_docker:
        "qwen-code" in "openai" with ["local", "remote", "stream"];
}

/// A run of the agent `shell`.
fn shell(environment: &str, options: Vec<&'static str>) -> AgentRun {
    let job = format!("environment: {environment}\n");
    AgentRun { agent: "shell", dialect: "openai", job, options }
}

/// A run of the agent `shell` in a sandbox.
fn shell_in_sandbox(options: Vec<&'static str>) -> AgentRun {
    shell("{type: process, provider_config: {ignore_dockerfile: true}}", options)
}

#[test]
fn shell_gets_skills_of_task_in_its_system_prompt_on_docker() {
    if DockerEngine::available().is_none() {
        return;
    }
    let run = shell("{type: docker}", Vec::new());
    let server = ModelServer::start_scripted(task());
    let project = run.project();
    write_skills(&project);
    let toml = "schema_version = '1.4'\n[environment]\nskills_dir = '/skills'\nworkdir = '/app'\n";
    project.write_file("tasks/t/task.toml", toml);
    let trial = run.run_in(&project, &server, DEADLINE);
    assert_passed(&trial, &server);
    let text = request(&server, 0);
    assert!(text.contains("/skills/zebra/SKILL.md") && text.contains("Work with zebra"), "{text}");
}

#[test]
fn shell_gets_skills_of_job_in_its_system_prompt_in_sandbox() {
    let (run, server) =
        (shell_in_sandbox(vec!["--skill", "skills"]), ModelServer::start_scripted(task()));
    let project = run.project();
    project.write_file("skills/zebra/SKILL.md", SKILL);
    let trial = run.run_in(&project, &server, DEADLINE);
    assert_passed(&trial, &server);
    let text = request(&server, 0);
    let place = "/rollout/skills/zebra/SKILL.md";
    assert!(text.contains(place) && text.contains("Work with zebra"), "{text}");
}

#[test]
fn task_with_mcp_servers_is_unsupported_by_shell() {
    let (run, server) = (shell_in_sandbox(Vec::new()), ModelServer::start_scripted(task()));
    let project = run.project();
    let toml = "[[environment.mcp_servers]]\nname = 'm'\ntransport = 'stdio'\ncommand = 'm'\n";
    project.write_file("tasks/t/task.toml", &format!("schema_version = '1.4'\n{toml}"));
    let trial = run.end_in(&project, &server, DEADLINE, ExitCode::NothingMeasured);
    assert_eq!(trial.result["error"]["code"], "unsupported_by_environment", "{:#}", trial.result);
    let expected = "the task t has MCP servers, which the agent `shell` cannot use";
    assert_eq!(trial.message(), expected);
    assert!(server.calls().is_empty());
}

#[test]
fn shell_continues_its_conversation_in_next_step_if_asked_in_sandbox() {
    for resume in [false, true] {
        let options = if resume { vec!["--resume-trajectory"] } else { Vec::new() };
        let (run, server) = (shell_in_sandbox(options), ModelServer::start_scripted(task()));
        let project = run.project();
        let steps = "schema_version = '1.4'\n[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n";
        project.write_file("tasks/t/task.toml", steps);
        for step in ["one", "two"] {
            let directory = format!("tasks/t/steps/{step}");
            let text = format!("Write 42 to answer.txt in step {step}.\n");
            project.write_file(&format!("{directory}/instruction.md"), &text);
            let tests = "echo 1 >/logs/verifier/reward.txt\n";
            project.write_file(&format!("{directory}/tests/test.sh"), tests);
        }
        std::fs::remove_file(project.path().join("tasks/t/instruction.md")).expect("removed");
        let trial = run.run_in(&project, &server, DEADLINE);
        assert_passed(&trial, &server);
        let last = request(&server, server.calls().len() - 1);
        assert!(last.contains("in step two"), "{last}");
        assert_eq!(last.contains("in step one"), resume, "{last}");
    }
}

/// An earlier conversation, in which somebody else asked for another file.
const TRAJECTORY: &str = r#"{"schema_version": "ATIF-v1.8", "agent": {"name": "a", "version": "1"}, "steps": [
    {"step_id": 1, "source": "user", "message": "Where is the walrus?"},
    {"step_id": 2, "source": "agent", "message": "I look.", "tool_calls": [
        {"tool_call_id": "x", "function_name": "bash", "arguments": {"command": "ls /zoo"}}],
     "observation": {"results": [{"source_call_id": "x", "content": "walrus-7"}]}},
    {"step_id": 3, "source": "agent", "message": "In the zoo."}]}"#;

#[test]
fn shell_continues_conversation_of_task_or_of_job_in_every_dialect_in_sandbox() {
    for dialect in ["openai", "anthropic", "gemini"] {
        for of_job in [false, true] {
            let options = if of_job { vec!["--load-trajectory", "other.json"] } else { Vec::new() };
            let run = AgentRun { dialect, ..shell_in_sandbox(options) };
            let server = ModelServer::start_scripted(task());
            let project = run.project();
            project.write_file("tasks/t/trajectory.json", TRAJECTORY);
            project.write_file("other.json", &TRAJECTORY.replace("walrus", "gnu"));
            let trial = run.run_in(&project, &server, DEADLINE);
            // The scripted model takes the earlier command for its own, and ends.
            assert_eq!((trial.message(), server.calls().len()), ("", 1), "{:#}", trial.result);
            let text = request(&server, 0);
            let animal = if of_job { "gnu" } else { "walrus" };
            for part in [format!("Where is the {animal}?"), format!("{animal}-7"), "ls /zoo".into()]
            {
                assert!(text.contains(&part), "{dialect}, {part}: {text}");
            }
            assert_eq!(text.contains("walrus"), !of_job, "{text}");
        }
    }
}

/// Runs a program of the catalogue that continues the conversation of a task.
#[track_caller]
fn assert_continues(agent: &'static str, dialect: &'static str) {
    if !is_tested(agent) {
        return;
    }
    let run = AgentRun::on_docker(agent, dialect);
    let server = ModelServer::start_scripted(task());
    let project = run.project();
    project.write_agent_image("tasks/t/environment");
    project.write_file("tasks/t/trajectory.json", TRAJECTORY);
    let trial = run.run_in(&project, &server, INSTALL_DEADLINE);
    assert_solved(agent, &project, &trial, &server);
    let text = request(&server, 0);
    let parts = ["Where is the walrus?", "[ran ls /zoo]", "walrus-7", "In the zoo."];
    let places = parts.map(|part| text.find(part).unwrap_or_else(|| panic!("no {part}: {text}")));
    assert!(places.is_sorted(), "{places:?}: {text}");
}

macro_rules! agents_that_continue {
    ($($test:ident: $agent:literal in $dialect:literal;)*) => {
        $(
            #[test]
            fn $test() {
                assert_continues($agent, $dialect);
            }
        )*
    };
}

agents_that_continue! {
    claude_code_continues_conversation_of_task_on_docker: "claude-code" in "anthropic";
    codex_continues_conversation_of_task_on_docker: "codex" in "openai";
    gemini_cli_continues_conversation_of_task_on_docker: "gemini-cli" in "gemini";
    pi_continues_conversation_of_task_on_docker: "pi" in "openai";
    qwen_code_continues_conversation_of_task_on_docker: "qwen-code" in "openai";
}

#[test]
fn scripts_get_the_conversation_of_a_task_as_a_file_in_sandbox() {
    let job = "environment: {type: process, provider_config: {ignore_dockerfile: true}}\n\
               agents: [{name: mine, execute: 'grep -q walrus-7 $ROLLOUT_TRAJECTORY && grep -q walrus-7 $ROLLOUT_CONVERSATION && echo 42 >answer.txt'}]\n";
    let run = AgentRun { agent: "mine", dialect: "openai", job: job.to_owned(), options: vec![] };
    let project = run.project();
    project.write_file("tasks/t/trajectory.json", TRAJECTORY);
    let command = project.command(&["run", "job.yaml", "-q"]);
    let _ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("solve").trial("mine", "t");
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
}

#[test]
fn extra_instructions_reach_agent_in_sandbox() {
    let options =
        vec!["--extra-instruction", "Mind the walrus.", "--extra-instruction-path", "more.md"];
    let (run, server) = (shell_in_sandbox(options), ModelServer::start_scripted(task()));
    let project = run.project();
    project.write_file("more.md", "Feed the gnu.\n");
    let trial = run.run_in(&project, &server, DEADLINE);
    assert_passed(&trial, &server);
    let text = request(&server, 0);
    assert!(text.contains(r"\n\nMind the walrus.\n\nFeed the gnu.\n"), "{text}");
}
