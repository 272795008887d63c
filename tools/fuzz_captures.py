"""Capture files for tools/fuzz-seeds: every link type, trains and what is wrong with them, whole tunnels, the forms and
options of both file formats."""
import glob
import os
import struct

from fuzz_frames import between, block, checksum, echo, ethernet, frames, ip_sum, ipv4, pcap, pcapng, tcp, to_ports_of_the_targets, udp, words

A, B = (bytes([198, 18, 1, 2]), 5555), (bytes([198, 19, 0, 1]), 80)
A6, B6 = bytes.fromhex("20010db8" + "00" * 11 + "01"), bytes.fromhex("20010db8" + "00" * 11 + "02")
ACK, PSH = 16, 8
RAW, NULL, LOOP, COOKED, COOKED2, IPV4, IPV6 = 101, 0, 108, 113, 276, 228, 229
# Tunnels whose frames are good: GUE with and without a remote checksum, GRE with a key and a checksum, IP in IP.
TUNNELS = ("gue-gre-csum-inner4-tcp", "gue-gre-remcsum-inner4-tcp", "gue-gre-remcsum-inner6-udp", "gue-ipip-remcsum-tcp", "gue-ipip-nocsum-udp",
           "gue-sit-remcsum-tcp", "gue6-ip6gre-remcsum-inner6-tcp", "gre-key-csum-seq-inner4-tcp", "gre-inner6-udp", "ipip-icmp", "vxlan")


def payload(size):
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def six(protocol, rest, length=None, extension=b""):
    head = struct.pack(">IHBB", 6 << 28, len(extension + rest) if length is None else length, protocol, 64)
    return head + A6 + B6 + extension + rest


def summed(protocol, head, at, data):
    total = words(A6 + B6) + protocol + len(head + data) + words(head + data)
    return head[:at] + struct.pack(">H", checksum(total)) + head[at + 2:] + data


def tcp6(number, data, flags=ACK):
    return summed(6, struct.pack(">HHIIBBHHH", 5555, 80, number, 1, 0x50, flags, 512, 0, 0), 16, data)


def primed(packet, at):
    """The IPv4 packet of TCP or UDP with the sum of its pseudo-header in its checksum field."""
    total = words(packet[12:20]) + packet[9] + len(packet) - 20
    return packet[:at] + struct.pack(">H", checksum(total) ^ 0xFFFF) + packet[at + 2:]


def cooked(version, kind, packet, tags=b""):
    if version == 1:
        return struct.pack(">HHH8sH", 0, 1, 6, b"\2\0\0\0\0\1\0\0", kind) + tags + packet
    return struct.pack(">HHIHBB8s", kind, 0, 2, 1, 0, 6, b"\2\0\0\0\0\1\0\0") + tags + packet


def links():
    """The same packets on every link: a train of each family, a segment before it, and an echo."""
    four = [tcp(A, B, ACK, 1000, payload(500)), tcp(A, B, ACK | PSH, 1500, payload(2600)), echo(A[0], B[0], 8, 7)]
    seven = [six(6, tcp6(1000, payload(500))), six(6, tcp6(1500, payload(2600), ACK | PSH)), six(58, summed(58, bytes([128, 0, 0, 0, 0, 7, 0, 1]), 2, b"ping"))]
    family = lambda packet: 2 if packet[0] >> 4 == 4 else 10
    kind = lambda packet: 0x0800 if packet[0] >> 4 == 4 else 0x86DD
    for what, packets in (("4", four), ("6", seven)):
        tag = lambda packet: struct.pack(">HH", 5, kind(packet))
        for name, link, wrap in (
            ("ethernet", 1, lambda packet: ethernet(kind(packet), packet)), ("tagged", 1, lambda packet: ethernet(0x8100, tag(packet) + packet)),
            ("raw", RAW, lambda packet: packet), ("ip", IPV4 if what == "4" else IPV6, lambda packet: packet),
            ("null", NULL, lambda packet: struct.pack("<I", family(packet)) + packet), ("loop", LOOP, lambda packet: struct.pack(">I", family(packet)) + packet),
            ("cooked", COOKED, lambda packet: cooked(1, kind(packet), packet)), ("cooked2", COOKED2, lambda packet: cooked(2, kind(packet), packet)),
            ("cooked_tagged", COOKED, lambda packet: cooked(1, 0x8100, packet, tag(packet))), ("cooked_other", COOKED, lambda packet: cooked(1, 0x0806, packet)),
            ("other", 147, lambda packet: packet),
        ):
            yield f"link-{name}-{what}", pcap([wrap(packet) for packet in packets], link)


def trains():
    """Trains and packets as senders hand them to a capture, and wrong ones."""
    train, datagram = tcp(A, B, ACK, 1000, payload(3000)), udp(A, B, payload(3000))
    wrong = train[:-1] + bytes([train[-1] ^ 1])
    unsized = ip_sum(train[:2] + bytes(2) + train[4:])
    unsized6 = six(6, tcp6(1000, payload(3000)), 0)
    jumbo = six(0, tcp6(1000, payload(3000)), 0, bytes([6, 0, 0xC2, 4]) + struct.pack(">I", 8 + 20 + 3000))
    routed = six(43, tcp6(1, payload(100)), None, bytes([6, 2, 4, 1, 0, 0, 0, 0]) + A6)
    flags = [tcp(A, B, flag, 1, payload(1200)) for flag in (2, 4, 0x39)]
    segments = [tcp(A, B, ACK, 1000 + 700 * n, payload(700)) for n in range(4)] + [tcp(A, B, ACK, 3800, payload(1400))]
    acks = [tcp(B, A, ACK, 1, b"", 1000 + 1400 * n) for n in range(6)]
    for name, packets in (
        ("train", [train, wrong]), ("primed", [primed(train, 36), primed(datagram, 26), primed(tcp(A, B, ACK, 1, payload(80)), 36)]),
        ("datagram", [datagram, udp(A, B, payload(100)), datagram[:26] + bytes(2) + datagram[28:]]), ("unsized", [unsized, unsized6, jumbo]),
        ("routed", [routed, routed[:90]]), ("flags", flags), ("segments", segments + segments[:2]), ("acks", acks + [train] + acks[:2]),
        ("fragments", [between(A[0], B[0], 17, datagram[20:1500], 0x2000), between(A[0], B[0], 17, datagram[1500:], 185)]),
        ("options", [ipv4(6, train[20:200], b"\x94\x04\0\0"), ipv4(17, b"short")]),
    ):
        yield f"train-{name}", pcap([ethernet(0x0800 if packet[0] >> 4 == 4 else 0x86DD, packet) for packet in packets])
        if name in ("train", "acks"):
            yield f"train-{name}-ng", pcapng(packets, RAW, struct.pack("<HH4sHHIHH", 1, 4, b"text", 2, 4, 1, 0, 0))


def tunnels(top):
    for name in TUNNELS:
        for path in sorted(glob.glob(os.path.join(top, f"captures/{name}*.pcap")))[:1]:
            chosen, size = [], 0
            for frame in frames(path):
                if len(chosen) < 6 and size + len(frame) < 7000:
                    chosen.append(to_ports_of_the_targets(frame))
                    size += len(frame)
            yield f"tunnel-{name}", pcap(chosen)
            damaged = [frame[:-1] + bytes([frame[-1] ^ 1]) for frame in chosen[:3]] + [frame[:60] for frame in chosen[:2]]
            yield f"damaged-{name}", pcap(damaged)


def files():
    """The forms of both file formats."""
    packet = tcp(A, B, ACK, 1000, payload(60))
    record = lambda order, link=RAW: struct.pack(order + "IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link)
    entry = lambda order, fraction=7, cut=0: struct.pack(order + "IIII", 1, fraction, len(packet) - cut, len(packet)) + packet[:len(packet) - cut]
    yield "big", record(">") + entry(">") * 2
    yield "nanos", struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 0, RAW) + entry("<", 999999999)
    yield "late_fraction", record("<") + entry("<", 1000001)
    yield "snapped", record("<") + entry("<", 7, 30) + entry("<")
    yield "fcs", record("<", 1 | 0x24000000) + struct.pack("<IIII", 1, 2, 18 + len(packet), 18 + len(packet)) + ethernet(0x0800, packet) + bytes(4)
    for name, magic in (("modified", b"\xa1\xb2\xcd\x34"), ("lz4", b"\x04\x22\x4d\x18"), ("xz", b"\xfd7zXZ\0"), ("bzip2", b"BZh9"), ("magic", b"\xd4\xc3\xb2\xa1")):
        yield "magic_" + name, magic + bytes(30) if name != "magic" else magic
    option = lambda kind, value: struct.pack("<HH", kind, len(value)) + value + bytes(-len(value) % 4)
    section = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    interface = lambda *options: block(1, struct.pack("<HHI", RAW, 0, 0) + b"".join(options))
    enhanced = lambda at=0, options=b"": block(6, struct.pack("<IIIII", at, 0, 7, len(packet), len(packet)) + packet + bytes(-len(packet) % 4) + options)
    named = interface(option(2, b"eth0"), option(9, b"\x89"), option(14, struct.pack("<q", -5)), option(0, b""))
    obsolete = block(2, struct.pack("<HHIIII", 0, 0, 0, 7, len(packet), len(packet)) + packet)
    yield "ng_options", section + named + enhanced(0, option(1, b"a comment") + option(2, struct.pack("<I", 1)) + option(3, b"\2abcd") + option(0, b""))
    yield "ng_obsolete", section + named + obsolete + enhanced()
    yield "ng_simple", section + named + block(3, struct.pack("<I", len(packet)) + packet) + block(5, struct.pack("<III", 0, 0, 7))
    yield "ng_no_interface", section + enhanced()
    yield "ng_other_interface", section + named + enhanced(7)
    yield "ng_two_links", section + named + block(1, struct.pack("<HHI", 1, 0, 0)) + enhanced() + enhanced(1)
    yield "ng_sections", section + named + enhanced() + section + interface() + enhanced()
    yield "ng_big", struct.pack(">IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28) + struct.pack(">IIHHII", 1, 20, RAW, 0, 0, 20)
    yield "ng_order", section[:8] + b"\1\2\3\4" + section[12:]
    yield "ng_length", section[:-4] + struct.pack("<I", 7)
    yield "ng_custom", section + block(0x0BAD, struct.pack("<I", 7) + b"data") + block(0x40000BAD, struct.pack("<I", 7)) + named


def captures(top):
    yield from links()
    yield from trains()
    yield from tunnels(top)
    yield from files()


def capture_seeds(top):
    """The seeds of the targets for captures: a byte says how a file is transformed. Those of links and of damaged
    tunnels are only replayed as they are, as inputs are that were found to reach more lines: each of the others is cut
    and damaged, too, which takes a while."""
    for name, data in captures(top):
        kept = "reaches-" if name.startswith(("link", "damaged")) else ""
        if not name.startswith(("link", "tunnel", "damaged")):
            yield "capture", name, data
        if not name.startswith(("ng_", "magic")):
            for how in (5, 11) if name.startswith(("train", "link-ethernet")) else (9,):
                yield "transform", f"{kept}{name}-{how}", bytes([how]) + data
