//! Links the test programs and the program under test at fixed addresses, where the linker is known to
//! do it. At any address, the loader mends half a million pointers at each start, which takes 13 ms of a
//! processor, and all tests together start these programs 12,000 times. The compiled code is the same.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |key: &str, value: &str| {
        std::env::var(format!("CARGO_CFG_TARGET_{key}")).is_ok_and(|set| set == value)
    };
    if is("OS", "linux") && is("ENV", "gnu") && is("ARCH", "x86_64") {
        for kind in ["bins", "tests"] {
            println!("cargo::rustc-link-arg-{kind}=-no-pie");
        }
    }
}
