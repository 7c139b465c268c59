//! For the tests of process sandboxes: their supervisor, and a worker that waits to be killed.

use std::path::Path;
use std::process::ExitCode;

use rollout_tests::sandbox;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match args.first().and_then(|word| word.to_str()) {
        Some("inside") => rollout_worker::environment::process::supervisor::main(&args[1..]),
        Some("worker") => worker(args[1].as_ref(), &args[2].to_string_lossy()),
        _ => ExitCode::FAILURE,
    }
}

/// Runs `script` in a sandbox below `base`, for ever.
fn worker(base: &Path, script: &str) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let helper = std::env::current_exe().expect("this program");
        let environment = sandbox::create(&sandbox::provider(base, &helper)).await;
        sandbox::run(environment.as_ref(), script).await;
    });
    ExitCode::SUCCESS
}
