//! The Docker provider against a real engine. Without one these tests fail, unless
//! `ROLLOUT_TEST_DOCKER=no` says that there shall be none.

mod base_images;
mod builds;
mod closable_proxy;
mod commands;
mod compose;
mod containers;
mod files;
mod fixture;
mod image_gc;
mod images;
mod limits;
mod network;
mod processes;
mod reaping;
mod requests;
mod trial;
