//! Tasks from registries and repositories, with the real git: how often it is called, what is left
//! when it is killed, and what goes without it. And jobs of the command line alone, which are named
//! by such tasks most often.

mod remote_registry;
mod fixture;
mod command_line;
mod repositories;
mod clone_cache;
