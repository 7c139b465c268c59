//! Screens of terminals.

use rollout_tests::screen::Screen;

#[test]
fn screen_shows_text_after_moves_and_wrapped_lines() {
    let shown = |output: &str| Screen::after(output.as_bytes(), 4).lines();
    assert_eq!(shown("one\r\ntwo"), ["one", "two"]);
    assert_eq!(shown("abcd\r\nx"), ["abcd", "x"]);
    assert_eq!(shown("abcde"), ["abcd", "e"]);
    assert_eq!(shown("one\r\ntwo\u{1b}[1A\r\u{1b}[2K1"), ["1", "two"]);
    assert_eq!(shown("\u{1b}[31mred\u{1b}[0m"), ["red"]);
}
