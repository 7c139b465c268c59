//! The queue over real nats-servers: the contract of all queues, and what only a server has. Without
//! a server these tests say that they skip.

mod access;
mod contract;
mod lab;
mod pools;
mod roles;
mod server;
