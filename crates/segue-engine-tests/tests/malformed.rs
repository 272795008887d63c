//! Tests of malformed encapsulations of every kind: each is refused for its own reason, none causes a panic, and no
//! part of it is delivered.

use std::net::IpAddr;

use segue::encap::{Carrier, Config, Decapsulator, GreOptions, Mode};
use segue::packet::{Frag, Packet};
use segue::reason::Reason;
use segue_testkit::build::{Ethernet, Gre, Ip, Remcsum, Shim, Tunnel, Udp, V4, V6};
use segue_testkit::flow::Sender;
use segue_testkit::sum;

/// A tunnel, and a valid packet of that tunnel.
struct Good {
    name: &'static str,
    config: Config,
    bytes: Vec<u8>,
    /// Offset of the bytes after the outer IP header.
    l4: usize,
}

impl Good {
    fn has_udp(&self) -> bool {
        self.config.carrier != Carrier::Bare
    }

    /// Returns the offset of the bytes after UDP, or after IP without UDP.
    fn inside(&self) -> usize {
        self.l4 + if self.has_udp() { 8 } else { 0 }
    }

    /// Returns the packet after a change, with outer lengths and checksums corrected.
    fn with(&self, change: impl FnOnce(&mut Vec<u8>, usize)) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        change(&mut bytes, self.inside());
        let len = bytes.len();
        if bytes[0] >> 4 == 4 {
            put(&mut bytes, 2, len as u16);
        } else {
            put(&mut bytes, 4, (len - 40) as u16);
        }
        if self.has_udp() {
            put(&mut bytes, self.l4 + 4, (len - self.l4) as u16);
        }
        self.resum(&mut bytes);
        bytes
    }

    fn resum(&self, bytes: &mut [u8]) {
        if bytes[0] >> 4 == 4 {
            put(bytes, 10, 0);
            let field = !sum::fold(&bytes[..20]);
            put(bytes, 10, field);
        }
        if self.has_udp() && bytes.len() >= self.l4 + 8 && bytes[self.l4 + 6..self.l4 + 8] != [0, 0] {
            put(bytes, self.l4 + 6, 0);
            let addresses = if self.l4 == 20 { 12..20 } else { 8..40 };
            let (src, dst) = bytes[addresses.clone()].split_at(addresses.len() / 2);
            let field = match !sum::with_pseudo(src, dst, 17, &bytes[self.l4..]) {
                0 => 0xffff,
                field => field,
            };
            put(bytes, self.l4 + 6, field);
        }
    }

    /// Decapsulates `bytes`; returns the reason of a refusal, if any.
    fn fate(&self, bytes: &[u8]) -> &'static str {
        let mut inside = Packet::default();
        let result = Decapsulator::new(self.config).unwrap().pull_packet(Frag::all(bytes.to_vec()), &mut inside);
        match result {
            Ok(()) => "taken",
            Err(why) => {
                assert!(inside.is_empty(), "{}: {} leaves something behind", self.name, why.name());
                why.name()
            }
        }
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn goods() -> Vec<Good> {
    let key = GreOptions { ikey: Some(42), okey: Some(42), icsum: true, ocsum: true, ..GreOptions::default() };
    let key_csum = Gre { checksum: true, key: Some(42), seq: None };
    let vxlan = |remcsum| Carrier::Vxlan { vni: 42, remcsum, takes_remcsum: true };
    let rco = Shim::Gue(Some(Remcsum::Transport));
    let gue = Carrier::Gue { remcsum: true };
    type Row = (&'static str, Mode, Carrier, Option<(u16, Shim)>, Option<Gre>, bool);
    let kinds: [Row; 10] = [
        ("gue", Mode::Ip, gue, Some((6080, Shim::Gue(None))), None, false),
        ("gue remcsum", Mode::Ip, gue, Some((6080, rco)), None, false),
        ("gue gre", Mode::Gre(key), gue, Some((6080, Shim::Gue(None))), Some(key_csum), false),
        ("gue gretap", Mode::GreTap(key), gue, Some((6080, rco)), Some(key_csum), true),
        ("fou", Mode::Ip, Carrier::Fou, Some((6080, Shim::Fou)), None, false),
        ("vxlan", Mode::Ethernet, vxlan(false), Some((4789, Shim::Vxlan(42, false))), None, true),
        ("vxlan remcsum", Mode::Ethernet, vxlan(true), Some((4789, Shim::Vxlan(42, true))), None, true),
        ("geneve", Mode::Ethernet, Carrier::Geneve { vni: 42 }, Some((6081, Shim::Geneve(42, 3))), None, true),
        ("ipip", Mode::Ip, Carrier::Bare, None, None, false),
        ("gre", Mode::Gre(key), Carrier::Bare, None, Some(key_csum), false),
    ];
    let inner = Sender::tcp(Ip::V4(V4::new(1, 1, 2)), 1, 1, Vec::new()).send(64, 0).bytes();
    let ethernet = Ethernet { dst: [2, 0, 0, 0, 0, 2], src: [2, 0, 0, 0, 0, 1], tags: Vec::new() };
    let mut goods = Vec::new();
    for outer in [Ip::V4(V4::new(0, 1, 2)), Ip::V6(V6::new(0, 1, 2))] {
        let (local, remote): (IpAddr, IpAddr) = match outer {
            Ip::V4(_) => ("198.18.0.2".parse().unwrap(), "198.18.0.1".parse().unwrap()),
            Ip::V6(_) => ("2001:db8:0:0::2".parse().unwrap(), "2001:db8:0:0::1".parse().unwrap()),
        };
        for (name, mode, carrier, udp, gre, is_frame) in &kinds {
            let udp = udp.map(|(dst_port, shim)| (Udp { src_port: 50_000, dst_port, checksum: true }, shim));
            let ethernet = is_frame.then(|| ethernet.clone());
            let bytes = Tunnel { ip: outer.clone(), udp, gre: *gre, ethernet }.wrap(&inner);
            let l4 = if local.is_ipv4() { 20 } else { 40 };
            goods.push(Good { name, config: Config::new(*mode, *carrier, local, remote), bytes, l4 });
        }
    }
    goods
}

/// A change of a packet, and whether outer lengths and checksums are corrected afterwards.
type Change = Box<dyn Fn(&Good) -> Vec<u8>>;

fn raw(change: impl Fn(&mut Vec<u8>, &Good) + 'static) -> Change {
    Box::new(move |good| {
        let mut bytes = good.bytes.clone();
        change(&mut bytes, good);
        bytes
    })
}

fn fixed(change: impl Fn(&mut Vec<u8>, usize) + 'static) -> Change {
    Box::new(move |good| good.with(&change))
}

/// Returns the changes, the tunnels to which they apply, and the expected reasons.
fn cases() -> Vec<(&'static [&'static str], &'static str, Change, &'static str)> {
    const UDP: &[&str] = &["gue", "gue remcsum", "gue gre", "gue gretap", "fou", "vxlan", "vxlan remcsum", "geneve"];
    const ALL: &[&str] =
        &["gue", "gue remcsum", "gue gre", "gue gretap", "fou", "vxlan", "vxlan remcsum", "geneve", "ipip", "gre"];
    const GUE: &[&str] = &["gue", "gue remcsum", "gue gre", "gue gretap"];
    const VXLAN: &[&str] = &["vxlan", "vxlan remcsum"];
    const PLAIN: &[&str] = &["fou", "ipip"];
    let cut = |len: usize| fixed(move |bytes, at| bytes.truncate(at + len));
    let set = |place: usize, value: u8| fixed(move |bytes, at| bytes[at + place] = value);
    vec![
        (ALL, "nothing at all", raw(|bytes, _| bytes.clear()), "outer_malformed"),
        (ALL, "half an IP header", raw(|bytes, _| bytes.truncate(11)), "outer_malformed"),
        (ALL, "IP version 5", raw(|bytes, _| bytes[0] = 0x50 | bytes[0] & 15), "outer_malformed"),
        (ALL, "a length beyond the packet", raw(|bytes, _| bytes.truncate(bytes.len() - 1)), "outer_malformed"),
        (
            ALL,
            "a source from elsewhere",
            raw(|bytes, good| {
                bytes[good.l4 / 2 + if good.l4 == 20 { 5 } else { 3 }] ^= 4;
                good.resum(bytes);
            }),
            "outer_address",
        ),
        (
            ALL,
            "a destination that is not us",
            raw(|bytes, good| {
                bytes[good.l4 - 1] ^= 4;
                good.resum(bytes);
            }),
            "outer_address",
        ),
        (
            ALL,
            "another protocol",
            raw(|bytes, good| {
                bytes[if good.l4 == 20 { 9 } else { 6 }] = 132;
                good.resum(bytes);
            }),
            "outer_protocol",
        ),
        (UDP, "a UDP length of 7", raw(|bytes, good| put(bytes, good.l4 + 4, 7)), "outer_malformed"),
        (UDP, "a UDP length beyond the packet", raw(|bytes, good| put(bytes, good.l4 + 4, 9999)), "outer_malformed"),
        (
            UDP,
            "another port",
            raw(|bytes, good| {
                bytes[good.l4 + 3] ^= 1;
                good.resum(bytes);
            }),
            "outer_port",
        ),
        (UDP, "a flipped bit inside", raw(|bytes, _| *bytes.last_mut().unwrap() ^= 1), "outer_csum"),
        (GUE, "nothing behind UDP", cut(0), "gue_truncated"),
        (GUE, "half a GUE header", cut(3), "gue_truncated"),
        (
            GUE,
            "a GUE header longer than the datagram",
            fixed(|bytes, at| {
                bytes.truncate(at + 60);
                bytes[at] = 0x1f;
            }),
            "gue_truncated",
        ),
        (GUE, "GUE version 2", set(0, 0x80), "gue_version"),
        (GUE, "GUE version 3", set(0, 0xc0), "gue_version"),
        (GUE, "GUE version 1 with IP version 5", set(0, 0x50), "gue_version"),
        (GUE, "GUE version 1 with IP version 7", set(0, 0x70), "gue_version"),
        (GUE, "an unknown GUE flag", set(2, 0x02), "gue_flags"),
        (&["gue", "gue gre"], "a GUE control message", set(0, 0x20), "gue_control"),
        (&["gue", "gue gre"], "private flags without room", set(3, 0x01), "gue_header_len"),
        (GUE, "a protocol that is not the mode's", set(1, 50), "inner_protocol"),
        (&["gue remcsum", "gue gretap"], "an unknown private flag", set(4, 0x81), "gue_flags"),
        (&["gue remcsum", "gue gretap"], "a field before the start", set(9, 200), "remcsum_order"),
        (&["gue remcsum", "gue gretap"], "an odd distance", set(9, 1), "remcsum_order"),
        (&["gue remcsum", "gue gretap"], "a field past the packet", set(10, 0xf0), "remcsum_bounds"),
        (&["gue remcsum"], "a field that is none", set(11, 38), "remcsum_field"),
        (
            &["gue remcsum"],
            "a field that is not primed",
            fixed(|bytes, at| bytes[at + 12 + 36] ^= 0x40),
            "remcsum_primed",
        ),
        (
            &["vxlan remcsum"],
            "a field that is not primed",
            fixed(|bytes, at| bytes[at + 8 + 14 + 36] ^= 0x40),
            "remcsum_primed",
        ),
        (&["vxlan remcsum"], "the place of a header that is not there", set(7, 0x20), "remcsum_field"),
        (&["vxlan remcsum"], "a place past the packet", set(7, 0x7f), "remcsum_bounds"),
        (VXLAN, "half a VXLAN header", cut(5), "vxlan_truncated"),
        (VXLAN, "no valid identifier", set(0, 0), "vxlan_no_vni"),
        (VXLAN, "group policy", set(0, 0x88), "vxlan_flags"),
        (VXLAN, "another protocol's flag (GPE)", set(0, 0x0c), "vxlan_flags"),
        (VXLAN, "a reserved bit", set(3, 1), "vxlan_flags"),
        (&["vxlan"], "a reserved byte", set(7, 1), "vxlan_flags"),
        (VXLAN, "another network", set(6, 43), "vni"),
        (&["geneve"], "half a Geneve header", cut(7), "geneve_truncated"),
        (&["geneve"], "options past the datagram", set(0, 0x3f), "geneve_truncated"),
        (&["geneve"], "Geneve version 1", set(0, 0x40), "geneve_version"),
        (&["geneve"], "a Geneve control packet", set(1, 0x80), "geneve_control"),
        (&["geneve"], "an option longer than the options", set(11, 9), "geneve_options"),
        (&["geneve"], "an unknown critical option", set(10, 0x83), "geneve_critical"),
        (&["geneve"], "another network", set(6, 43), "vni"),
        (&["geneve"], "another protocol", set(2, 0x12), "inner_protocol"),
        (VXLAN, "half an Ethernet header", cut(8 + 9), "inner_malformed"),
        (VXLAN, "a frame from nobody", fixed(|bytes, at| bytes[at + 14..at + 20].fill(0)), "inner_source"),
        (VXLAN, "a frame from a group", set(8 + 6, 3), "inner_source"),
        (PLAIN, "nothing inside", cut(0), "inner_malformed"),
        (PLAIN, "half an inner header", cut(12), "inner_malformed"),
        (PLAIN, "an inner length beyond the packet", set(2, 0x40), "inner_malformed"),
        (
            PLAIN,
            "an inner length shorter than its header",
            fixed(|bytes, at| put(bytes, at + 2, 10)),
            "inner_malformed",
        ),
        (PLAIN, "inner IP version 9", set(0, 0x95), "inner_malformed"),
        (PLAIN, "an inner header of 8 bytes", set(0, 0x42), "inner_malformed"),
        (PLAIN, "an inner source that is loopback", set(12, 127), "inner_source"),
        (PLAIN, "an inner source that is multicast", set(12, 230), "inner_source"),
        (&["gre"], "half a GRE header", cut(3), "gre_malformed"),
        (&["gre"], "GRE routing", fixed(|bytes, at| bytes[at] |= 0x40), "gre_malformed"),
        (&["gre"], "GRE version 1", set(1, 1), "gre_malformed"),
        (&["gre"], "no key", fixed(|bytes, at| bytes[at] &= !0x20), "gre_mismatch"),
        (&["gre"], "another key", set(11, 43), "gre_mismatch"),
        (&["gre"], "no checksum", fixed(|bytes, at| bytes[at] &= !0x80), "gre_mismatch"),
        (&["gre"], "another EtherType", set(2, 0x12), "inner_protocol"),
        (&["gre"], "a wrong checksum", fixed(|bytes, _| *bytes.last_mut().unwrap() ^= 1), "gre_csum"),
        (&["gue gre"], "a wrong checksum", fixed(|bytes, _| *bytes.last_mut().unwrap() ^= 1), "gre_csum"),
        (
            PLAIN,
            "congestion marked outside what cannot say so",
            raw(|bytes, good| {
                if good.l4 == 20 {
                    bytes[1] |= 3;
                } else {
                    bytes[1] |= 0x30;
                }
                good.resum(bytes);
            }),
            "ecn",
        ),
    ]
}

#[test]
fn more_than_a_hundred_malformed_encapsulations_each_end_under_their_own_reason() {
    let (goods, cases) = (goods(), cases());
    for good in &goods {
        assert_eq!(good.fate(&good.bytes), "taken", "{} over IPv{}", good.name, if good.l4 == 20 { 4 } else { 6 });
        assert_eq!(good.with(|_, _| {}), good.bytes, "{}", good.name);
    }
    let (mut count, mut wrong) = (0, Vec::new());
    for (names, what, change, reason) in &cases {
        for good in goods.iter().filter(|good| names.contains(&good.name)) {
            let bytes = change(good);
            let version = if good.l4 == 20 { 4 } else { 6 };
            let fate = good.fate(&bytes);
            if fate != *reason {
                wrong.push(format!("{} over IPv{version}, {what}: {fate}, not {reason}", good.name));
            }
            count += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 200, "{count} cases");
}

/// Tests that a GUE header whose length field does not cover its remote checksum option is refused (CVE-2026-72351):
/// from 3.19 until 2026, Linux read the offset from past the end of such a header, and wrote a checksum there.
#[test]
fn cve_2026_72351_a_gue_header_that_does_not_cover_its_remote_checksum_is_refused() {
    let mut count = 0;
    for good in goods().iter().filter(|good| good.name == "gue remcsum") {
        for hlen in 0..2 {
            // The option stays in place, with valid values.
            let short = good.with(|bytes, at| bytes[at] = bytes[at] & 0xe0 | hlen);
            assert_eq!(good.fate(&short), "gue_header_len", "hlen {hlen}");
            count += 1;
        }
        assert_eq!(good.fate(&good.with(|bytes, at| bytes[at] = bytes[at] & 0xe0 | 2)), "taken");
    }
    assert_eq!(count, 4, "both versions of IP");
}

/// Tests that the Geneve option of CVE-2026-72408 counts as an unknown option: with class 0x0100 and type 1 it told
/// Linux where the headers of a nested tunnel are.
#[test]
fn cve_2026_72408_a_geneve_option_about_nested_headers_is_an_unknown_option() {
    for good in goods().iter().filter(|good| good.name == "geneve") {
        let with = |option: [u8; 12]| good.with(|bytes, at| bytes[at + 8..at + 20].copy_from_slice(&option));
        // Whatever the hint says, the inner packet is the one after the options.
        for hint in [[0; 8], [0xff; 8], [14, 34, 42, 50, 64, 84, 0, 0]] {
            let mut option = [1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0];
            option[4..].copy_from_slice(&hint);
            let inner = |bytes: Vec<u8>| {
                let mut inside = Packet::default();
                Decapsulator::new(good.config).unwrap().pull_packet(Frag::all(bytes), &mut inside).unwrap();
                let mut all = inside.head.bytes().to_vec();
                all.extend(inside.payload.pieces(0..usize::MAX).flatten());
                all
            };
            assert_eq!(inner(with(option)), inner(good.bytes.clone()), "{hint:x?}");
            option[2] |= 0x80;
            assert_eq!(good.fate(&with(option)), "geneve_critical", "{hint:x?}");
        }
    }
}

#[test]
fn over_ipv6_a_datagram_needs_a_checksum_and_over_ipv4_a_header_needs_one() {
    for mut good in goods().into_iter().filter(Good::has_udp) {
        let mut bytes = good.bytes.clone();
        put(&mut bytes, good.l4 + 6, 0);
        if good.l4 == 40 {
            assert_eq!(good.fate(&bytes), "outer_csum_absent", "{}", good.name);
            good.config.zero_csum6 = true;
        }
        let is_remote = matches!(good.name, "gue remcsum" | "gue gretap" | "vxlan remcsum");
        assert_eq!(good.fate(&bytes), if is_remote { "remcsum_no_outer_csum" } else { "taken" }, "{}", good.name);
    }
    for good in goods().iter().filter(|good| good.l4 == 20) {
        let mut bytes = good.bytes.clone();
        bytes[10] ^= 1;
        assert_eq!(good.fate(&bytes), "outer_ip_csum", "{}", good.name);
        let mut bytes = good.bytes.clone();
        bytes[6] = 0x20;
        good.resum(&mut bytes);
        assert_eq!(good.fate(&bytes), "outer_fragment", "{}", good.name);
    }
}
