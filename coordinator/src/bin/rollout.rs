//! The `rollout` program.

fn main() -> std::process::ExitCode {
    rollout_coordinator::cli::main()
}
