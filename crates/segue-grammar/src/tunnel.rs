//! The keywords of `segue tunnel`.

use crate::{Takes, Word};

const GRE: &[(&str, &[&str])] = &[("mode", &["gre", "ip6gre", "gretap", "ip6gretap"])];
const BRIDGE: &[(&str, &[&str])] = &[("mode", &["vxlan", "geneve"])];
const VXLAN: &[(&str, &[&str])] = &[("mode", &["vxlan"])];
const PORT: Takes = Takes::Number { min: 1, max: 65_535, or: &[] };

/// Every keyword, in the order in which help shows them.
pub const KEYWORDS: &[Word] = &[
    Word {
        name: "dev",
        takes: Takes::Device,
        metavar: "NAME",
        help: "the interface to create, deleted when segue ends; or vhost:PATH, the network device of a guest",
        required: true,
        ..Word::PLAIN
    },
    Word {
        name: "mode",
        takes: Takes::OneOf(&[
            "ipip",
            "sit",
            "gre",
            "gretap",
            "vxlan",
            "geneve",
            "ip6tnl",
            "ipip6",
            "ip6ip6",
            "ip6gre",
            "ip6gretap",
            "eth",
        ]),
        metavar: "MODE",
        default: "gre",
        help: "what is inside: ipip IPv4, sit IPv6, gre and ip6tnl both, gretap, vxlan and geneve Ethernet; names with ip6 need an IPv6 remote; with `peers` IP, or with eth Ethernet",
        ..Word::PLAIN
    },
    Word {
        name: "remote",
        takes: Takes::Host,
        metavar: "ADDR",
        help: "the other end: IPv4, IPv6 (a link-local one with its interface, fe80::1%eth0) or a host name, looked up at the start and at each reload",
        unless: "peers",
        required: true,
        ..Word::PLAIN
    },
    Word {
        name: "local",
        takes: Takes::Address,
        metavar: "ADDR",
        help: "local address; default: the one that the route to the remote prefers",
        ..Word::PLAIN
    },
    Word {
        name: "peers",
        takes: Takes::File { or: &["none"] },
        metavar: "FILE|none",
        help: "instead of `remote`: a table of peers, from a JSON file or empty at the start; `segue peer` changes it",
        ..Word::PLAIN
    },
    Word {
        name: "listen",
        takes: Takes::Listeners,
        metavar: "FORMS",
        help: "encapsulations of a peer table, with commas between, each with :PORT or its own: vxlan (8472), gue (6080), fou (8285); when not given gue",
        ..Word::PLAIN
    },
    Word {
        name: "lladdr",
        takes: Takes::Mac,
        metavar: "MAC",
        help: "Ethernet address of this end in the vxlan of a peer table; when not given one that follows from local and dev",
        ..Word::PLAIN
    },
    Word {
        name: "encap",
        takes: Takes::OneOf(&["none", "gue", "fou"]),
        metavar: "KIND",
        default: "none",
        help: "encapsulation: gue or fou in UDP, or none (directly in IP); vxlan and geneve bring their own",
        ..Word::PLAIN
    },
    Word {
        name: "encap-dport",
        aliases: &["dstport"],
        takes: PORT,
        metavar: "PORT",
        help: "the remote's UDP port; when not given 6080 for gue, 8472 for vxlan as in Linux, 6081 for geneve; fou has no default",
        ..Word::PLAIN
    },
    Word {
        name: "encap-sport",
        takes: Takes::Number { min: 1, max: 65_535, or: &["auto"] },
        metavar: "auto|PORT",
        default: "auto",
        help: "the source port; auto spreads inner flows over several",
        ..Word::PLAIN
    },
    Word {
        name: "srcport",
        takes: Takes::Ports,
        metavar: "MIN MAX",
        help: "range of source ports of vxlan, inclusive",
        needs: VXLAN,
        ..Word::PLAIN
    },
    Word {
        name: "port",
        takes: PORT,
        metavar: "PORT",
        help: "the UDP port to listen on; encap-dport when not given",
        ..Word::PLAIN
    },
    Word {
        name: "encap-csum",
        aliases: &["encap-csum6", "udpcsum"],
        default: "encap-csum",
        help: "outer UDP checksum (off in iproute2; trains need it)",
        ..Word::PLAIN
    },
    Word {
        name: "encap-remcsum",
        default: "noencap-remcsum",
        help: "leave inner checksums to the receiver (gue only)",
        needs: &[("encap", &["gue"])],
        unless: "peers",
        ..Word::PLAIN
    },
    Word {
        name: "id",
        aliases: &["vni"],
        takes: Takes::Number { min: 0, max: 0x00ff_ffff, or: &[] },
        metavar: "N",
        help: "network identifier of vxlan and geneve",
        needs: BRIDGE,
        unless: "peers",
        ..Word::PLAIN
    },
    Word {
        name: "udp6zerocsumtx",
        default: "noudp6zerocsumtx",
        help: "send no outer UDP checksum over IPv6",
        needs: BRIDGE,
        ..Word::PLAIN
    },
    Word {
        name: "udp6zerocsumrx",
        default: "noudp6zerocsumrx",
        help: "accept datagrams without UDP checksum over IPv6",
        needs: BRIDGE,
        ..Word::PLAIN
    },
    Word {
        name: "remcsumtx",
        default: "noremcsumtx",
        help: "leave inner checksums to the receiver, which must have remcsumrx",
        needs: VXLAN,
        ..Word::PLAIN
    },
    Word {
        name: "remcsumrx",
        default: "noremcsumrx",
        help: "accept packets whose inner checksum the sender left to the receiver",
        needs: VXLAN,
        unless: "peers",
        ..Word::PLAIN
    },
    Word {
        name: "learning",
        default: "learning",
        help: "learn the remote of each Ethernet address from received frames",
        needs: VXLAN,
        ..Word::PLAIN
    },
    Word {
        name: "ageing",
        takes: Takes::Number { min: 0, max: 1_000_000, or: &[] },
        metavar: "N",
        default: "300",
        unit: "seconds",
        help: "time after which a silent learned address is forgotten; 0: never",
        needs: VXLAN,
        ..Word::PLAIN
    },
    Word {
        name: "maxaddress",
        takes: Takes::Number { min: 1, max: 1 << 20, or: &[] },
        metavar: "N",
        default: "4096",
        help: "maximum number of learned addresses",
        needs: VXLAN,
        ..Word::PLAIN
    },
    Word {
        name: "fdb",
        takes: Takes::Neighbour,
        metavar: "MAC,ADDR",
        help: "the remote of this Ethernet address; 00:00:00:00:00:00 adds a remote for groups and unknown addresses",
        needs: VXLAN,
        repeats: true,
        ..Word::PLAIN
    },
    Word {
        name: "df",
        takes: Takes::OneOf(&["unset", "set", "inherit"]),
        metavar: "HOW",
        default: "unset",
        help: "DF bit of outer IPv4 headers: unset, set, or as inside (vxlan and geneve)",
        needs: BRIDGE,
        ..Word::PLAIN
    },
    Word {
        name: "addr",
        aliases: &["address"],
        takes: Takes::Prefix,
        metavar: "ADDR/LEN",
        help: "an address for the interface; may be given several times",
        repeats: true,
        ..Word::PLAIN
    },
    Word {
        name: "mtu",
        takes: Takes::Number { min: 68, max: 65_535, or: &["auto"] },
        metavar: "auto|N",
        default: "auto",
        unit: "bytes",
        help: "the interface's MTU; auto is the link's minus the headers",
        ..Word::PLAIN
    },
    Word {
        name: "ttl",
        aliases: &["hoplimit", "hlim"],
        takes: Takes::Number { min: 0, max: 255, or: &["inherit", "auto"] },
        metavar: "N|inherit|auto",
        default: "auto",
        help: "time to live outside; inherit copies the inner one; auto is 64 over IPv6 and for vxlan and geneve, else inherit; 0 is inherit, and auto for vxlan and geneve",
        ..Word::PLAIN
    },
    Word {
        name: "encaplimit",
        takes: Takes::OneOf(&["none"]),
        metavar: "none",
        default: "none",
        help: "send no encapsulation limit option (iproute2 sends 4 with ip6 modes); received ones are ignored",
        ..Word::PLAIN
    },
    Word {
        name: "tos",
        aliases: &["tclass", "dsfield"],
        takes: Takes::Hex { max: 0xff, or: &["inherit"] },
        metavar: "T|inherit",
        default: "0",
        help: "type of service outside, hexadecimal as in iproute2; its ECN bits follow RFC 6040",
        ..Word::PLAIN
    },
    Word {
        name: "pmtudisc",
        default: "pmtudisc",
        help: "set DF on outer packets; inner DF is always obeyed",
        ..Word::PLAIN
    },
    Word {
        name: "key",
        takes: Takes::Key,
        metavar: "K",
        help: "GRE key in both directions, a number or a dotted quad",
        needs: GRE,
        conflicts: &["ikey", "okey"],
        ..Word::PLAIN
    },
    Word {
        name: "ikey",
        takes: Takes::Key,
        metavar: "K",
        help: "GRE key of received packets",
        needs: GRE,
        ..Word::PLAIN
    },
    Word { name: "okey", takes: Takes::Key, metavar: "K", help: "GRE key of sent packets", needs: GRE, ..Word::PLAIN },
    Word {
        name: "csum",
        default: "nocsum",
        help: "GRE checksum in both directions",
        needs: GRE,
        conflicts: &["icsum", "ocsum"],
        ..Word::PLAIN
    },
    Word {
        name: "icsum",
        default: "noicsum",
        help: "require a GRE checksum in received packets",
        needs: GRE,
        ..Word::PLAIN
    },
    Word { name: "ocsum", default: "noocsum", help: "send a GRE checksum", needs: GRE, ..Word::PLAIN },
    Word {
        name: "seq",
        default: "noseq",
        help: "GRE sequence numbers in both directions",
        needs: GRE,
        conflicts: &["iseq", "oseq"],
        ..Word::PLAIN
    },
    Word {
        name: "iseq",
        default: "noiseq",
        help: "require GRE sequence numbers in received packets",
        needs: GRE,
        ..Word::PLAIN
    },
    Word { name: "oseq", default: "nooseq", help: "send GRE sequence numbers", needs: GRE, ..Word::PLAIN },
    Word {
        name: "gro",
        takes: Takes::OneOf(&["on", "off"]),
        metavar: "on|off",
        default: "on",
        help: "merge received packets into trains",
        ..Word::PLAIN
    },
    Word {
        name: "gso",
        takes: Takes::OneOf(&["on", "off"]),
        metavar: "on|off",
        default: "on",
        help: "accept trains to send; off cuts them at the interface",
        ..Word::PLAIN
    },
    Word {
        name: "profile",
        takes: Takes::OneOf(&["strict", "linux"]),
        metavar: "NAME",
        default: "strict",
        help: "which packets form a train: strict (every byte restorable) or linux",
        ..Word::PLAIN
    },
    Word {
        name: "fastpath",
        takes: Takes::OneOf(&["auto", "on", "off", "require"]),
        metavar: "HOW",
        default: "auto",
        help: "let the kernel carry packets past the daemon: auto only where nothing but speed differs; on wherever it can, past netfilter, tc filters, IPsec policies and reverse path filters for outer packets, and past queueing, counters and captures of the interface for sent ones; require both directions or no start; ipip, sit, ip6tnl and gre, bare or with noencap-csum; vxlan and geneve with noudpcsum",
        ..Word::PLAIN
    },
    Word {
        name: "workers",
        takes: Takes::Number { min: 1, max: 64, or: &["auto"] },
        metavar: "N|auto",
        default: "1",
        help: "threads that move packets, each with a share of the flows; auto: one for each processor, up to 16",
        ..Word::PLAIN
    },
    Word {
        name: "probe",
        takes: Takes::Number { min: 0, max: 3600, or: &[] },
        metavar: "N",
        default: "0",
        unit: "seconds",
        help: "time between two probes, which measure round trip and loss and keep NATs open; needs probe at both ends; 0: none",
        needs: &[("encap", &["gue"])],
        unless: "peers",
        ..Word::PLAIN
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_spelling_means_two_words() {
        let mut seen = BTreeSet::new();
        for (spelling, _) in KEYWORDS.iter().flat_map(Word::spellings) {
            assert!(seen.insert(spelling.clone()), "{spelling} is in the table twice");
        }
    }

    #[test]
    fn every_word_named_by_another_exists_and_every_word_has_help() {
        let names: BTreeSet<_> = KEYWORDS.iter().map(|word| word.name).collect();
        for word in KEYWORDS {
            assert!(!word.help.is_empty(), "{} has no help", word.name);
            let named = word.needs.iter().map(|(name, _)| name).chain(word.conflicts);
            for name in named {
                assert!(names.contains(name), "{} names {name}", word.name);
            }
            assert_eq!(word.metavar.is_empty(), word.takes == Takes::Switch, "{}", word.name);
        }
    }
}
