//! Tasks from registries and repositories, with the real git: number of calls, leftovers of a kill,
//! runs without the network. Also jobs that the command line describes.

mod clone_cache;
mod command_line;
mod fixture;
mod formats;
mod remote_registry;
mod repositories;
mod selection;
