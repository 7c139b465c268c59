//! Capabilities of the processes of a sandbox.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The default capabilities of a container's commands; the others are dropped permanently. Without
/// `SYS_ADMIN` no mount of the sandbox can be changed, without `SYS_PTRACE` the supervisor cannot
/// be reached.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// Drops every other capability from the bounding set of this process's children, from their first
/// instruction on: commands can replace the files that the loader of the next `command` reads. This
/// process keeps its own capabilities.
pub(super) fn limit_children() -> rustix::io::Result<()> {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if KEPT.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The first capability that the kernel does not know.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let own = rustix::thread::capabilities(None)?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { inheritable: none, ..own })
}
