//! The remote end of a GUE tunnel between 198.18.0.1 and 198.18.0.2, whose datagrams tests make.

use std::net::IpAddr;

use segue::encap::{Carrier, Config, Encapsulator, Mode};
use segue::packet::{Frag, Packet, Start, Tunnels};

/// Returns the configuration of both ends.
pub(crate) fn config() -> Config {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    Config::new(Mode::Ip, Carrier::Gue { remcsum: false }, address("198.18.0.1"), address("198.18.0.2"))
}

/// Returns datagrams of the remote end with these packets.
pub(crate) fn wrapped(packets: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut encap = Encapsulator::new(config()).unwrap();
    let wrap = |bytes| {
        let mut packet = Packet::default();
        packet.load(Frag::all(bytes), Start::Ip, &Tunnels::NONE);
        encap.push(&mut packet).unwrap();
        let mut all = packet.head.bytes()[usize::from(packet.outer.unwrap().skip)..].to_vec();
        packet.payload.frags().iter().for_each(|frag: &Frag<Vec<u8>>| all.extend_from_slice(frag.bytes()));
        all
    };
    packets.into_iter().map(wrap).collect()
}
