//! Checks of processes: which survive a command, and that a kill leaves none.

use std::sync::Arc;
use std::time::Duration;

use super::{
    ContractOutput, EFFECT_TIMEOUT, Environment, ExecCommand, ProviderUnderTest, eventually,
    output, run, shell,
};
use crate::time_limit;

/// A twice-forked process in its own session that ignores TERM and appends to `/tmp/beats` every 50
/// ms.
const BEAT: &str = "(setsid sh -c 'trap \"\" TERM HUP INT; \
    (while :; do echo x >> /tmp/beats; sleep 0.05; done) &' >/dev/null 2>&1 </dev/null &)";

const ALIVE: &str = "a=$(wc -c < /tmp/beats); sleep 0.5; test $(wc -c < /tmp/beats) -gt $a";

async fn assert_silent(environment: &dyn Environment) {
    let (code, ..) = run(environment, ALIVE).await;
    assert_ne!(code, 0, "something still writes");
}

pub(super) async fn background_process_survives_end_of_command(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    output(environment, BEAT).await;
    eventually(environment, "test -s /tmp/beats").await;
    eventually(environment, ALIVE).await;
}

pub(super) async fn command_with_time_limit_is_ended_alone(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    output(environment, BEAT).await;
    eventually(environment, "test -s /tmp/beats").await;
    let (limit, endless) = (Duration::from_secs(1), shell("while :; do sleep 1000; done"));
    let argv = time_limit::limited(&endless.argv, limit);
    let began = tokio::time::Instant::now();
    let running = environment.exec(ExecCommand { argv, ..endless }, discard_output());
    let ended = tokio::time::timeout(EFFECT_TIMEOUT, running).await.expect("it has a limit");
    let exit = ended.unwrap_or_else(|f| panic!("{}", f.chain()));
    assert!(time_limit::is_end_at_limit(exit, began.elapsed(), limit), "{exit:?}");
    eventually(environment, ALIVE).await;
}

pub(super) async fn kill_ends_every_process_of_command(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    output(environment, BEAT).await;
    let foreground = format!("trap '' TERM; {BEAT}; while :; do sleep 1; done");
    let running = environment.exec(shell(&foreground), Arc::new(ContractOutput::default()));
    let killing = async {
        eventually(environment, "test -s /tmp/beats").await;
        environment.kill_processes().await.unwrap_or_else(|f| panic!("{}", f.chain()));
    };
    let (ended, ()) =
        tokio::time::timeout(EFFECT_TIMEOUT * 2, async { tokio::join!(running, killing) })
            .await
            .expect("a killed command returns soon");
    assert!(ended.is_ok_and(|exit| exit.code != 0), "it did not end by itself");
    assert_silent(environment).await;
    assert_eq!(output(environment, "echo usable").await, "usable\n");
}

pub(super) async fn kill_ends_running_command_and_environment_stays_usable(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    let running = environment.exec(shell("echo x > /tmp/began; sleep 1000"), discard_output());
    let killing = async {
        eventually(environment, "test -f /tmp/began").await;
        environment.kill_processes().await.unwrap_or_else(|f| panic!("{}", f.chain()));
    };
    let (ended, ()) =
        tokio::time::timeout(EFFECT_TIMEOUT * 2, async { tokio::join!(running, killing) })
            .await
            .expect("a killed command returns soon");
    assert!(ended.is_ok_and(|exit| exit.code > 128), "a signal ended it");
    assert_eq!(output(environment, "echo usable").await, "usable\n");
}

pub(super) async fn kill_without_processes_succeeds(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    for _ in 0..2 {
        environment.kill_processes().await.unwrap_or_else(|f| panic!("{}", f.chain()));
    }
    assert_eq!(output(environment, "echo usable").await, "usable\n");
}

pub(super) async fn command_dropped_can_be_killed(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    let endless = "while :; do echo x >> /tmp/beats; sleep 0.05; done";
    let running = environment.exec(shell(endless), discard_output());
    let abandoned = tokio::time::timeout(Duration::from_secs(1), running).await;
    assert!(abandoned.is_err(), "it never ends by itself");
    environment.kill_processes().await.unwrap_or_else(|f| panic!("{}", f.chain()));
    assert_silent(environment).await;
}

pub(super) async fn out_of_memory_is_not_reported_without_cause(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    output(environment, "echo fine").await;
    assert!(!environment.oom_killed().await);
}

fn discard_output() -> Arc<ContractOutput> {
    Arc::new(ContractOutput::default())
}
