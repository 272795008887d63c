use segue::wire::parse::{MAX_HEADERS, Start};
use segue::wire::{Kind, Stop, Tunnels, parse as parse_packet};

use crate::input::Input;

/// Parses arbitrary bytes: the parser terminates, and all reported headers lie inside the input, one after the other.
///
/// The lowest bit of the first byte says what the packet begins with: 0 for Ethernet, 1 for IP.
pub(crate) fn parse(data: &[u8]) {
    let mut input = Input::new(data);
    let start = if input.u8() & 1 == 0 { Start::Ethernet } else { Start::Ip };
    let bytes = input.rest();
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

        // Ethernet pads short frames; padding must not change what is found. A packet that is malformed for want of
        // bytes may become whole.
        if layout.ip_levels() > 0 && layout.stop() != Stop::Malformed && bytes.len() < 2048 {
            let mut padded = bytes[..layout.end()].to_vec();
            padded.resize(padded.len() + 46, 0xaa);
            assert_eq!(parse_packet(&padded, start, &tunnels), layout, "padding changed the layout");
        }
    }
}
