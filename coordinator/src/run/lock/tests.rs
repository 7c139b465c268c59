//! Two owners of one run.
