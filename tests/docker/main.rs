//! The Docker provider against a real engine. Without one these tests fail, unless
//! `ROLLOUT_TEST_DOCKER=no` says that there shall be none.

mod base_images;
mod builds;
mod commands;
mod compose;
mod containers;
mod closable_proxy;
mod files;
mod image_gc;
mod images;
mod fixture;
mod limits;
mod network;
mod processes;
mod reaping;
mod requests;
mod trial;
