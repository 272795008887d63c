"""Streams of plain frames, trains of them and single packets for tools/fuzz-seeds: GRO, GSO and the parser."""
import struct

from fuzz_frames import between, checksum, udp, words

FIN, SYN, RST, PSH, ACK, URG, ECE, CWR = (1 << bit for bit in range(8))
MACS = bytes.fromhex("020000000002020000000001")
LINKS = (b"", MACS, MACS + bytes.fromhex("81000005"), MACS + bytes.fromhex("88a8000781000005"))
V6 = [bytes.fromhex("20010db8" + "00" * 11) + bytes([host]) for host in (1, 2)]
V4 = [bytes([198, 18, 0, host]) for host in (1, 2)]
SIZE = 100
# Options of TCP: timestamps in the usual layout, a SACK block, and the window scale of a SYN.
STAMPS = lambda value, echo=5: struct.pack(">BBBBII", 1, 1, 8, 10, value, echo)
SACK = struct.pack(">BBBBII", 1, 1, 5, 10, 100, 200)
SCALE = bytes([3, 3, 7, 1])
UNKNOWN_SCALE = bytes([2, 4, 5, 180, 8, 9, 0, 0])


def content(number, size):
    """Payload that begins with a number of its own, so that frames of a flow differ in few places."""
    return (struct.pack(">I", number & 0xFFFFFFFF) + bytes(range(250)) * (size // 250 + 1))[:size]


class Flow:
    """A flow of packets with `link` headers in front of IP."""

    def __init__(self, link=1, v6=False, port=4000):
        self.link, self.v6, self.port = link, v6, port

    def ip(self, protocol, rest, ident=7, fragment=0x4000, tos=0, ttl=64, label=0, options=b"", extension=b""):
        if self.v6:
            head = struct.pack(">IHBB", 6 << 28 | tos << 20 | label, len(extension + rest), 0 if extension else protocol, ttl)
            return self.framed(head + V6[0] + V6[1] + extension + rest)
        length = 20 + len(options) + len(rest)
        head = struct.pack(">BBHHHBBH", 0x45 + len(options) // 4, tos, length, ident & 0xFFFF, fragment, ttl, protocol, 0)
        head += V4[0] + V4[1] + options
        return self.framed(head[:10] + struct.pack(">H", checksum(words(head))) + head[12:] + rest)

    def framed(self, packet):
        return LINKS[self.link] + (struct.pack(">H", 0x86DD if self.v6 else 0x0800) if self.link else b"") + packet

    def pseudo(self, protocol, length):
        return words(b"".join(V6 if self.v6 else V4)) + protocol + length

    def tcp(self, number, size=SIZE, flags=ACK, ack=9, window=512, options=b"", seq=None, wrong=0, urgent=0, offset=None, **ip):
        """Returns segment `number` of a run of segments of the usual size."""
        at = 1000 + number * SIZE if seq is None else seq
        offset = 5 + len(options) // 4 if offset is None else offset
        payload = content(at, size)
        head = struct.pack(">HHIIBBHHH", self.port, 80, at & 0xFFFFFFFF, ack, offset << 4, flags, window, 0, urgent) + options
        total = self.pseudo(6, len(head + payload)) + words(head + payload)
        head = head[:16] + struct.pack(">H", checksum(total) ^ wrong) + head[18:]
        ip.setdefault("ident", 7 + number)
        return self.ip(6, head + payload, **ip)

    def udp(self, number, size=SIZE, has_sum=True, wrong=0, length=None, port=2000, **ip):
        payload = content(number, size)
        head = struct.pack(">HHHH", self.port, port, 8 + size if length is None else length, 0)
        total = self.pseudo(17, 8 + size) + words(head + payload)
        head = head[:6] + struct.pack(">H", ((checksum(total) or 0xFFFF) ^ wrong) if has_sum else 0)
        ip.setdefault("ident", 7 + number)
        return self.ip(17, head + payload, **ip)


def window(frames):
    """Fills a round of 16 frames up with ones of a byte in front."""
    return [b""] * (-len(frames) % 16) + frames


def changed(frame, at, value):
    return frame[:at] + value + frame[at + len(value):]


def misfits(flow):
    """Segments that do not continue a train of two, each for another reason."""
    yield flow.tcp(3)
    yield flow.tcp(2, SIZE + 8)
    yield flow.tcp(2, tos=4)
    yield flow.tcp(2, ttl=63)
    yield flow.tcp(2, label=9) if flow.v6 else flow.tcp(2, ident=99)
    yield flow.tcp(2, ack=10)
    yield flow.tcp(2, window=511)
    yield flow.tcp(2, options=SACK)
    yield flow.tcp(2, fragment=0)
    yield flow.tcp(2, wrong=1)
    yield flow.tcp(2, flags=ACK | CWR)
    yield flow.tcp(2, flags=ACK | ECE)
    yield flow.tcp(2, urgent=1)


def joined(flow):
    """Runs that become trains, and the segments that end them."""
    run = [flow.tcp(number) for number in range(6)]
    yield run + [flow.tcp(6, 40), flow.tcp(7, seq=1640), flow.tcp(8, seq=1740, flags=ACK | FIN)]
    yield run[:3] + [flow.tcp(3, flags=ACK | PSH)] + [flow.tcp(number, wrong=number == 6) for number in range(4, 10)]
    yield [flow.tcp(0, wrong=1), flow.tcp(1), flow.tcp(2), flow.tcp(0, wrong=1), flow.tcp(1, 40), flow.tcp(2, seq=1140)]
    yield [flow.tcp(n, 30, seq=1000 + 30 * n) for n in range(5)] + [flow.tcp(5, 8, seq=1150, flags=ACK | PSH)]
    yield [flow.tcp(n, ident=7) for n in range(4)] + [flow.tcp(4, ident=8), flow.tcp(5), flow.tcp(6, ident=12)]
    yield [flow.tcp(n, options=STAMPS(50)) for n in range(4)] + [flow.tcp(n, options=STAMPS(50 + n)) for n in range(4, 7)]
    yield [flow.tcp(n, options=STAMPS(50 - n, 5 + n), ack=9 + n, window=500 + n) for n in range(6)]
    yield [flow.tcp(n, options=SACK) for n in range(3)] + [flow.tcp(n, ack=100 - n) for n in range(3, 7)]
    yield [flow.tcp(n, ack=9 + n, options=STAMPS(50 + n // 2)) for n in range(7)]
    yield [flow.tcp(n, 40 if n % 2 else 90, seq=1000 + n // 2 * 130 + n % 2 * 90) for n in range(8)]


def broken(flow):
    """What does not join."""
    frames = list(misfits(flow))
    for part in (frames[:5], frames[5:10], frames[10:]):
        yield [each for frame in part for each in (flow.tcp(0), flow.tcp(1), frame)]
    yield [each for frame in frames[:7] for each in (flow.tcp(1), frame)]
    yield [each for frame in frames[7:] for each in (flow.tcp(1), frame)]
    flags = (ACK | SYN, RST, ACK | URG, ACK | FIN, ACK | CWR, ACK | ECE)
    yield [each for flag in flags for each in (flow.tcp(0), flow.tcp(1, flags=flag))] + [flow.tcp(2, 0), flow.tcp(2, 0, flags=SYN)]
    l3 = len(flow.framed(b""))
    short = [flow.tcp(0, 2) + bytes(20), flow.tcp(0, 0) + bytes(20), flow.tcp(0) + bytes(3), flow.tcp(1, 40) + bytes(3), flow.udp(0, 3) + bytes(20)]
    yield short + [flow.tcp(1), flow.tcp(2, 0), flow.tcp(2, 0) + bytes(6), flow.udp(1) + bytes(4), flow.udp(2, 0)]
    odd = [flow.tcp(0), flow.tcp(1, offset=4), flow.tcp(2, offset=15, size=20), flow.ip(6, b"short"), flow.ip(17, b"short"), flow.ip(1, bytes(90)), flow.ip(89, bytes(90))]
    odd += [flow.tcp(0)[: l3 + 30], flow.tcp(1)[: l3 + 12], flow.framed(b"\x95" + bytes(99)), changed(flow.tcp(1), l3, b"\x10")]
    if flow.v6:
        fragment = lambda offset: flow.ip(44, struct.pack(">BBHI", 17, 0, offset, 7) + bytes(80))
        yield odd + [fragment(1), fragment(0x88), changed(flow.tcp(1), l3 + 4, b"\0\x30"), changed(flow.tcp(1), l3 + 4, b"\xff\x30"), flow.tcp(2, extension=struct.pack(">BBBBI", 6, 0, 1, 4, 0))]
    else:
        yield odd + [changed(flow.tcp(1), l3 + 2, b"\0\x50"), changed(flow.tcp(1), l3 + 2, b"\xff\x50"), changed(flow.tcp(1), l3 + 10, b"\xff\xff"), changed(flow.tcp(1), l3 + 10, b"\0\1"), flow.tcp(2, options=b"")]
        yield [flow.tcp(0), flow.tcp(1), flow.udp(0, fragment=0x2000), flow.tcp(2), flow.udp(0, fragment=5), flow.tcp(0, fragment=0xC000), flow.udp(0, fragment=0x8000),
               changed(flow.tcp(0), l3, b"\x46"), flow.tcp(0), Flow(flow.link).ip(6, bytes(80), options=b"\x94\x04\0\0"), flow.ip(4, bytes(30)), flow.ip(47, bytes(30))]


def datagrams(flow):
    other = Flow(flow.link, flow.v6, 4001)
    yield [flow.udp(n) for n in range(4)] + [flow.udp(4, 60), flow.udp(5), flow.udp(6), flow.udp(7, SIZE + 1), flow.udp(8, wrong=1), flow.udp(9)]
    yield [flow.udp(0, wrong=1), flow.udp(1), flow.udp(2), flow.udp(3, has_sum=False), flow.udp(4), flow.udp(5, length=50), flow.udp(6), flow.udp(7, 0), flow.udp(8, length=4), flow.udp(9, port=6080), flow.udp(10, tos=1), flow.udp(11)]
    yield [frame for n in range(7) for frame in (flow.udp(n, 20), other.udp(n, 30))]


def acknowledgments(flow):
    """Pure acknowledgments: some may be swallowed by the next, and each reason why one may not."""
    def ack(number, **more):
        more.setdefault("flags", ACK)
        return flow.tcp(0, 0, ack=number, seq=1000, ident=number, **more)

    yield [flow.tcp(0, 0, SYN, options=SCALE, seq=999)] + [ack(1000 * n) for n in range(1, 10)] + [ack(9000), ack(8000), ack(9000, window=600), ack(10000, window=599), ack(11000)]
    yield [ack(1000 * n, options=STAMPS(50 + n)) for n in range(1, 5)] + [ack(5000, options=STAMPS(40)), ack(6000), ack(7000, options=SACK), ack(8000, flags=ACK | PSH), ack(9000), ack(10000, wrong=1), ack(11000), ack(12000)]
    yield [ack(1000), ack(2000), flow.tcp(0, ack=3000), ack(3000), ack(2500), ack(4000), ack(5000), flow.tcp(1, ack=6000), ack(7000), ack(8000), ack(9000, tos=4), ack(10000), ack(11000, window=1), ack(12000), flow.tcp(2, 0, ACK | FIN), ack(13000)]
    yield [flow.tcp(0, 0, SYN, options=UNKNOWN_SCALE), ack(1000), flow.tcp(0, 0, SYN, options=bytes([9, 1, 0, 0])), ack(2000), flow.tcp(0, 0, SYN, options=bytes([1, 1, 1, 0])), ack(3000), ack(4000), ack(5000) + bytes(6), flow.tcp(0), ack(6000)]
    yield [frame for n in range(1, 8) for frame in (ack(1000 * n), Flow(flow.link, flow.v6, 4000 + n).tcp(0, 0, ack=1000 * n))]


def crowd(link):
    """More flows than the table of a small engine holds, and a segment for some of them."""
    flows = [Flow(link, n % 2 == 1, 4000 + n) for n in range(9)]
    yield [flow.tcp(0) for flow in flows] + [flow.tcp(1) for flow in flows[6:]] + [flow.udp(0) for flow in flows[:3]]
    yield [frame for n in range(2) for flow in flows[:4] for frame in (flow.tcp(n), flow.udp(n))]


def stream(how, windows, reports=False):
    """Returns an input of the target `gro`: each frame with its length, or as the one before it with other bytes."""
    data, before, number = bytes([how | (128 if reports else 0)]), None, 0
    for frame in [frame for frames in windows for frame in window(frames)]:
        # Frames that fill up differ, so that each is recognised when it leaves.
        frame = frame or bytes([number])
        # What the port reports changes with every few frames, so that neighbours are equal.
        report = (number // 24 % 4) << 13 if reports else 0
        number += 1
        places = [at for at, pair in enumerate(zip(before or b"", frame)) if pair[0] != pair[1]]
        span = places[-1] + 1 - places[0] if places else 0
        if before and len(before) == len(frame) and span < 60:
            first = places[0] if places else 0
            data += struct.pack(">HH", 0x8000 | report | span, first) + frame[first : first + span]
        else:
            data += struct.pack(">H", report | len(frame)) + frame
        before = frame
    return data


def parts(name, how, windows, reports=False):
    """Splits windows into inputs of at most 96 frames."""
    windows = list(windows)
    for at in range(0, len(windows), 6):
        yield f"{name}-{at // 6}", stream(how, windows[at : at + 6], reports)


PROFILES = {"strict": 0, "linux": 2, "lro": 32, "linux-6.12": 34, "linux-7": 98}


def gro_streams():
    for link in range(4):
        start = int(link == 0)
        for v6 in (False, True):
            flow, name = Flow(link, v6), f"plain-{('ip', 'ethernet', 'vlan', 'qinq')[link]}-{6 if v6 else 4}"
            few = [*joined(flow)][:3] + [*broken(flow)][3:7] + [*datagrams(flow)][:2]
            every = [*joined(flow), *broken(flow), *datagrams(flow)]
            yield from parts(f"{name}-strict", start, every if link < 2 else few)
            if link < 2:
                yield from parts(f"{name}-lro", 32 | start, [*joined(flow), *broken(flow), *acknowledgments(flow)])
                yield from parts(f"{name}-reports", start, [*joined(flow)][:5] + [*broken(flow)][:5] + [*datagrams(flow)][:2], True)
                yield from parts(f"{name}-small", 4 | start, [*joined(flow)][:4] + [*datagrams(flow)])
                yield from parts(f"{name}-short", 8 | start, [*joined(flow)][:4] + [*datagrams(flow)])
            if link == 1:
                yield from parts(f"{name}-linux", PROFILES["linux"], every)
                for profile in ("linux-6.12", "linux-7"):
                    yield from parts(f"{name}-{profile}", PROFILES[profile], [*joined(flow), *broken(flow)][3:15])
        yield from parts(f"crowd-{link}", 16 | start, crowd(link))
        yield from parts(f"crowd-lro-{link}", 48 | start, [*crowd(link), *acknowledgments(Flow(link))])


def primed(flow, packet):
    """The packet of TCP, whose checksum is owed: its field holds the sum of the pseudo header."""
    l4 = len(flow.framed(b"")) + (40 if flow.v6 else 20)
    return changed(packet, l4 + 16, struct.pack(">H", checksum(flow.pseudo(6, len(packet) - l4)) ^ 0xFFFF))


def gso(packet, how, size=SIZE, fixed=0, can=0, limits=b"", states=0, more=b""):
    """Returns an input of the target `gso`; `limits` and `more` are what `can` and bit 6 of `states` announce."""
    return struct.pack(">BHHB", how, size, fixed, can) + limits + bytes([states]) + more + packet


# The bits of the first byte of an input: a train with an owed checksum, with a stale one, single packets, UDP, pieces.
OWED, STALE, PARTIAL, VERIFIED, UNKNOWN, DATAGRAMS, PIECES = 16, 12, 0, 4, 8, 2, 32
CSUM, OUTER, TSO, USO = 1, 2, 12, 16
TUNNELS = {"gue-ipip-remcsum-tcp": (0x93, 0x83), "gue-gre-remcsum-inner4-tcp": (0xAF, 0x8F), "gue-gre-csum-inner6-udp": (0x83, 0x8F),
           "gre-key-csum-seq-inner6-tcp": (0x8C,), "fou-ipip-csum-udp": (0x83,), "vxlan-csum-inner4-tcp": (0x83, 0x93), "ipip-icmp": (0x80,)}


def gso_packets(link, v6):
    """Trains and single packets of TCP and UDP, with what a port may be able to do about them."""
    flow, start = Flow(link, v6), int(link == 0)
    train, datagrams = flow.tcp(0, 940, flags=ACK | PSH), flow.udp(0, 940)
    owed, udp = OWED | start, OWED | start | DATAGRAMS
    yield "none", gso(train, owed)
    yield "stale", gso(flow.tcp(0, 900, flags=ACK | FIN), STALE | start, can=CSUM)
    yield "even", gso(flow.tcp(0, 900), owed, fixed=1 << link)
    yield "cwr", gso(flow.tcp(0, 900, flags=ACK | CWR | PSH, options=STAMPS(50)), owed, can=CSUM)
    yield "pieces", gso(train, owed | PIECES)
    yield "csum-pieces", gso(train, owed | PIECES, can=CSUM)
    yield "small", gso(flow.tcp(0, 200), owed, 16)
    yield "whole", gso(primed(flow, flow.tcp(0, 900)), owed, can=CSUM | TSO)
    yield "unprimed", gso(train, owed, can=CSUM | TSO)
    yield "wrong-length", gso(train + bytes(50), owed, can=CSUM | TSO)
    yield "segments", gso(train, owed, can=CSUM | TSO | 64, limits=b"")
    yield "bytes", gso(train, owed, can=CSUM | TSO | 32, limits=struct.pack(">H", 400))
    yield "few-pieces", gso(train, owed | PIECES, can=CSUM | TSO | 128, limits=b"")
    yield "one-piece", gso(train, owed | PIECES, can=CSUM | TSO | 128, limits=b"")
    yield "short-pieces", gso(train, owed | PIECES, can=CSUM | TSO | 128, limits=b"", states=0x40, more=struct.pack(">HBB", 1500, 64, 120))
    yield "short-head", gso(train, owed, can=CSUM | TSO, states=0x40, more=struct.pack(">HBB", 1500, 128 | 8 << 2, 30))
    yield "too-big", gso(train, owed, states=0x40, more=struct.pack(">HB", 120, 1))
    yield "no-size", gso(train, owed, 0)
    yield "no-payload", gso(flow.tcp(0, 0), owed)
    yield "syn", gso(flow.tcp(0, 900, flags=SYN), owed)
    yield "kind", gso(train, udp)
    yield "no-transport", gso(flow.ip(1, bytes(900)), owed)
    yield "datagrams", gso(datagrams, udp)
    yield "datagrams-whole", gso(datagrams, udp, can=CSUM | USO)
    yield "datagrams-segments", gso(datagrams, udp | PIECES, can=CSUM | USO | 64, limits=b"")
    yield "datagrams-stale", gso(datagrams, STALE | DATAGRAMS | start, can=CSUM)
    for name, unit in (("partial", PARTIAL), ("verified", VERIFIED), ("unknown", UNKNOWN)):
        for can in (0, CSUM):
            yield f"{name}-{can}", gso(flow.tcp(0), unit | start, can=can)
        yield f"{name}-datagram", gso(datagrams, unit | start)
        more = struct.pack(">HB", 500 if not v6 else 1280, 3 | 8 << 2)
        for protocol, packet in (("tcp", flow.tcp(0, 1400, fragment=0)), ("udp", flow.udp(0, 1400, fragment=0))):
            yield f"{name}-{protocol}-fragments", gso(packet, unit | start | PIECES, states=0x40, more=more)
    for number, fragment in enumerate((0, 1, 2, 3)):
        yield f"fragment-{number}", gso(flow.udp(0, 1400), UNKNOWN | start, states=0x40, more=struct.pack(">HB", 700 if not v6 else 1290, fragment))
    if not v6:
        route = Flow(link)
        head = struct.pack(">HHIIBBHHH", 4000, 80, 0, 9, 0x50, ACK, 512, 0, 0)
        for name, how in (("route", owed), ("route-partial", PARTIAL | start)):
            yield name, gso(route.ip(6, head + bytes(900), options=b"\x83\7\4\1\2\3\4\0"), how)
        yield "fragment-options", gso(route.ip(17, bytes(1400), fragment=0, options=b"\7\7\4\0\0\0\0\x94\4\0\0\0"), UNKNOWN | start, states=0x40, more=struct.pack(">HB", 700, 1))
        yield "fragment-again", gso(route.ip(17, bytes(1400), fragment=0x2005), UNKNOWN | start, states=0x40, more=struct.pack(">HB", 700, 1))


def gso_tunnels(name, frame):
    """A packet of a tunnel and a train in it, with checksums that are owed at its level."""
    for states in TUNNELS[name]:
        for unit, can in ((PARTIAL, 0), (PARTIAL, CSUM), (PARTIAL, OUTER), (VERIFIED, 0), (VERIFIED, OUTER), (PARTIAL, CSUM | OUTER)):
            yield f"{name}-owes-{states:x}-{unit}-{can}", gso(frame, unit, can=can, states=states)
        yield f"{name}-train-{states:x}", gso(frame, OWED | (DATAGRAMS if name.endswith("udp") else 0), 40, can=CSUM | OUTER, states=states)


def fields():
    """Packets for the parser whose headers have options, routes and homes, and tunnel headers by themselves."""
    flow = Flow(0)
    plain = struct.pack(">HHHH", 1, 2, 12, 0) + b"data"
    for name, options in {
        "record-route": "070704c612000100" "94040000", "source-route": "830b04c6120009c612000a00", "route-done": "890708c612000100", "route-odd": "83060401020300 00".replace(" ", ""),
        "route-nowhere": "83070601020304 00".replace(" ", ""), "no-length": "07000000", "long-option": "0728000000000000", "route-short": "83020000", "end": "0000000083070401020304",
    }.items():
        options = bytes.fromhex(options)
        yield f"ipv4-{name}", b"\1" + flow.ip(17, plain, options=options + bytes(-len(options) % 4))
    six = Flow(0, True)
    address = V6[1]
    for name, first, extension in (
        ("home", 60, bytes([17, 2, 1, 2, 0, 0, 0, 0xC9, 16]) + address[:15]), ("home-long", 60, bytes([17, 2, 0, 0xC9, 16]) + address + bytes(3)), ("home-cut", 60, bytes([17, 0, 0xC9, 16, 0, 0, 0, 5])),
        ("route-0", 43, bytes([17, 2, 0, 1, 0, 0, 0, 0]) + address), ("route-2", 43, bytes([17, 2, 2, 1, 0, 0, 0, 0]) + address), ("route-4", 43, bytes([17, 2, 4, 1, 0, 0, 0, 0]) + address),
        ("route-none", 43, bytes([17, 0, 0, 1, 0, 0, 0, 0])), ("route-4-none", 43, bytes([17, 0, 4, 1, 0, 0, 0, 0])), ("route-9", 43, bytes([17, 0, 9, 1, 0, 0, 0, 0])), ("route-over", 43, bytes([17, 0, 0, 0, 0, 0, 0, 0])),
        ("hop", 0, bytes([43, 0, 1, 4, 0, 0, 0, 0]) + bytes([60, 2, 0, 1, 0, 0, 0, 0]) + address + bytes([17, 0, 1, 4, 0, 0, 0, 0])),
        ("cut", 0, bytes([17, 20])), ("deep", 60, bytes([60, 0, 1, 4, 0, 0, 0, 0]) * 9), ("long", 60, bytes([17, 15, 1, 118]) + bytes(124)),
    ):
        packet = six.ip(17, plain, extension=extension)
        yield f"ipv6-{name}", b"\1" + packet[:6] + bytes([first]) + packet[7:]
    for name, header in {
        "gre-all": "b00008000000000000000001" "00000002", "gre-key": "2000080000000007", "gre-plain": "00000800", "gue-remcsum": "022f0001008000000018001e", "gue-plain": "00040000",
        "gue-private": "01040001" "00000000", "gue-short": "00040001", "gue-no-option": "0104000100800000", "gue-unknown": "0104000140000000", "gue-flags": "00044000", "gue-six": "60000000", "gue-seven": "70000000",
        "gue-two": "80000000", "gue-control": "20040000", "gue-cut": "1f040000", "vxlan-plain": "0800000000000500", "vxlan-remcsum": "0820000000000511", "vxlan-udp": "0820000000000591", "vxlan-no-vni": "0000000000000500",
        "vxlan-reserved": "0800000000000501", "vxlan-cut": "08000000", "geneve-plain": "0000655800000500", "geneve-critical": "0340655800000500" "0101800100000000" "00010200", "geneve-control": "0080655800000500", "geneve-version": "4000655800000500",
        "geneve-overrun": "0100655800000500" "00010203", "option-odd": "00030013", "option-tcp": "00100020", "option-udp": "00100016", "option-far": "0200020a", "option-before": "00200010",
    }.items():
        yield name, b"\1" + bytes.fromhex(header)


def unfinished():
    """Outer packets whose inner checksum is still owed, by the kernel of this host or by the option of a header."""
    flow, six = Flow(0), Flow(0, True)
    keyed = lambda packet, field: struct.pack(">HHHHI", 0xA000, 0x0800, field, 0, 42) + packet
    outer = lambda protocol, rest: between(V4[0], V4[1], protocol, rest)
    gue = lambda rest, start, offset: outer(17, udp((V4[0], 5000), (V4[1], 6080), struct.pack(">BBHIHH", 2, 47, 1, 1 << 23, start, offset) + rest)[20:])
    for name, size in (("packet", 100), ("train", 900)):
        packet = flow.tcp(0, size)
        field = checksum(words(keyed(packet, 0)))
        owed = primed(flow, packet)
        yield f"ipip-{name}", outer(4, owed)
        yield f"sit-{name}", outer(41, primed(six, six.tcp(0, size)))
        yield f"gre-{name}", outer(47, struct.pack(">HH", 0, 0x0800) + owed)
        yield f"gre-seq-{name}", outer(47, struct.pack(">HHI", 0x1000, 0x0800, 7) + packet)
        yield f"gre-csum-{name}", outer(47, keyed(owed, field))
        yield f"gre-csum-datagram-{name}", outer(47, keyed(flow.udp(0, size), checksum(words(keyed(flow.udp(0, size), 0)))))
        for what, start, offset in (("", 32, 48), ("-order", 48, 32), ("-bounds", 32, 4000), ("-field", 32, 40), ("-gre", 0, 4)):
            yield f"gue-csum{what}-{name}", gue(keyed(owed, field), start, offset)
        yield f"gue-gre-zero-{name}", gue(keyed(packet, 0), 0, 4)
        yield f"gue-plain-{name}", gue(struct.pack(">HH", 0, 0x0800) + owed, 24, 40)
    yield "sit-ecn", outer(41, six.tcp(0, tos=1))
    yield "ipip-deep", outer(4, flow.ip(4, b"".join(flow.ip(4, b"")[:20] for _ in range(14))))
    yield "sit-deep", outer(41, six.ip(60, bytes([60, 0, 1, 4, 0, 0, 0, 0]) * 9))
