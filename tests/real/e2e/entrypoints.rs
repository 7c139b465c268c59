//! Images whose ENTRYPOINT starts services: the agent starts when these have started, or when the image's
//! own HEALTHCHECK has succeeded.

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::project::Project;
use rollout_tests::results::TrialDirectory;

use crate::e2e::{DEADLINE, assert_adds_up, assert_nothing_left, project};

/// Name, the work of the ENTRYPOINT before it runs its command, and what the solution needs.
const TASKS: [(&str, &str, &str); 6] = [
    ("soon", "(sleep 0.2; touch /ready) &", "[ -e /ready ]"),
    ("later", "(sleep 1.5; touch /ready) &", "[ -e /ready ]"),
    ("late", "(sleep 4; touch /ready) &", "[ -e /ready ]"),
    ("before", "perl -e 'select(undef, undef, undef, 2)'; touch /ready", "[ -e /ready ]"),
    (
        "socket",
        "perl -MIO::Socket::INET -e 'select(undef, undef, undef, 0.7); $s = \
         IO::Socket::INET->new(Listen => 1, LocalAddr => \"127.0.0.1\", LocalPort => 7000) or die; \
         sleep 1000' &",
        "(exec 3<>/dev/tcp/127.0.0.1/7000)",
    ),
    ("alone", "true", "true"),
];

/// A service in the background, not below the command that keeps the container alive. It begins to answer
/// 3 seconds after its first connection.
const SLOW_SERVICE: &str = "(perl -MIO::Socket::INET -e '$SIG{PIPE} = \"IGNORE\"; $s = \
    IO::Socket::INET->new(Listen => 9, LocalAddr => \"127.0.0.1\", LocalPort => 7000) or die; \
    while ($c = $s->accept) { select(undef, undef, undef, 3) unless $n++; print $c \"ok\\n\"; \
    close $c }' >/dev/null 2>&1 &)";

/// The wait in the record of a trial: the cause of its end, and its seconds.
fn wait_of(trial: &TrialDirectory) -> (&str, f64) {
    let wait = &trial.result["environment"]["start_wait"];
    let until = wait["until"].as_str().unwrap_or_default();
    (until, wait["waited_sec"].as_f64().unwrap_or(-1.0))
}

/// A project with a task: the work of its ENTRYPOINT, further lines of its Dockerfile, and what its
/// solution needs.
fn with_task(project: Project, name: &str, work: &str, lines: &str, needs: &str) -> Project {
    let at = |file: &str| format!("tasks/{name}/{file}");
    let task = "schema_version = \"1.4\"\n[environment]\nnetwork_mode = \"public\"\n";
    let dockerfile = format!(
        "FROM debian:bookworm-slim\nCOPY entry.sh /entry.sh\nRUN chmod +x /entry.sh\nWORKDIR \
         /app\nENTRYPOINT [\"/entry.sh\"]\n{lines}"
    );
    let solution = format!("#!/bin/bash\n{needs} && echo ok > /app/out\ntrue\n");
    let tests = "#!/bin/bash\ngrep -q ok /app/out && r=1 || r=0\necho $r > \
                 /logs/verifier/reward.txt\n";
    project
        .write(&at("task.toml"), task)
        .write(&at("instruction.md"), "Write ok to /app/out.\n")
        .write(&at("environment/Dockerfile"), &dockerfile)
        .write(&at("environment/entry.sh"), &format!("#!/bin/bash\n{work}\nexec \"$@\"\n"))
        .write(&at("solution/solve.sh"), &solution)
        .write(&at("tests/test.sh"), tests)
}

#[test]
fn agent_starts_after_services_of_entrypoint() {
    let Some(_engine) = DockerEngine::available() else { return };
    let mut project = project();
    for (name, work, needs) in TASKS {
        project = with_task(project, name, work, "", needs);
    }
    let arguments = ["run", "-p", "tasks", "-a", "oracle", "-n", "3", "--name", "j"];
    let _ended = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    let results = project.results("j");
    assert_adds_up(&results, 6);
    for (name, _, _) in TASKS {
        let trial = results.trial("oracle", name);
        assert_eq!(trial.reward(), Some(1.0), "{name}: {:#}", trial.result);
    }
    let seconds = |name| {
        let trial = results.trial("oracle", name);
        let (until, waited) = wait_of(&trial);
        (until.to_owned(), waited)
    };
    let (until, waited) = seconds("alone");
    // An observation takes a second.
    assert!(until == "idle" && waited < 1.0, "{until} {waited}");
    let (until, waited) = seconds("socket");
    assert!(until == "settled" && waited < 10.0, "{until} {waited}");
    // On a busy machine its shell is seen between its pause and the file. Its reward shows the wait.
    let (until, waited) = seconds("late");
    assert!(["idle", "settled"].contains(&&*until) && waited < 10.0, "{until} {waited}");

    let given = [&arguments[..7], &["--name", "k", "-t", "soon", "--set"]].concat();
    let without = [&given[..], &["environment.start_grace_sec=0"]].concat();
    let _ended = project.rollout(&without).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("k").trial("oracle", "soon");
    assert!(trial.result["environment"]["start_wait"].is_null(), "{:#}", trial.result);
    assert_nothing_left(&project);
}

#[test]
fn agent_starts_when_healthcheck_of_image_succeeds() {
    let Some(_engine) = DockerEngine::available() else { return };
    // A process that shows no sign of what follows: an observation would not wait for it.
    let late = "perl -e 'select(undef, undef, undef, 6); open(F, \">/ready\")' &";
    let passes = "HEALTHCHECK --interval=1s --start-period=5m CMD test -e /ready\n";
    let fails = "HEALTHCHECK --interval=1s --retries=2 CMD echo no >&2; exit 3\n";
    let mut project = project();
    project = with_task(project, "passes", late, passes, "[ -e /ready ]");
    project = with_task(project, "fails", "true", fails, "true");
    project = with_task(project, "none", "true", "HEALTHCHECK NONE\n", "true");
    let arguments = ["run", "-p", "tasks", "-a", "oracle", "-n", "3", "--name", "j"];
    let _ended = project.rollout(&arguments).wait(DEADLINE);
    let results = project.results("j");
    let trial = results.trial("oracle", "passes");
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
    let (until, waited) = wait_of(&trial);
    assert!(until == "healthcheck" && (0.5..60.0).contains(&waited), "{until} {waited}");
    let trial = results.trial("oracle", "none");
    assert_eq!((trial.reward(), wait_of(&trial).0), (Some(1.0), "idle"), "{:#}", trial.result);
    let trial = results.trial("oracle", "fails");
    assert_eq!(trial.error(), Some("environment_start_failed"), "{:#}", trial.result);
    let message = trial.message();
    assert!(message.contains("HEALTHCHECK of the image failed 2 times in a row"), "{message}");
    assert!(message.contains("code 3: no"), "{message}");
    assert_nothing_left(&project);
}

#[test]
fn service_survives_healthcheck_beyond_its_limit() {
    let Some(_engine) = DockerEngine::available() else { return };
    let connect = "exec 3<>/dev/tcp/127.0.0.1/7000";
    let check = format!(
        "HEALTHCHECK --interval=1s --timeout=1s --start-period=30s CMD [\"/bin/bash\", \"-c\", \
         \"{connect} && read -r said <&3 && [ $said = ok ]\"]\n"
    );
    let needs = format!("({connect})");
    let project = with_task(project(), "slow", SLOW_SERVICE, &check, &needs);
    let arguments = ["run", "-p", "tasks", "-a", "oracle", "--name", "j"];
    let _ended = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("j").trial("oracle", "slow");
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
    let (until, waited) = wait_of(&trial);
    assert!(until == "healthcheck" && (0.5..60.0).contains(&waited), "{until} {waited}");
    assert_nothing_left(&project);
}
