//! Tests that the kernel reassembles the engine's fragments.

use std::net::{SocketAddr, UdpSocket};

use segue::gso::{Fragment, Limits};
use segue::packet::{Csum, Pool, Unit};
use segue::wire::protocol;

use super::tests::{ENDS, PATIENCE, addresses, device};
use super::*;
use crate::page::PagePool;
use crate::testing::{self, Fill, bytes};

const MTUS: [usize; 3] = [576, 1280, 1500];
const LENS: [usize; 5] = [1473, 1501, 4000, 9000, 65_000];

/// Puts options between the IP header and the datagram.
fn with_options(packet: &mut Vec<u8>, form: usize) {
    match (form, packet[0] >> 4) {
        (0, _) => return,
        (1, 4) => {
            // Timestamps, which only the first fragment has, and no-operations.
            packet.splice(20..20, [68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            packet[0] += 3;
        }
        (_, 4) => {
            // Router alert, which each has.
            packet.splice(20..20, [0x94, 4, 0, 0]);
            packet[0] += 1;
        }
        (form, _) => {
            let next = packet[6];
            packet.splice(40..40, [next, 0, 1, 4, 0, 0, 0, 0]);
            packet[6] = if form == 1 { protocol::HOP_BY_HOP } else { protocol::DESTINATION };
        }
    }
    if packet[0] >> 4 == 4 {
        let (len, header) = (packet.len() as u16, usize::from(packet[0] & 15) * 4);
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[10..12].fill(0);
        let sum = !testing::sum16(&[&packet[..header]]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let len = (packet.len() - 40) as u16;
        packet[4..6].copy_from_slice(&len.to_be_bytes());
    }
}

#[test]
fn the_kernel_puts_the_fragments_of_every_datagram_together() {
    for offloads in [TunOffloads::All, TunOffloads::None] {
        let Some(mut port) = device(offloads) else { return };
        let mut pages = PagePool::new(8);
        let mut batch = TxBatch::new();
        let mut buffer = vec![0; 70_000];
        for ends in ENDS {
            let (here, there) = addresses(ends);
            let socket = UdpSocket::bind(SocketAddr::new(here, 7)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let most = if here.is_ipv4() { 65_507 } else { 65_527 };
            for (round, len) in LENS.into_iter().chain([most]).enumerate() {
                for (mtu, form) in MTUS.into_iter().flat_map(|mtu| [0, 1, 2].map(|form| (mtu, form))) {
                    for fill in [Fill::Primed, Fill::Good] {
                        if len == most && form != 0 {
                            continue;
                        }
                        let data = bytes(len, round + mtu);
                        let mut whole =
                            testing::ip_packet((there, here), protocol::UDP, 6, &testing::udp(9, 7, &data), fill);
                        with_options(&mut whole, form);
                        let mut packet = testing::load(&mut pages, &whole);
                        if fill == Fill::Primed {
                            packet.offload.unit = Unit::Whole(Csum::Partial);
                        }
                        let fragment = Fragment::Sender { clears_df: true };
                        let limits = Limits { mtu, fragment, ..*port.limits() };
                        let count = batch.push(packet, &limits).unwrap();
                        assert!(count >= len / mtu && count >= 1);
                        assert!(batch.units().all(|unit| unit.len() <= mtu));
                        assert_eq!(port.transmit(&mut batch).unwrap(), Sent::All);
                        batch.recycle(&mut Pool::new(0));
                        let (got, from) = socket.recv_from(&mut buffer).unwrap_or_else(|error| {
                            panic!("{here} {len} bytes in {count} fragments of {mtu}, options {form}: {error}")
                        });
                        assert_eq!(from, SocketAddr::new(there, 9));
                        assert!(buffer[..got] == data, "{got} bytes came of {len}");
                    }
                }
            }
        }
        assert_eq!(port.counters().drops.total(), 0);
    }
}
