//! The Helm chart: rendered by Helm's own engine with the values in `charts/rollout/ci`, compared with
//! reviewed snapshots, read by the types of the Kubernetes API, and held against rules.
//!
//! `INSTA_UPDATE=always cargo test -p rollout-tests --test real chart::` writes the snapshots and the
//! table of the chart's README anew; review the difference.

mod custom_resources;
mod documents;
mod kubernetes;
mod nats;
mod render;
mod rules;
mod values;
