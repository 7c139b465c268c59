//! Coordinator and worker in one process.
