//! `docker-compose.yml` and `Dockerfile`: images built from local files, and a run over their services.

mod images;
mod stack;

use std::time::Duration;

/// Time for a stack to start, for a run, and for a stack to stop.
const DEADLINE: Duration = rollout_tests::wait::RUN_DEADLINE;
