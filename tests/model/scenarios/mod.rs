//! One schedule for every point at which a process can die, and for every rule.

mod claims;
mod coordinators;
mod owners;
mod servers;
mod user_commands;
mod workers;
