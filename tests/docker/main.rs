//! The Docker provider against a real engine. Without one these tests fail, unless
//! `ROLLOUT_TEST_DOCKER=no` says that there shall be none.

mod bases;
mod builds;
mod commands;
mod compose;
mod containers;
mod door;
mod files;
mod gc;
mod images;
mod lab;
mod limits;
mod network;
mod processes;
mod reaping;
mod requests;
mod trial;
