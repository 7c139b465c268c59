//! Processes of the tests of process sandboxes: a worker that waits to be killed, and one without free
//! file descriptors.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use rollout_tests::sandbox;
use rustix::process::{Resource, Rlimit};
use tokio::io::AsyncReadExt as _;

/// Runs a script in a sandbox below a directory, forever.
pub(crate) fn worker(arguments: &[OsString]) -> ExitCode {
    let [base, script] = arguments else { panic!("usage: BASE SCRIPT") };
    let (base, script) = (Path::new(base), script.to_string_lossy());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let helper = std::env::current_exe().expect("this program");
        let environment = sandbox::create(&sandbox::provider(base, &helper)).await;
        sandbox::run(environment.as_ref(), &script).await;
    });
    ExitCode::SUCCESS
}

/// Reads a tree that is deeper than this process has free file descriptors. Prints the error, or
/// the number of bytes read.
pub(crate) fn starved(arguments: &[OsString]) -> ExitCode {
    const DEEP: &str = "p=/logs; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do p=$p/d; mkdir -p $p; \
                        echo x >$p/f; done";
    let [base] = arguments else { panic!("usage: BASE") };
    let base = Path::new(base);
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
