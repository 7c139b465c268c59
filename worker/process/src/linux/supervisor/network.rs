//! Start of the loopback interface of a new network.

use std::io;

use rustix::io::{Errno, Result};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const RTM_NEWLINK: u16 = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLMSG_ERROR: u16 = 2;
const IFF_UP: u32 = 1;

/// The loopback is the first interface of every network.
const LOOPBACK: i32 = 1;

/// Asks the kernel to start the loopback interface.
pub(super) fn start_loopback() -> Result<()> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &request(), SendFlags::empty(), &kernel)?;
    let mut answer = [0; 256];
    let (length, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty())?;
    acknowledged(&answer[..length])
}

/// `struct nlmsghdr` and `struct ifinfomsg`, in the byte order of the machine.
fn request() -> Vec<u8> {
    let mut link = Vec::new();
    link.extend([0u8; 4]); // family, padding, type
    link.extend(LOOPBACK.to_ne_bytes());
    link.extend(IFF_UP.to_ne_bytes());
    link.extend(IFF_UP.to_ne_bytes()); // the flags that change
    let mut packet = Vec::new();
    packet.extend((16 + link.len() as u32).to_ne_bytes());
    packet.extend(RTM_NEWLINK.to_ne_bytes());
    packet.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    packet.extend([0u8; 8]); // sequence, port
    packet.extend(link);
    packet
}

/// Reads the kernel's answer: an error message whose number is zero is a success.
fn acknowledged(answer: &[u8]) -> Result<()> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let number = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, number) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(number)) => {
            let error = io::Error::from_raw_os_error(number.wrapping_neg());
            Err(Errno::from_io_error(&error).unwrap_or(Errno::BADMSG))
        }
        _ => Err(Errno::BADMSG),
    }
}
