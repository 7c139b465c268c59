//! The server process of these tests.

use rollout_tests::nats::NatsServer;

#[test]
fn nats_server_restarts_and_wipes_store() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(mut server) = NatsServer::start(directory.path()) else { return };
    server.kill();
    assert!(!server.answers());
    server.ensure_started();
    assert!(server.answers());
    server.wipe();
    server.ensure_started();
    assert!(server.answers() && server.url().ends_with(&server.port().to_string()));
}
