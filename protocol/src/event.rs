//! What happens, as one stream.
