//! Kinds of work: a recipe each for what runs in environments.

pub mod eval;
pub mod ideas;
pub mod trial;
