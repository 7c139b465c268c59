//! Tasks from registries and repositories, with the real git: how often it is called, what is left
//! when it is killed, and what goes without it.

mod lab;
mod repositories;
mod sharing;
