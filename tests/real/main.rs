//! The real program on one host, over NATS servers and as a daemon.

/// Agents of the catalogue and the agent `shell`, with a scripted model.
mod agents;
/// The Helm chart: rendered text, types of Kubernetes, rules on security.
mod chart;
/// Runs over NATS with workers in separate processes: kills, takeovers, drains, searches.
mod cluster;
/// Runs on one host: outcomes, resume, lock, repair, signals, secrets, tables.
mod e2e;
/// Farms whose samples run in process sandboxes.
mod farm;
/// Model calls of agents through the gateway.
mod gateway;
/// Power cuts at random moments: runs, retries, workers, searches, farms, events, exports.
mod power;
/// The Python client, and its adapters with the packages of trainers.
mod python_client;
/// The queue over NATS: contract, authentication, roles, pools, restarts.
mod queue;
/// The daemon over HTTP: jobs, farms, kills, users, hostile clients.
mod serve;
/// Tree searches: outcomes of ideas, dry run, resume, limits, reports.
mod tree;
