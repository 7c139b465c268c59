//! Blob stores in services, on a server in the test process.

mod s3;
