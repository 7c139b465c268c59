//! The `rollout` program.

fn main() {}
