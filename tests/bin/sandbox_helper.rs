//! Helper of the process sandbox tests: their supervisor, a worker that waits to be killed, and a
//! process without free file descriptors.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use rollout_tests::sandbox;
use rustix::process::{Resource, Rlimit};
use tokio::io::AsyncReadExt as _;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match args.first().and_then(|word| word.to_str()) {
        Some("inside") => rollout_worker::environment::process::supervisor::main(&args[1..]),
        Some("worker") => worker(args[1].as_ref(), &args[2].to_string_lossy()),
        Some("starved") => starved(args[1].as_ref()),
        _ => ExitCode::FAILURE,
    }
}

/// Runs `script` in a sandbox below `base`, forever.
fn worker(base: &Path, script: &str) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let helper = std::env::current_exe().expect("this program");
        let environment = sandbox::create(&sandbox::provider(base, &helper)).await;
        sandbox::run(environment.as_ref(), script).await;
    });
    ExitCode::SUCCESS
}

/// Reads a tree that is deeper than this process has free file descriptors. Prints the error, or
/// the number of bytes read.
fn starved(base: &Path) -> ExitCode {
    const DEEP: &str = "p=/logs; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do p=$p/d; mkdir -p $p; \
                        echo x >$p/f; done";
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let helper = std::env::current_exe().expect("this program");
        let environment = sandbox::create(&sandbox::provider(base, &helper)).await;
        sandbox::output(environment.as_ref(), DEEP).await;
        let open = std::fs::read_dir("/proc/self/fd").expect("listed").count() as u64;
        let before = rustix::process::getrlimit(Resource::Nofile);
        let few = Rlimit { current: Some(open + 8), ..before };
        rustix::process::setrlimit(Resource::Nofile, few).expect("lowered");
        let mut bytes = Vec::new();
        let read = match environment.copy_from("/logs").await {
            Ok(Some(mut stream)) => stream.read_to_end(&mut bytes).await,
            Ok(None) => Ok(0),
            Err(failure) => Err(std::io::Error::other(failure)),
        };
        rustix::process::setrlimit(Resource::Nofile, before).expect("raised");
        environment.destroy().await.expect("destroyed");
        let said = read.map_or_else(|error| format!("error: {error}"), |n| format!("{n} bytes"));
        std::io::stdout().write_all(said.as_bytes()).expect("written");
    });
    ExitCode::SUCCESS
}
