//! Tests of Docker engines: the provider, images and services of a deployment, outages.

/// `Dockerfile` and `docker-compose.yml`: images, and a run over the stack.
mod compose;
/// The Docker provider: contract, builds, images, compose, limits, network, cleanup.
mod docker_provider;
/// Outages of engine, image registry, blob store and NATS server during a run.
mod outages;
