"""Captures for tools/fuzz-seeds whose transformations take rare turns: tunnels that stay closed, each for a reason,
local and remote checksum offload, trains of connections with an MSS, fragments, acknowledgments that LRO replaces."""
import struct

from fuzz_captures import COOKED, COOKED2, IPV4, IPV6, LOOP, NULL, RAW, cooked, primed, six, summed, trains, tunnels
from fuzz_frames import between, block, checksum, echo, ethernet, ip_sum, pcap, pcapng, tcp, udp, words
from fuzz_streams import ACK, PSH, STAMPS, SYN, Flow

A, B = (bytes([198, 18, 1, 2]), 5000), (bytes([198, 19, 0, 1]), 80)
INNER, INNER_B = (bytes([10, 0, 0, 1]), 4000), (bytes([10, 0, 0, 2]), 80)
GUE, VXLAN, GENEVE, FOU = 6080, 4789, 6081, 5555
# Bits of the first byte of an input.
LIMIT, LEARNED, FIX, COMMENTS, MTU, ONLY, LRO = (1 << bit for bit in range(7))


def outer(port, rest, has_sum=True):
    packet = udp(A, (B[0], port), rest)
    return packet if has_sum else packet[:26] + bytes(2) + packet[28:]


def gue(inner, protocol=4, **how):
    return outer(GUE, struct.pack(">BBH", 0, protocol, 0) + inner, **how)


def remote(inner, start=20, offset=36, **how):
    """GUE with the option by which the receiver finishes the checksum at `offset`, over the bytes from `start` on."""
    return outer(GUE, struct.pack(">BBHIHH", 2, 4, 1, 1 << 23, start, offset) + inner, **how)


def gre(inner, wrong=0, covers=None, kind=0x0800):
    """GRE with a checksum of `covers`, or else of the packet inside."""
    head = struct.pack(">HHHH", 0x8000, kind, 0, 0)
    total = words(head + (inner if covers is None else covers))
    return between(A[0], B[0], 47, struct.pack(">HHHH", 0x8000, kind, checksum(total) ^ wrong, 0) + inner)


def offloaded(inner, owed, wrap):
    """A packet whose outer checksum is that of a finished one inside, whose own is still owed."""
    whole, at = wrap(inner), len(wrap(inner)) - len(inner)
    return whole[:at] + owed


INSIDE = tcp(INNER, INNER_B, ACK, 1, bytes(range(90)))
OWED = primed(INSIDE, 36)
DATAGRAM = udp(INNER, INNER_B, bytes(range(90)))
INSIDE6 = six(17, summed(17, struct.pack(">HHHH", 5, 6, 98, 0), 6, bytes(90)))
LINK = lambda packet: ethernet(0x0800 if packet[0] >> 4 == 4 else 0x86DD, packet)
SHIM, GENEVE_SHIM = bytes.fromhex("0800000000000500"), bytes.fromhex("0000655800000500")
ARP = ethernet(0x0806, bytes(46))


def spoiled(packet, at):
    return packet[:at] + bytes([packet[at] ^ 1]) + packet[at + 1:]


def opened():
    """Tunnels, those that are opened and those that stay closed."""
    yield "plain", gue(INSIDE)
    yield "six", gue(INSIDE6, 41)
    yield "ip", between(A[0], B[0], 4, INSIDE)
    yield "gre", gre(INSIDE)
    yield "gre6", gre(INSIDE6, kind=0x86DD)
    yield "gre-ethernet", gre(LINK(INSIDE), kind=0x6558)
    yield "vxlan", outer(VXLAN, SHIM + LINK(INSIDE))
    yield "vxlan-arp", outer(VXLAN, SHIM + ARP)
    yield "geneve", outer(GENEVE, GENEVE_SHIM + LINK(INSIDE6))
    yield "fou", outer(FOU, INSIDE)
    yield "no-sum", gue(INSIDE, has_sum=False)
    yield "wrong-ip", spoiled(gue(INSIDE), 10)
    yield "wrong-udp", spoiled(gue(INSIDE), 26)
    yield "wrong-gre", gre(INSIDE, wrong=1)
    yield "wrong-inside", gue(spoiled(INSIDE, 60))
    yield "owed", gue(OWED)
    yield "remote", remote(OWED)
    yield "remote-udp", remote(primed(DATAGRAM, 26), 20, 26)
    yield "remote-finished", remote(INSIDE)
    yield "remote-no-sum", remote(OWED, has_sum=False)
    yield "remote-field", remote(OWED, 20, 28)
    yield "remote-far", remote(OWED, 20, 4000)
    yield "offload-gue", offloaded(INSIDE, OWED, gue)
    yield "offload-udp", offloaded(DATAGRAM, primed(DATAGRAM, 26), gue)
    yield "offload-gre", offloaded(INSIDE, OWED, gre)
    yield "offload-twice", offloaded(gue(INSIDE), gue(OWED), lambda inner: gue(inner))
    yield "padded", gue(INSIDE)[:-20] + INSIDE[-20:] + bytes(6)
    # The length inside is that of fewer or more bytes than are there.
    yield "inner-short", gue(ip_sum(INSIDE[:2] + struct.pack(">H", 60) + INSIDE[4:]))
    yield "inner-long", gue(ip_sum(INSIDE[:2] + struct.pack(">H", 900) + INSIDE[4:]))
    deep = INSIDE
    for _ in range(6):
        deep = between(A[0], B[0], 4, deep)
    yield "deep", deep


def linked(packet):
    """The packet on each link whose header has a place for a protocol, or none."""
    kind = 0x0800 if packet[0] >> 4 == 4 else 0x86DD
    yield "raw", RAW, packet
    yield "ipv4", IPV4, packet
    yield "null", NULL, struct.pack("<I", 2) + packet
    yield "loop", LOOP, struct.pack(">I", 2) + packet
    yield "cooked", COOKED, cooked(1, kind, packet)
    yield "cooked2", COOKED2, cooked(2, kind, packet)
    yield "tagged", COOKED2, cooked(2, 0x8100, packet, struct.pack(">HH", 5, kind))
    yield "vlan", 1, ethernet(0x8100, struct.pack(">HH", 5, kind) + packet)


def big(packets, number):
    """A big-endian pcapng file."""
    block = lambda kind, body: struct.pack(">II", kind, len(body) + 12) + body + struct.pack(">I", len(body) + 12)
    data = block(0x0A0D0D0A, struct.pack(">IHHq", 0x1A2B3C4D, 1, 0, -1)) + block(1, struct.pack(">HHI", number, 0, 0))
    for packet in packets:
        data += block(6, struct.pack(">IIIII", 0, 0, 7, len(packet), len(packet)) + packet + bytes(-len(packet) % 4))
    return data


def long_ones():
    """Packets that become fragments of an MTU of 1000 bytes, and those that must not."""
    content = bytes(range(250)) * 5
    head = struct.pack(">HHHH", 5000, 80, 8 + len(content), 0)
    free = between(A[0], B[0], 17, udp(A, B, content)[20:], 0)
    ping = between(A[0], B[0], 1, echo(A[0], B[0], 8, 1)[20:28] + content, 0)
    inner = between(INNER[0], INNER_B[0], 17, udp(INNER, INNER_B, content)[20:], 0)
    yield "udp", [free, ip_sum(free[:6] + b"\x40\0" + free[8:]), primed(free, 26), spoiled(free, 30)]
    yield "six", [six(17, summed(17, head, 6, content))]
    yield "icmp", [ping, between(A[0], B[0], 99, content, 0), between(A[0], B[0], 17, content, 0x2000)]
    yield "gue", [gue(inner), gue(inner, has_sum=False), gue(primed(inner, 26))]
    yield "gre", [gre(inner), gre(inner, wrong=1), between(A[0], B[0], 4, inner)]
    yield "remote", [remote(primed(inner, 26), 20, 26), spoiled(gue(inner), 26)]
    yield "vxlan", [outer(VXLAN, SHIM + LINK(inner))]
    # Whose length is left to the card.
    more = bytes(range(250)) * 7
    large = udp(A, B, more)
    large6 = six(17, summed(17, struct.pack(">HHHH", 5000, 80, 8 + len(more), 0), 6, more), 0)
    unsized = lambda packet: ip_sum(packet[:2] + bytes(2) + packet[4:])
    yield "unsized", [unsized(large), unsized(primed(large, 26)), large6, large6[:-1] + b"\7"]


def second_links():
    """Captures with a second interface, of each link type, which pcap cannot hold."""
    interface = lambda number: block(1, struct.pack("<HHI", number, 0, 0))
    for number in (NULL, 12, RAW, COOKED, IPV4, IPV6, COOKED2, 147):
        yield f"second-link-{number}", block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)) + interface(1) + interface(number)


def connections():
    """Connections whose SYN has options with an MSS, or none, and trains behind it."""
    for name, options in (("mss", bytes([1, 1, 2, 4, 2, 0, 1, 0])), ("small", bytes([3, 3, 7, 2, 4, 0, 100, 0])), ("end", bytes([0, 2, 4, 2])), ("odd", bytes([8, 1, 2, 4])), ("cut", bytes([1, 1, 1, 8]))):
        for v6 in (False, True):
            flow = Flow(1, v6)
            yield f"{name}-{6 if v6 else 4}", [flow.tcp(0, 0, flags=SYN, options=options), flow.tcp(0, 1300, options=STAMPS(5)), flow.tcp(0, 1700, flags=ACK | PSH), flow.tcp(0, 1700, wrong=1)]


def transform_seeds(top):
    """Inputs of the target `transform`, which are replayed as they are."""
    for name, packet in opened():
        files = [(f"{on}-", pcap([wrapped] * 2, number)) for on, number, wrapped in linked(packet)] if name in ("plain", "six", "vxlan", "vxlan-arp") else []
        for on, data in [("", pcap([LINK(packet)])), *files]:
            yield f"opened-{on}{name}", bytes([0]) + data
        yield f"opened-{name}-more", bytes([ONLY | FIX | COMMENTS | LIMIT]) + pcapng([LINK(packet)], 1, struct.pack("<HHIHHIHH", 2, 4, 1, 3, 4, 7, 0, 0))
    for name, packet in (("four", gue(INSIDE)), ("six", gue(INSIDE6, 41))):
        yield f"widened-{name}", bytes([ONLY]) + pcapng([packet], IPV4)
        yield f"widened-big-{name}", bytes([0]) + big([packet], IPV4)
    for name, packets in long_ones():
        for how in (MTU, MTU | FIX, LEARNED):
            yield f"long-{name}-{how}", bytes([how]) + pcap([LINK(packet) for packet in packets])
        yield f"long-{name}-ng", bytes([MTU]) + pcapng(packets[:1], RAW, struct.pack("<HHI", 2, 4, 1) + struct.pack("<HH4sHH", 1, 4, b"text", 0, 0))
    for name, packets in connections():
        for how in (0, LEARNED, LEARNED | FIX, MTU):
            yield f"connection-{name}-{how}", bytes([how]) + pcap(packets)
    for name, data in trains():
        for how in (LRO | COMMENTS, MTU):
            yield f"again-{name}-{how}", bytes([how]) + data
    for name, data in tunnels(top):
        if name.startswith("tunnel-gue-gre"):
            yield f"again-{name}", bytes([ONLY | FIX | MTU]) + data
    acks = [tcp(B, A, ACK, 1, b"", 1000 + 1400 * number) for number in range(5)]
    for how in (LRO, LRO | COMMENTS):
        for on, wrap in (("raw", lambda packet: packet), ("padded", lambda packet: LINK(packet) + bytes(6))):
            yield f"acks-{on}-{how}", bytes([how]) + pcap([wrap(packet) for packet in acks], RAW if on == "raw" else 1)
    owed = [primed(tcp(A, B, ACK, 1000 + 100 * number, bytes(100)), 36) for number in range(4)]
    yield "owed", bytes([COMMENTS]) + pcap([LINK(packet) for packet in owed])
    yield "owed-inside", bytes([COMMENTS]) + pcap([LINK(remote(packet)) for packet in owed])
    # More headers of links than there are tables of flows.
    crowd = [cooked(1, 0x0800, acks[0])[:6] + struct.pack(">Q", number) + cooked(1, 0x0800, acks[0])[14:] for number in range(66)]
    yield "crowd", bytes([COMMENTS]) + pcap(crowd, COOKED)
