//! One schedule for every place at which something can die, and for every rule.

mod claims;
mod coordinators;
mod owners;
mod servers;
mod user_commands;
mod workers;
