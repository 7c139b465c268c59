//! The harness itself: its tables, servers and waits.

mod expected;
mod formats;
mod ignored;
mod live_counter;
mod net;
mod processes;
mod quantity;
mod read_only_mount;
mod screen;
mod scripted_model;
mod tcp_proxy;
mod wait;
