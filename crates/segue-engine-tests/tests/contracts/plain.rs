//! Tests that a frame recognised as plain without the parser is one transport over one IP header to the parser.

use segue::packet::{Csum, Frag, Frame, Pool, Start, Tunnels, Unit};
use segue_testkit::Rng;

use crate::mutations::{effort, family, mutate};

#[test]
fn a_plain_frame_has_one_transport_over_one_ip_header_for_the_parser() {
    let (seed, count) = effort(20_000);
    let mut rng = Rng::new(seed);
    let mut pool = Pool::new(8);
    let (mut done, mut plain) = (0, 0);
    while done < count {
        let is_ethernet = rng.chance(500);
        let start = if is_ethernet { Start::Ethernet } else { Start::Ip };
        for mut bytes in family(&mut rng, is_ethernet) {
            done += 1;
            if rng.chance(500) {
                mutate(&mut rng, &mut bytes);
            }
            let frame = Frame { bytes: Frag::all(bytes.clone()), start, csum: Csum::Unknown };
            let Some(ip) = frame.plain_ip() else { continue };
            plain += 1;
            let packet = frame.parse(&Tunnels::NONE, &mut pool);
            let layout = &packet.layout;
            let what = format!("seed {seed}, frame {done}: {layout:?}\n{bytes:02x?}");
            assert_eq!((layout.ip_levels(), layout.outer_ip().map(|ip| ip.start())), (1, Some(ip)), "{what}");
            assert!(layout.transport().is_some() && layout.is_exact(), "{what}");
            assert_eq!(packet.offload.unit, Unit::Whole(Csum::Unknown), "{what}");
            pool.put(packet);
        }
    }
    assert!(plain > count / 5, "{plain} of {done}");
}
