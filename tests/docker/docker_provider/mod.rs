//! Tests of the Docker provider with a real engine. Without an engine they fail, unless
//! `ROLLOUT_TEST_DOCKER=no` disables them.

mod allowlists;
mod base_images;
mod builds;
mod ca_bundle;
mod closable_proxy;
mod commands;
mod compose;
mod compose_guard;
mod compose_networks;
mod compose_overlays;
mod containers;
mod files;
mod fixture;
mod image_gc;
mod images;
mod limits;
mod network;
mod processes;
mod proxies;
mod reaping;
mod requests;
mod trial;
