use segue::checksum::Sum;
use segue::encap::{Carrier, Config, Decapsulator, GreOptions, Mode, OuterCsum, Received};
use segue::packet::{Csum, Frag, Packet, Unit};

use crate::decap_judge::{decapsulators, pull};
use crate::resources::bounded;

/// Number of bytes that the tunnels may hold for the shortest packet.
const FREE: usize = 256 << 10;

/// Decapsulates an arbitrary outer packet by tunnels of every kind: it terminates, errors outside are refused, errors
/// inside stay errors, and a remote checksum is completed correctly or not at all. Whatever the port says of the outer
/// headers, a refused packet leaves nothing behind, and a known sum is that of the packet.
pub(crate) fn decap(data: &[u8]) {
    bounded(data.len(), FREE, || pulled(data));
}

/// Decapsulates the packet by tunnels of every kind.
fn pulled(data: &[u8]) {
    for mut tunnel in decapsulators() {
        if let Err(what) = pull(&mut tunnel, data) {
            panic!("{what}: {:?}", tunnel.config());
        }
        reported(tunnel.config(), data);
    }
}

/// Decapsulates what follows the outer headers of a packet, with everything that a port may report of them, by a tunnel
/// that expects unfinished checksums and sequence numbers in order.
fn reported(config: &Config, data: &[u8]) {
    let outer = if data.first().is_some_and(|first| first >> 4 == 4) { 20 } else { 40 };
    let at = outer + if config.carrier == Carrier::Bare { 0 } else { 8 };
    let Some(datagram) = data.get(at..) else { return };
    let mode = match config.mode {
        Mode::Gre(options) => {
            Mode::Gre(GreOptions { iseq: datagram.first().is_some_and(|first| first & 16 != 0), ..options })
        }
        mode => mode,
    };
    for unfinished in [None, Some(576)] {
        let mut tunnel = Decapsulator::new(Config { mode, unfinished, ..*config }).expect("a tunnel");
        for csum in [OuterCsum::Verified, OuterCsum::Absent, OuterCsum::Unknown] {
            for (tos, sum) in [(0, None), (1, Some(Sum::of(datagram))), (3, Some(Sum::of(datagram)))] {
                let mut inside = Packet::default();
                let done = tunnel.pull(Frag::all(datagram), &Received { tos, csum, sum }, &mut inside);
                if done.is_err() {
                    assert!(inside.is_empty(), "a refused packet leaves something behind: {config:?}");
                    continue;
                }
                if let Unit::Whole(Csum::Complete(known)) = inside.offload.unit {
                    let from = inside.layout.outer_ip().map_or(0, |ip| ip.start());
                    let mut bytes = inside.head.bytes()[from..].to_vec();
                    bytes.extend(inside.payload.pieces(0..usize::MAX).flatten());
                    assert_eq!(known.fold() % 0xffff, Sum::of(&bytes).fold() % 0xffff, "{config:?}");
                }
            }
        }
    }
}
