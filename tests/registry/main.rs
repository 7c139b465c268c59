//! Tasks from registries and repositories, with the real git: how often it is called, what is left
//! when it is killed, and what goes without it. And jobs of the command line alone, which are named
//! by such tasks most often.

mod clone_cache;
mod command_line;
mod fixture;
mod remote_registry;
mod repositories;
