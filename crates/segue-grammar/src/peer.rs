//! The keywords of `segue peer add` and `segue peer replace`.

use crate::{Takes, Word};

const VXLAN: &[(&str, &[&str])] = &[("encap", &["vxlan"])];

/// Every keyword, in the order in which help shows them.
pub const KEYWORDS: &[Word] = &[
    Word {
        name: "remote",
        takes: Takes::Address,
        metavar: "ADDR",
        help: "the outer address of the peer",
        required: true,
        ..Word::PLAIN
    },
    Word {
        name: "encap",
        takes: Takes::OneOf(&["vxlan", "gue", "fou"]),
        metavar: "FORM",
        help: "the encapsulation, one of the tunnel's `listen`; not needed where that is only one",
        ..Word::PLAIN
    },
    Word {
        name: "port",
        aliases: &["dstport"],
        takes: Takes::Number { min: 1, max: 65_535, or: &[] },
        metavar: "PORT",
        help: "the UDP port of the peer; when not given that of the tunnel's own listener",
        ..Word::PLAIN
    },
    Word {
        name: "vni",
        aliases: &["id"],
        takes: Takes::Number { min: 0, max: 0x00ff_ffff, or: &[] },
        metavar: "N",
        help: "network identifier of vxlan; when not given the tunnel's `id`",
        needs: VXLAN,
        ..Word::PLAIN
    },
    Word {
        name: "mac",
        aliases: &["lladdr"],
        takes: Takes::Mac,
        metavar: "MAC",
        help: "Ethernet address of the peer's end, the destination of frames inside of vxlan",
        needs: VXLAN,
        ..Word::PLAIN
    },
    Word {
        name: "udpcsum",
        aliases: &["encap-csum"],
        help: "datagrams have an outer UDP checksum; with noudpcsum they need none, so that the in-kernel path carries them; when not given as the tunnel's encap-csum",
        ..Word::PLAIN
    },
    Word {
        name: "remcsum",
        help: "leave inner checksums to the peer, with gue; when not given as the tunnel's encap-remcsum",
        ..Word::PLAIN
    },
];
