//! Parts of tests that lack a service.

use rollout_tests::ignored::or_left_out_part;

/// Of no service, so that it is set nowhere.
const UNSET: &str = "ROLLOUT_TEST_OF_NO_SERVICE";

#[test]
fn part_without_its_need_fails_unless_machine_is_said_to_have_none() {
    assert_eq!(or_left_out_part(Ok(1), "a block", UNSET), Some(1));
    let lacking = || or_left_out_part::<()>(Err("needs a server".to_owned()), "a block", UNSET);
    let panic = std::panic::catch_unwind(lacking).expect_err("the part is not run");
    let message = panic.downcast_ref::<String>().expect("a message");
    let expected =
        "cannot run this part: a block: needs a server; `tests/run` installs what is missing";
    assert!(message.contains(expected), "{message}");
}
