//! Killing: no process started by a command survives.

use std::sync::Arc;
use std::time::Instant;

use bollard::query_parameters::StatsOptions;
use futures_util::StreamExt as _;
use rollout_docker::{DockerOptions, DockerProvider};
use rollout_environment::{Environment, ExecCommand, FailureKind};
use rollout_tests::engine_proxy::EngineProxy;

use crate::docker_provider::fixture::{
    CommandOutput, DockerFixture, WAIT_DEADLINE, destroy, output, run, shell, until, wait_for_file,
    wait_for_script,
};

async fn kill(environment: &dyn Environment) {
    let began = Instant::now();
    environment.kill_processes().await.unwrap_or_else(|failure| panic!("{}", failure.chain()));
    assert!(began.elapsed() < WAIT_DEADLINE);
}

/// Number of processes in the container, without init, the keep-alive, its sleep and the counting
/// shell.
async fn unexpected_processes(environment: &dyn Environment) -> usize {
    let script = "n=0; for p in /proc/[0-9]*; do n=$((n+1)); done; echo $n";
    output(environment, script).await.trim().parse::<usize>().expect("a number") - 4
}

/// Number of processes according to the engine, without running anything in the container.
async fn process_count(lab: &DockerFixture, environment: &dyn Environment) -> u64 {
    let once = StatsOptions { stream: false, one_shot: true };
    let mut counted = std::pin::pin!(lab.docker.stats(environment.id(), Some(once)));
    let stats = counted.next().await.expect("an answer").expect("counted");
    stats.pids_stats.and_then(|pids| pids.current).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_of_stubborn_process_tree_ends_it() {
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.plain().await;
    let container = environment.as_ref();
    let script = "trap '' TERM HUP INT; for i in 1 2 3; do \
          (setsid sh -c 'trap \"\" TERM; (env -i setsid sh -c \"while :; do :; done\" &) ; \
           while :; do sleep 0.1; done' &); done; echo up > /up; while :; do sleep 0.1; done";
    let running = container.exec(shell(script), Arc::new(CommandOutput::default()));
    let killing = async {
        wait_for_script(container, "test -e /up").await;
        kill(container).await;
    };
    let (ended, ()) = tokio::join!(running, killing);
    assert_eq!(ended.expect("its end is known").code, 137);
    assert_eq!(unexpected_processes(container).await, 0);
    destroy(environment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_of_fork_bomb_ends_it() {
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.plain().await;
    let container = environment.as_ref();
    // A shell of Debian's `sh` that cannot fork ends: at the limit, all may end at once. Bash tries again.
    let storm = "bomb() { while :; do (bomb) & done; }; echo up > /up; bomb";
    let command =
        ExecCommand { argv: ["/bin/bash", "-c", storm].map(str::to_owned).to_vec(), ..shell("") };
    let running = container.exec(command, Arc::new(CommandOutput::default()));
    let killing = async {
        // The limit is reached soon: a command that forks can no longer run inside.
        wait_for_file(container, "/up").await;
        until("more than 400 processes run", async || process_count(&lab, container).await > 400)
            .await;
        kill(container).await;
    };
    let (ended, ()) = tokio::join!(running, killing);
    ended.expect("its end is known");
    assert_eq!(unexpected_processes(container).await, 0);
    destroy(environment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_with_replaced_shell_ends_processes() {
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.plain().await;
    let container = environment.as_ref();
    let argv =
        ["/bin/bash", "-c", "ln -sf /bin/true /bin/sh; while :; do date > /beat; sleep 0.1; done"];
    let command = ExecCommand { argv: argv.map(str::to_owned).to_vec(), ..shell("") };
    let running = container.exec(command, Arc::new(CommandOutput::default()));
    let killing = async {
        wait_for_file(container, "/beat").await;
        container.kill_processes().await
    };
    let (_, killed) = tokio::join!(running, killing);
    // The container cannot restart without its shell, but all processes are dead.
    let failure = killed.expect_err("it is not usable any more");
    assert_eq!(failure.kind, FailureKind::NotStarted, "{}", failure.message);
    let state = lab.docker.inspect_container(environment.id(), None).await.expect("there").state;
    assert_eq!(state.and_then(|state| state.running), Some(false));
    destroy(environment).await;
}

/// Kills in a container whose shell skips the kill script, with a process to kill.
async fn kill_without_a_sweep(lab: &DockerFixture) {
    let environment = lab.plain().await;
    let container = environment.as_ref();
    let wrapper = "mv /bin/sh /bin/real && printf '#!/bin/real\\ncase \"$2\" in *STOP*) exit 0;; esac\\n\
        exec /bin/real \"$@\"\\n' > /bin/sh && chmod +x /bin/sh; \
        setsid /bin/real -c 'while :; do sleep 0.1; done' >/dev/null 2>&1 &";
    output(container, wrapper).await;
    output(container, "echo kept > /note").await;
    kill(container).await;
    assert_eq!(run(container, "cat /note").await, (0, "kept\n".to_owned()));
    let top = lab.docker.top_processes(environment.id(), None).await.expect("listed").processes;
    assert!(!format!("{top:?}").contains("sleep 0.1"), "{top:?}");
    destroy(environment).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_with_stopped_sweep_restarts_container() {
    let Some(lab) = DockerFixture::open().await else { return };
    kill_without_a_sweep(&lab).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_with_unverified_sweep_restarts_container() {
    let Some(mut lab) = DockerFixture::open().await else { return };
    // As an engine answers whose host has no `ps`.
    let proxy = EngineProxy::refusing("/top", &lab.scratch.path().join("engine.sock"));
    let locks = lab.scratch.path().join("locks");
    let options = DockerOptions { host: Some(proxy.host()), ..DockerOptions::new(locks) };
    lab.provider = Arc::new(DockerProvider::new(options));
    kill_without_a_sweep(&lab).await;
}
