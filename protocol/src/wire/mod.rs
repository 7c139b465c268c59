//! Messages between coordinator and workers.
