//! The counter of executions tells an exit from a kill.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};

use rollout_tests::live_counter::LiveCounter;
use rollout_tests::wait;

#[test]
fn live_counter_tells_exit_from_kill() {
    let witness = LiveCounter::start();
    let agent = |text: &str| {
        let mut agent = TcpStream::connect((Ipv4Addr::LOCALHOST, witness.port())).expect("up");
        agent.write_all(text.as_bytes()).expect("sent");
        agent
    };
    let soon = wait::LONG_DEADLINE;
    let killed = agent("a\n");
    wait::until(soon, "one runs", || witness.running() == 1);
    drop(killed);
    drop(agent("a\ndone\n"));
    drop(agent("b\ndone\n"));
    wait::until(soon, "all ended", || witness.observed().len() == 3 && witness.running() == 0);
    assert_eq!((witness.killed(), witness.repeated()), (1, 1));
    assert_eq!(witness.executions(), [("a".to_owned(), 2), ("b".to_owned(), 1)].into());
}
