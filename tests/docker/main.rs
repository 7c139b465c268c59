//! The Docker provider against a real engine. Without one these tests fail, unless
//! `ROLLOUT_TEST_DOCKER=no` says that there shall be none.

mod commands;
mod compose;
mod containers;
mod files;
mod images;
mod lab;
mod limits;
mod network;
mod processes;
mod reaping;
mod requests;
mod trial;
