use std::ops::Range;

use segue::wire::geneve::{self, Geneve};
use segue::wire::gre::{self, Gre};
use segue::wire::gue::Gue;
use segue::wire::parse::{MAX_HEADERS, Start};
use segue::wire::vxlan::{self, Vxlan};
use segue::wire::{Header, Kind, Remcsum, Stop, Tunnels, ethernet, ethertype, ipv4, ipv6, parse as parse_packet};

use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that the layouts may hold for the shortest input.
const FREE: usize = 64 << 10;

/// Parses arbitrary bytes: the parser terminates, and all reported headers lie inside the input, one after the other.
/// What later stages read of a header lies inside it, and a tunnel header that is read and written again is the same.
///
/// The lowest bit of the first byte says what the packet begins with: 0 for Ethernet, 1 for IP.
pub(crate) fn parse(data: &[u8]) {
    bounded(data.len(), FREE, || layouts(data));
}

/// Compares the layouts of the bytes with what is in them.
fn layouts(data: &[u8]) {
    let mut input = Input::new(data);
    let start = if input.u8() & 1 == 0 { Start::Ethernet } else { Start::Ip };
    let bytes = input.rest();
    tunnel_headers(bytes);
    let tunnels = Tunnels::NONE.with_gue(6080).with_gue(6086).with_fou(5554, 4).with_fou(5547, 47).with_fou(5541, 41);
    let tunnels = tunnels.with_fou(5558, 143).with(4789, Kind::Vxlan).with(4790, Kind::Vxlan).with(6081, Kind::Geneve);
    for tunnels in [Tunnels::NONE, tunnels] {
        let layout = parse_packet(bytes, start, &tunnels);
        assert!(layout.headers().len() <= MAX_HEADERS);
        let mut end = 0;
        for header in layout.headers() {
            assert_eq!(header.start(), end, "headers follow each other: {layout:?}");
            end = header.end();
        }
        assert_eq!(end, layout.header_len());
        assert!(end <= layout.end(), "no header lies beyond the packet: {layout:?}");
        assert!(layout.end() <= bytes.len(), "no packet lies beyond its bytes: {layout:?}");
        assert_eq!(layout.transport().is_some(), layout.stop() == Stop::Transport);
        layout.headers().iter().for_each(|header| fields(bytes, header));
        let plain = layout.or_plain();
        assert!(layout.headers().starts_with(plain.headers()), "{layout:?} as plain UDP: {plain:?}");
        assert!(
            plain == layout || plain.transport().is_some_and(|last| last.kind == Kind::Udp),
            "{layout:?} {plain:?}"
        );

        // Ethernet pads short frames; padding must not change what is found. A packet that is malformed for want of
        // bytes may become whole.
        if layout.ip_levels() > 0 && layout.stop() != Stop::Malformed && bytes.len() < 2048 {
            let mut padded = bytes[..layout.end()].to_vec();
            padded.resize(padded.len() + 46, 0xaa);
            assert_eq!(parse_packet(&padded, start, &tunnels), layout, "padding changed the layout");
        }
    }
}

/// Reads the fields of a header of the layout as later stages do.
fn fields(bytes: &[u8], header: &Header) {
    let bytes = &bytes[header.start()..header.end()];
    match header.kind {
        Kind::Ethernet => {
            let address = |range: Range<usize>| *bytes[range].first_chunk::<6>().expect("a whole header");
            let (destination, source) = (address(ethernet::DST), address(ethernet::SRC));
            assert!(!(ethernet::is_group(destination) && ethernet::is_station(destination)));
            let kind = u16::from_be_bytes([bytes[ethernet::TYPE], bytes[ethernet::TYPE + 1]]);
            assert_eq!(ethernet::header(destination, source, kind), bytes);
        }
        Kind::Ipv4 => {
            let (source, destination) = (ipv4::source(bytes), ipv4::destination(bytes));
            let octets = [source, destination].map(|address| address.expect("a whole header").octets());
            assert_eq!(octets.concat(), bytes[ipv4::SRC.start..ipv4::DST.end]);
            let ends = ipv4::ends(bytes);
            assert!(ends.is_none_or(|(src, dst)| src.end <= bytes.len() && dst.end <= bytes.len()));
            let mut copy = bytes.to_vec();
            ipv4::drop_uncopied_options(&mut copy);
            assert_eq!((copy.len(), &copy[..ipv4::MIN_LEN]), (bytes.len(), &bytes[..ipv4::MIN_LEN]));
            let once = copy.clone();
            ipv4::drop_uncopied_options(&mut copy);
            assert_eq!(copy, once);
        }
        Kind::Ipv6 => {
            let (source, destination) = (ipv6::source(bytes), ipv6::destination(bytes));
            let octets = [source, destination].map(|address| address.expect("a whole header").octets());
            assert_eq!(octets.concat(), bytes[ipv6::SRC.start..ipv6::DST.end]);
            assert_eq!(ipv6::traffic_class(bytes[0], bytes[1]) >> 4, bytes[0] & 15);
            let ends = ipv6::ends(bytes);
            assert!(ends.is_none_or(|(src, dst)| src.end <= bytes.len() && dst.end <= bytes.len()));
            let (len, next) = ipv6::unfragmentable(bytes);
            assert!((ipv6::LEN..=bytes.len()).contains(&len) && next < len, "{len} {next}");
        }
        _ => {}
    }
}

/// Reads arbitrary bytes as each kind of tunnel header, and writes it again.
fn tunnel_headers(bytes: &[u8]) {
    let mut out = [0; gre::MAX_LEN];
    if let Some(header) = Gre::parse(bytes) {
        let len = header.len();
        assert_eq!(header.emit(&mut out[..len - 1]), None);
        assert_eq!(header.emit(&mut out), Some(()));
        assert_eq!((Gre::parse(&out[..len]), header.is_empty()), (Some(header), false));
    }
    if let Ok(header) = Gue::parse(bytes) {
        let len = Gue::emit_len(header.remcsum.is_some());
        assert_eq!(Gue::emit(&mut out[..len - 1], header.protocol, header.remcsum), None);
        assert_eq!(Gue::emit(&mut out, header.protocol, header.remcsum), Some(()));
        assert_eq!(Gue::parse(&out[..len]), Ok(Gue { len, ..header }));
        let mut copy = bytes.to_vec();
        Gue::withdraw_remcsum(&mut copy);
        assert_eq!(Gue::parse(&copy), Ok(Gue { remcsum: None, ..header }));
    }
    if let Ok(header) = Vxlan::parse(bytes) {
        assert_eq!(header.emit(&mut out[..vxlan::LEN - 1]), None);
        assert_eq!(header.emit(&mut out), Some(()));
        assert_eq!(Vxlan::parse(&out[..vxlan::LEN]), Ok(header));
        let mut copy = bytes.to_vec();
        Vxlan::withdraw_remcsum(&mut copy);
        assert_eq!(Vxlan::parse(&copy), Ok(Vxlan { remcsum: None, ..header }));
    }
    if let Ok(header) = Geneve::parse(bytes) {
        assert_eq!(Geneve::emit(&mut out[..geneve::MIN_LEN - 1], header.vni), None);
        assert_eq!(Geneve::emit(&mut out, header.vni), Some(()));
        let bare = Geneve { protocol: ethertype::TEB, len: geneve::MIN_LEN, is_critical: false, ..header };
        assert_eq!(Geneve::parse(&out[..geneve::MIN_LEN]), Ok(bare));
    }
    // What VXLAN cannot say of an option is not written.
    if let Some(&[a, b, c, d]) = bytes.first_chunk() {
        let option = Remcsum { start: u16::from_be_bytes([a, b]), offset: u16::from_be_bytes([c, d]) };
        let header = Vxlan { vni: 5, remcsum: Some(option) };
        assert_eq!(header.emit(&mut out).is_some(), Vxlan::is_representable(option));
    }
}
