//! The attributes of the kernel's messages that are needed: a link may have hundreds, which take many times their
//! bytes when they are parsed, and some of which a parser may not know.

use std::io;

use netlink_packet_core::NetlinkMessage;
use netlink_packet_route::RouteNetlinkMessage;

/// Length of `struct nlmsghdr` in bytes.
const HEADER: usize = 16;
/// Length of `struct nlattr`.
const ATTRIBUTE: usize = 4;
/// Length of `struct rtnexthop`.
const HOP: usize = 8;
/// The bits of an attribute's type that are its number (NLA_TYPE_MASK).
const NUMBER: u16 = 0x3fff;
/// Type of a message without meaning (linux/netlink.h).
const NLMSG_NOOP: u16 = 1;
/// The first type of a message of rtnetlink (RTM_BASE); those before it are of netlink itself.
const FIRST: u16 = 16;
/// Number of an attribute with the name of a queueing discipline or filter (TCA_KIND).
const TCA_KIND: u16 = 1;

/// The part of an attribute that is needed.
enum Part {
    Whole,
    Attributes(&'static [Needed]),
    /// A list of `struct rtnexthop`, each followed by attributes.
    Hops(&'static [Needed]),
}

/// The number of an attribute, less than 64, and the part of it that is needed.
type Needed = (u16, Part);

/// Attributes of links: IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_MASTER, IFLA_LINKINFO with its IFLA_INFO_KIND,
/// IFLA_IFALIAS, IFLA_PROMISCUITY, IFLA_CARRIER (linux/if_link.h).
const LINK: &[Needed] = &[
    (1, Part::Whole),
    (3, Part::Whole),
    (4, Part::Whole),
    (10, Part::Whole),
    (18, Part::Attributes(&[(1, Part::Whole)])),
    (20, Part::Whole),
    (30, Part::Whole),
    (33, Part::Whole),
];
/// Attributes of addresses: IFA_ADDRESS, IFA_LOCAL, IFA_FLAGS, IFA_PROTO (linux/if_addr.h).
const ADDRESS: &[Needed] = &[(1, Part::Whole), (2, Part::Whole), (8, Part::Whole), (11, Part::Whole)];
/// Attributes of routes: RTA_DST, RTA_OIF, RTA_GATEWAY, RTA_PRIORITY, RTA_PREFSRC, RTA_METRICS with its RTAX_MTU,
/// RTA_MULTIPATH, RTA_TABLE, RTA_VIA, RTA_ENCAP_TYPE, which says enough of RTA_ENCAP, RTA_NH_ID (linux/rtnetlink.h).
const ROUTE: &[Needed] = &[
    (1, Part::Whole),
    (4, Part::Whole),
    (5, Part::Whole),
    (6, Part::Whole),
    (7, Part::Whole),
    (8, Part::Attributes(&[(2, Part::Whole)])),
    (9, Part::Hops(&[(5, Part::Whole), (18, Part::Whole), (21, Part::Whole)])),
    (15, Part::Whole),
    (18, Part::Whole),
    (21, Part::Whole),
    (30, Part::Whole),
];
/// Attributes of neighbours: NDA_DST, NDA_LLADDR (linux/neighbour.h).
const NEIGHBOUR: &[Needed] = &[(1, Part::Whole), (2, Part::Whole)];
/// Attributes of routing rules that tell packets: FRA_OIFNAME, FRA_UID_RANGE, FRA_IP_PROTO, FRA_SPORT_RANGE,
/// FRA_DPORT_RANGE (linux/fib_rules.h).
const RULE: &[Needed] =
    &[(17, Part::Whole), (20, Part::Whole), (22, Part::Whole), (23, Part::Whole), (24, Part::Whole)];
/// Attributes of queueing disciplines, and of filters that are no programs.
const KIND: &[Needed] = &[(TCA_KIND, Part::Whole)];
/// Attributes of programs: TCA_KIND, TCA_OPTIONS with its TCA_BPF_NAME and TCA_BPF_ID (linux/pkt_cls.h).
const PROGRAM: &[Needed] = &[(TCA_KIND, Part::Whole), (2, Part::Attributes(&[(7, Part::Whole), (11, Part::Whole)]))];

/// Returns the length of the structure in front of a message's attributes, and those that are needed; `None` for a type
/// that no reader knows.
fn needed_of(kind: u16, body: &[u8]) -> Option<(usize, &'static [Needed])> {
    /// Length of `struct tcmsg`.
    const TRAFFIC: usize = 20;
    Some(match kind {
        // RTM_NEWLINK, RTM_DELLINK: struct ifinfomsg, and so on.
        16 | 17 => (16, LINK),
        20 | 21 => (8, ADDRESS),
        24 | 25 => (12, ROUTE),
        28 | 29 => (12, NEIGHBOUR),
        32 | 33 => (12, RULE),
        36 | 37 => (TRAFFIC, KIND),
        44 | 45 => {
            let is_program = |bytes: &[u8]| bytes.strip_suffix(&[0_u8]).unwrap_or(bytes) == b"bpf";
            let mut rest = body.get(TRAFFIC..).unwrap_or(&[]);
            let kind = std::iter::from_fn(|| {
                let (found, behind) = attribute(rest)?;
                rest = behind;
                Some(found)
            });
            let mut kind = kind.filter(|found| found.number == TCA_KIND).map(|found| found.value);
            (TRAFFIC, if kind.next().is_some_and(is_program) { PROGRAM } else { KIND })
        }
        _ => return None,
    })
}

/// Reads the first message of a datagram with those of its attributes that are needed, each once. Of an unknown type,
/// the message is [`NetlinkPayload::Noop`](netlink_packet_core::NetlinkPayload::Noop).
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] for what is no message.
pub fn message(datagram: &[u8]) -> io::Result<NetlinkMessage<RouteNetlinkMessage>> {
    let parsed = |bytes: &[u8]| {
        NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
    };
    let whole = datagram.first_chunk().and_then(|len| datagram.get(..u32::from_ne_bytes(*len) as usize));
    let Some((header, body)) = whole.and_then(<[u8]>::split_first_chunk::<HEADER>) else { return parsed(datagram) };
    let kind = u16::from_ne_bytes([header[4], header[5]]);
    if kind < FIRST {
        return parsed(datagram);
    }
    let mut bytes = header.to_vec();
    match needed_of(kind, body) {
        Some((len, needed)) => {
            let (front, attributes) = body.split_at(len.min(body.len()));
            bytes.extend_from_slice(front);
            copy(attributes, needed, &mut bytes);
        }
        None => bytes[4..6].copy_from_slice(&NLMSG_NOOP.to_ne_bytes()),
    }
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    let mut message = parsed(&bytes)?;
    // Its place in the datagram is still that of the whole message.
    message.header.length = (HEADER + body.len()) as u32;
    Ok(message)
}

/// An attribute: its type with all bits, its number, and its value.
struct Attribute<'a> {
    kind: u16,
    number: u16,
    value: &'a [u8],
}

/// Splits off the first attribute and returns the bytes behind it; `None` where there is none.
fn attribute(bytes: &[u8]) -> Option<(Attribute<'_>, &[u8])> {
    let &[a, b, c, d] = bytes.first_chunk::<ATTRIBUTE>()?;
    let (len, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
    let value = bytes.get(ATTRIBUTE..len)?;
    Some((Attribute { kind, number: kind & NUMBER, value }, behind(bytes, len)))
}

/// Returns the bytes behind the first `len` and their padding.
fn behind(bytes: &[u8], len: usize) -> &[u8] {
    bytes.get(len.next_multiple_of(4)..).unwrap_or(&[])
}

/// Copies the needed attributes, each once. What is no attribute is copied too, so that it stays an error.
fn copy(mut rest: &[u8], needed: &[Needed], to: &mut Vec<u8>) {
    let (start, mut seen) = (to.len(), 0_u64);
    while let Some((found, behind)) = attribute(rest) {
        rest = behind;
        let is_it = |(number, _): &&Needed| *number == found.number;
        let Some((number, part)) = needed.iter().find(is_it).filter(|(number, _)| seen >> number & 1 == 0) else {
            continue;
        };
        seen |= 1_u64 << number;
        pad(start, to);
        let begin = to.len();
        to.extend([0, 0]);
        to.extend(found.kind.to_ne_bytes());
        match part {
            Part::Whole => to.extend_from_slice(found.value),
            Part::Attributes(needed) => copy(found.value, needed, to),
            Part::Hops(needed) => copy_hops(found.value, needed, to),
        }
        // An empty list of attributes is an error to the parser.
        if matches!(part, Part::Attributes(_)) && to.len() == begin + ATTRIBUTE {
            to.truncate(begin);
            continue;
        }
        end(begin, to);
    }
    if !rest.is_empty() {
        pad(start, to);
        to.extend_from_slice(rest);
    }
}

/// Pads what begins at `start` and ends here.
fn pad(start: usize, to: &mut Vec<u8>) {
    to.resize(start + (to.len() - start).next_multiple_of(4), 0);
}

/// Copies next hops with the attributes that are needed.
fn copy_hops(mut rest: &[u8], needed: &[Needed], to: &mut Vec<u8>) {
    while let Some(len) = rest.first_chunk().map(|len| usize::from(u16::from_ne_bytes(*len)))
        && let Some((hop, attributes)) = rest.get(..len).and_then(|hop| hop.split_first_chunk::<HOP>())
    {
        let begin = to.len();
        to.extend_from_slice(hop);
        copy(attributes, needed, to);
        end(begin, to);
        rest = behind(rest, len);
    }
    to.extend_from_slice(rest);
}

/// Sets the length of what begins at `begin` and ends here. A copy is not longer than its original, whose length fits.
fn end(begin: usize, to: &mut [u8]) {
    let len = (to.len() - begin) as u16;
    to[begin..begin + 2].copy_from_slice(&len.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NetlinkPayload;
    use netlink_packet_route::link::LinkAttribute;
    use netlink_packet_route::route::{RouteAttribute, RouteMetric};
    use netlink_packet_route::rule::RuleAttribute;
    use netlink_packet_route::tc::{TcAttribute, TcFilterBpfOption, TcOption};

    use super::*;

    fn attribute(number: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((ATTRIBUTE + value.len()) as u16).to_ne_bytes().to_vec();
        bytes.extend(number.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn whole(kind: u16, front: &[u8], attributes: &[Vec<u8>]) -> Vec<u8> {
        let body = [front, &attributes.concat()].concat();
        let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    fn inner(bytes: &[u8]) -> RouteNetlinkMessage {
        let message = message(bytes).unwrap();
        assert_eq!(message.header.length as usize, bytes.len());
        let NetlinkPayload::InnerMessage(inner) = message.payload else { panic!("{message:?}") };
        inner
    }

    #[test]
    fn of_a_link_with_many_attributes_the_needed_ones_are_read() {
        // A list of virtual functions, twice an MTU, statistics of which nothing is right, and an unknown one.
        let functions = attribute(1, &attribute(1, &[0; 36])).repeat(256);
        let kind = [attribute(1, b"tun\0"), attribute(2, &attribute(9, &[1]).repeat(100))].concat();
        let attributes = [
            attribute(3, b"eth0\0"),
            attribute(22 | 0x8000, &functions),
            attribute(4, &1500_u32.to_ne_bytes()),
            attribute(18 | 0x8000, &kind),
            attribute(4, &9000_u32.to_ne_bytes()),
            attribute(23, &[1, 2, 3]),
            attribute(30, &1_u32.to_ne_bytes()),
            attribute(0x3ff0, &[]),
        ];
        let RouteNetlinkMessage::NewLink(link) = inner(&whole(16, &[0; 16], &attributes)) else { panic!("no link") };
        let [name, mtu, LinkAttribute::LinkInfo(infos), promiscuity] = &link.attributes[..] else { panic!("{link:?}") };
        assert_eq!(*name, LinkAttribute::IfName("eth0".to_owned()));
        assert_eq!((mtu, promiscuity), (&LinkAttribute::Mtu(1500), &LinkAttribute::Promiscuity(1)));
        assert_eq!(infos.len(), 1);
        // A port of a bridge has the kind of the bridge alone.
        let port = [attribute(18 | 0x8000, &attribute(4, b"bridge\0")), attribute(3, b"eth0\0")];
        let RouteNetlinkMessage::NewLink(link) = inner(&whole(16, &[0; 16], &port)) else { panic!("no link") };
        assert_eq!(link.attributes, [LinkAttribute::IfName("eth0".to_owned())]);
    }

    #[test]
    fn the_hops_and_the_mtu_of_a_route_are_read_without_the_rest() {
        let hop = |index: u32, attributes: &[u8]| {
            let len = (HOP + attributes.len()) as u16;
            [&len.to_ne_bytes()[..], &[0, 0], &index.to_ne_bytes(), attributes].concat()
        };
        let gateway = attribute(5, &[198, 18, 0, 1]);
        let hops = [hop(7, &[attribute(11, &[0; 4]), gateway].concat()), hop(8, &[])].concat();
        let metrics = [attribute(3, &[1; 4]), attribute(2, &1400_u32.to_ne_bytes())].concat();
        let front = [2, 24, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];
        let attributes =
            [attribute(1, &[198, 18, 1, 0]), attribute(12, &[0; 32]), attribute(9, &hops), attribute(8, &metrics)];
        let RouteNetlinkMessage::NewRoute(route) = inner(&whole(24, &front, &attributes)) else { panic!("no route") };
        let [_, RouteAttribute::MultiPath(hops), RouteAttribute::Metrics(metrics)] = &route.attributes[..] else {
            panic!("{route:?}")
        };
        let found: Vec<_> = hops.iter().map(|hop| (hop.interface_index, hop.attributes.len())).collect();
        assert_eq!((found, &metrics[..]), (vec![(7, 1), (8, 0)], &[RouteMetric::Mtu(1400)][..]));
    }

    #[test]
    fn only_the_options_of_programs_are_read() {
        let of = |kind: &[u8]| {
            let options =
                [attribute(7, b"name\0"), attribute(10, &[0; 8]), attribute(11, &9_u32.to_ne_bytes())].concat();
            let attributes = [attribute(1, kind), attribute(2, &options), attribute(7, &[0; 4])];
            match inner(&whole(44, &[0; 20], &attributes)) {
                RouteNetlinkMessage::NewTrafficFilter(filter) => filter.attributes,
                other => panic!("{other:?}"),
            }
        };
        let name = TcOption::Bpf(TcFilterBpfOption::ProgName("name".to_owned()));
        let options = vec![name, TcOption::Bpf(TcFilterBpfOption::ProgId(9))];
        assert_eq!(of(b"bpf\0"), [TcAttribute::Kind("bpf".to_owned()), TcAttribute::Options(options)]);
        assert_eq!(of(b"u32\0"), [TcAttribute::Kind("u32".to_owned())]);
    }

    #[test]
    fn of_a_routing_rule_is_read_what_tells_packets() {
        let front = [2, 0, 0, 0, 100, 0, 0, 1, 0, 0, 0, 0];
        let attributes = [
            attribute(15, &100_u32.to_ne_bytes()),
            attribute(6, &7_u32.to_ne_bytes()),
            attribute(22, &[47]),
            attribute(24, &[0x17, 0xc0, 0x17, 0xc1]),
            attribute(0x3ff0, &[1]),
        ];
        let RouteNetlinkMessage::NewRule(rule) = inner(&whole(32, &front, &attributes)) else { panic!("no rule") };
        let [RuleAttribute::IpProtocol(_), RuleAttribute::DestinationPortRange(_)] = &rule.attributes[..] else {
            panic!("{rule:?}")
        };
    }

    #[test]
    fn what_is_no_message_stays_an_error_and_an_unknown_one_is_nothing() {
        let good = whole(16, &[0; 16], &[attribute(3, b"lo\0"), attribute(4, &[0; 4])]);
        assert!(message(&good).is_ok());
        for len in 0..good.len() {
            assert!(message(&good[..len]).is_err(), "{len}");
        }
        for broken in [&[3, 0, 3, 0][..], &[200, 0, 3, 0], &[1]] {
            assert!(message(&whole(16, &[0; 16], &[attribute(3, b"lo\0"), broken.to_vec()])).is_err(), "{broken:?}");
        }
        let unknown = message(&whole(104, &[0; 8], &[attribute(1, &[0; 4])])).unwrap();
        assert_eq!((unknown.payload, unknown.header.length), (NetlinkPayload::Noop, 32));
    }
}
