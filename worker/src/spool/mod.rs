//! What a worker keeps on its disk of executions, so that its death loses nothing that was finished
//! and leaves a word about what was not.

mod scratch;

pub use self::scratch::ScratchMark;
