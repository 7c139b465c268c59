//! The double of the Kubernetes API, checked through the client that the product uses.

mod client;
mod containers;
mod exec;
mod failures;
mod objects;
mod provider;
