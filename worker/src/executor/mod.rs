//! Running scripts in environments: their time limits and what they print.

mod capture;
mod script;

pub use self::capture::{Capture, Captured, last_words, tail};
pub use self::script::{End, Normal, Ran, kill, run};
