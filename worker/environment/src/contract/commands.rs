//! Checks of commands: start, input, environment variables and exit.

use std::sync::Arc;

use super::{
    ContractOutput, Environment, ExecCommand, OutputSink, OutputStream, ProviderUnderTest, output,
    run, shell,
};
use crate::FailureKind;

pub(super) async fn exit_code_is_returned(_: &ProviderUnderTest, environment: &dyn Environment) {
    assert_eq!(run(environment, "exit 0").await.0, 0);
    assert_eq!(run(environment, "echo x; exit 7").await, (7, "x\n".to_owned(), String::new()));
    assert_eq!(run(environment, "exit 255").await.0, 255);
}

pub(super) async fn signal_ends_with_128_plus_number(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    assert_eq!(run(environment, "kill -KILL $$").await.0, 137);
    assert_eq!(run(environment, "kill -TERM $$").await.0, 143);
}

pub(super) async fn output_streams_are_separate(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    let (code, stdout, stderr) = run(environment, "echo to-out; echo to-err >&2; echo more").await;
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "to-out\nmore\n", "to-err\n"));
}

pub(super) async fn command_gets_its_variables_and_no_others(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    let mut command = shell("echo \"$CONTRACT_A|$CONTRACT_B|$CARGO_MANIFEST_DIR|\"");
    command.env.insert("CONTRACT_A".into(), "two words, a ' quote and a $dollar".into());
    command.env.insert("CONTRACT_B".into(), String::new());
    let printed = Arc::new(ContractOutput::default());
    let exit = environment.exec(command, printed.clone()).await.expect("it runs");
    assert_eq!(exit.code, 0);
    // The last variable is set in this process whenever tests run.
    let expected = "two words, a ' quote and a $dollar|||\n";
    assert_eq!(printed.text(OutputStream::Stdout), expected);
}

pub(super) async fn working_directory_defaults_to_that_of_image(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    assert_eq!(output(environment, "pwd").await.trim_end(), environment.workdir());
    let command = ExecCommand { workdir: Some("/tmp".into()), ..shell("pwd") };
    let printed = Arc::new(ContractOutput::default());
    environment.exec(command, printed.clone()).await.expect("it runs");
    assert_eq!(printed.text(OutputStream::Stdout), "/tmp\n");
}

async fn refusal(environment: &dyn Environment, command: ExecCommand) -> FailureKind {
    let printed: Arc<dyn OutputSink> = Arc::new(ContractOutput::default());
    match environment.exec(command, printed).await {
        Err(failure) => failure.kind,
        Ok(exit) => panic!("it ran and exited with {exit:?}"),
    }
}

pub(super) async fn program_missing_is_not_started(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    let command = ExecCommand { argv: vec!["/no/such/program".into()], ..shell("") };
    assert_eq!(refusal(environment, command).await, FailureKind::NotStarted);
    assert_eq!(output(environment, "echo usable").await, "usable\n");
}

pub(super) async fn working_directory_missing_is_not_started(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    let command = ExecCommand { workdir: Some("/no/such/directory".into()), ..shell("exit 0") };
    assert_eq!(refusal(environment, command).await, FailureKind::NotStarted);
}

pub(super) async fn standard_input_is_empty(_: &ProviderUnderTest, environment: &dyn Environment) {
    assert_eq!(output(environment, "cat; echo end").await, "end\n");
}

pub(super) async fn output_large_arrives_whole_and_in_order(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    let stdout = output(environment, "seq 1 1000000").await;
    assert!(stdout.starts_with("1\n2\n3\n") && stdout.ends_with("\n999999\n1000000\n"));
    assert_eq!(stdout.len(), 6_888_896);
}

pub(super) async fn usage_within_storage_limit_is_allowed(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    output(environment, "mkdir -p /data; head -c 1000000 /dev/zero > /data/zeros").await;
    environment.check_storage().await.unwrap_or_else(|f| panic!("{}", f.chain()));
    assert_eq!(output(environment, "echo usable").await, "usable\n");
}
