//! Datagrams for a tunnel of GRE in GUE and for one of VXLAN 42, both without options, none of which may be delivered.

use segue_tests::wire;

fn inner(from: &str) -> Vec<u8> {
    let (from, to) = ((from.parse().unwrap(), 4000), ("198.19.1.2".parse().unwrap(), 9));
    wire::udp_packet(from, to, b"no more than this", 0, false).packet
}

/// Returns a datagram of GRE in GUE with a packet of UDP.
pub(crate) fn good() -> Vec<u8> {
    wire::gue([0, 47, 0, 0], &[], &[&[0, 0, 8, 0], &inner("198.19.1.1")[..]].concat())
}

/// Returns datagrams for GRE without options in GUE, none of which may be delivered.
pub(crate) fn all() -> Vec<Vec<u8>> {
    let packet = inner("198.19.1.1");
    let gre = |flags: u16, kind: u16, rest: &[u8]| [&flags.to_be_bytes()[..], &kind.to_be_bytes(), rest].concat();
    let whole = gre(0, 0x0800, &packet);
    let gue = |first: [u8; 4], words: &[u32]| wire::gue(first, words, &whole);
    let around = |inner: &[u8]| wire::gue([0, 47, 0, 0], &[], inner);
    let mut all = vec![gue([0, 47, 0, 0], &[])[..3].to_vec(), vec![5, 47, 0, 0]];
    all.extend([0x80, 0xc0, 0x50, 0x20].map(|first| gue([first, 47, 0, 0], &[])));
    all.extend([0x4000_u16, 0x0100, 0x0002].map(|flags| {
        let [high, low] = flags.to_be_bytes();
        gue([0, 47, high, low], &[])
    }));
    all.extend([gue([1, 47, 0, 1], &[1]), gue([0, 47, 0, 1], &[])]);
    all.extend([0, 1, 4, 17, 41, 59, 255].map(|protocol| gue([0, protocol, 0, 0], &[])));
    all.extend([0x4000, 0x0800, 0x0001, 0x0007].map(|flags| around(&gre(flags, 0x0800, &packet))));
    all.extend([0x2000, 0x8000].map(|flags| around(&gre(flags, 0x0800, &[&[0; 4], &packet[..]].concat()))));
    all.extend([0x0806, 0x6558, 0x8847].map(|kind| around(&gre(0, kind, &packet))));
    all.push(around(&gre(0, 0x86dd, &packet)));
    all.extend([0, 1, 19, 21].map(|len| around(&gre(0, 0x0800, &packet[..len]))));
    all.extend([0x40, 0x44, 0x75].map(|first| around(&gre(0, 0x0800, &[&[first], &packet[1..]].concat()))));
    all.extend(
        ["127.0.0.1", "224.0.0.1", "239.1.2.3", "255.255.255.255"].map(|from| around(&gre(0, 0x0800, &inner(from)))),
    );
    all
}

/// Returns a datagram of VXLAN 42 with a packet of UDP in a frame.
pub(crate) fn good_frame() -> Vec<u8> {
    let packet = inner("198.19.1.1");
    [&[8, 0, 0, 0, 0, 0, 42, 0, 0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 8, 0][..], &packet].concat()
}

/// Returns datagrams for VXLAN 42 without options, none of which may be delivered.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let changed = |at: usize, byte: u8| {
        let mut bytes = good_frame();
        bytes[at] = byte;
        bytes
    };
    let mut all: Vec<Vec<u8>> = [3, 7, 8, 12, 21].iter().map(|len| good_frame()[..*len].to_vec()).collect();
    // Flags and reserved bits, remote checksum offload among them; another network; a group as the sender.
    let changes = [(0, 0), (0, 0x88), (0, 0x0c), (1, 1), (1, 0x20), (2, 4), (3, 1), (7, 1), (7, 0x80)];
    all.extend(changes.map(|(at, byte)| changed(at, byte)));
    all.extend([(4, 1), (6, 43), (14, 1)].map(|(at, byte)| changed(at, byte)));
    let mut nobody = good_frame();
    nobody[14..20].fill(0);
    all.push(nobody);
    all
}
