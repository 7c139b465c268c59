//! Tests that need no Docker engine, no server and no download.

/// Texts that the program prints, as reviewed snapshots.
mod cli;
/// Configuration files of fixtures and examples, and the effect of every key.
mod config;
/// The contract of executors, in one process and by a mock.
mod executor;
/// The harness itself: its tables, servers and waits.
mod harness;
/// The double of the Kubernetes API, and the provider `kubernetes` on it.
mod kubernetes;
/// Tasks from git repositories and registries, and jobs of the command line.
mod registry;
/// The process provider: contract, isolation, limits, hostile code.
mod sandbox;
/// The blob store in S3, on a server in the test process.
mod store;
/// Checks of certificates and keys in files.
mod tls_files;
