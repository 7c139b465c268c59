//! Tests of the queue over real nats-servers: the contract of all queues, and features of servers.
//! Without a server these tests are ignored.

pub(crate) mod authentication;
mod contract;
mod ended_pulls;
mod fixture;
mod nats_server;
mod pools;
mod roles;
mod run_messages;
mod server;
mod versions;
