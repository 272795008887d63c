use segue::wire::arp::Arp;
use segue::wire::ndisc::{self, Message};
use segue::wire::{ethernet, icmp, ipv4, ipv6};

use crate::resources::bounded;

/// Number of bytes that the messages may hold for the shortest input.
const FREE: usize = 64 << 10;

/// Runs the parsers of ARP, neighbour discovery and ICMP on arbitrary bytes: they terminate, and a parsed message is
/// equal after writing and parsing. A packet that counts as an ICMP error does so at every shorter length that still
/// has its IP header.
pub(crate) fn neighbour(data: &[u8]) {
    bounded(data.len(), FREE, || messages(data));
}

/// Parses, writes and cuts the messages.
fn messages(data: &[u8]) {
    if let Some(arp) = Arp::parse(data) {
        let frame = arp.frame(ethernet::BROADCAST);
        assert_eq!(frame[ethernet::LEN..], data[..segue::wire::arp::LEN], "every byte of the packet is in the fields");
        assert_eq!(Arp::parse(&frame[ethernet::LEN..]), Some(arp));
    }
    if let Some(message) = Message::parse(data) {
        let mut bytes = vec![0; message.packet_len()];
        assert!(message.emit(&mut bytes).is_some());
        assert_eq!(Message::parse(&bytes), Some(message));
        assert!((0..bytes.len()).all(|len| Message::parse(&bytes[..len]).is_none()));
        let mut frame = [0; ndisc::MAX_FRAME];
        let to = ndisc::multicast_mac(message.destination);
        let len = message.frame(to, [2, 0, 0, 0, 0, 1], &mut frame).expect("room for the longest message");
        assert_eq!((&frame[..6], &frame[ethernet::LEN..len]), (&to[..], &bytes[..]));
    }
    if icmp::is_error_v4(data) {
        assert!((ipv4::MIN_LEN..data.len()).all(|len| icmp::is_error_v4(&data[..len])));
    }
    if icmp::is_error_v6(data) {
        assert!((ipv6::LEN..data.len()).all(|len| icmp::is_error_v6(&data[..len])));
    }
}
