//! The program under test: the same as `rollout`, built for this package so that its tests know
//! where it is.

fn main() -> std::process::ExitCode {
    rollout_coordinator::cli::main()
}
