//! The queue over real nats-servers: the contract of all queues, and what only a server has. Without
//! a server these tests say that they skip.

mod authentication;
mod contract;
mod fixture;
mod pools;
mod roles;
mod server;
