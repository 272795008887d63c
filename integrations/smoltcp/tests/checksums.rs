//! Test of the checksums of received packets: smoltcp answers one that the kernel vouches for, or whose checksum is
//! right, and no other.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use segue::checksum::{Field, Sum};
use segue::gso;
use segue::hash::Key;
use segue::packet::Start;
use segue::virtio::{DATA_VALID, Form, NEEDS_CSUM, TUN_OFFLOADS, VirtioNet};
use segue_smoltcp::Trains;
use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};

/// Returns a SYN from 198.18.0.1 to port 7 of 198.18.0.2. Its checksum is complete, or primed if it is owed.
fn syn(is_owed: bool) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
    let sum = Field::complete(Sum::of(&packet)).value();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    // Ports, sequence number, acknowledgment, header length and SYN, window, checksum, urgent pointer.
    packet.extend([0x30, 0x39, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    let done = if is_owed { gso::prime(&mut packet, Start::Ip) } else { gso::fill(&mut packet, Start::Ip) };
    done.unwrap();
    packet
}

/// Returns whether a listening socket of smoltcp answers a packet that the device receives with these flags.
fn is_answered(flags: u8, packet: &[u8]) -> bool {
    let (near, far) = UnixDatagram::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    let mut device = Trains::new(File::from(OwnedFd::from(near)), TUN_OFFLOADS[0], Key([1, 2]), 1500);
    let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut device, Instant::now());
    interface.update_ip_addrs(|addresses| addresses.push("198.18.0.2/24".parse::<IpCidr>().unwrap()).unwrap());
    let mut sockets = SocketSet::new(Vec::new());
    let buffer = || tcp::SocketBuffer::new(vec![0; 4096]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    socket.listen(7).unwrap();
    sockets.add(socket);
    let header = VirtioNet { flags, csum_start: 20, csum_offset: 16, ..VirtioNet::default() };
    far.send(&[&header.emit(Form::Basic)[..10], packet].concat()).unwrap();
    interface.poll(Instant::now(), &mut device, &mut sockets);
    while interface.poll_egress(Instant::now(), &mut device, &mut sockets) != PollResult::None {}
    device.flush().unwrap();
    let mut answer = [0; 2000];
    match far.recv(&mut answer) {
        Ok(len) => {
            // The flags of TCP, behind the virtio-net header and that of IPv4.
            assert_eq!(answer[..len][10 + 20 + 13], 0x12, "SYN and ACK");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    }
}

#[test]
fn a_wrong_checksum_that_the_kernel_does_not_vouch_for_is_refused() {
    let (whole, owed) = (syn(false), syn(true));
    let mut wrong = whole.clone();
    wrong[27] ^= 1;
    assert!(is_answered(0, &whole));
    assert!(!is_answered(0, &wrong), "a packet forwarded from elsewhere, which nobody has verified");
    assert!(!is_answered(0, &owed));
    assert!(is_answered(NEEDS_CSUM, &owed), "it is completed as it is read");
    assert!(is_answered(DATA_VALID, &wrong), "the kernel has verified it");
}
