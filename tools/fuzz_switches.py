"""Streams of frames for bridges and for tunnels with a peer table, for tools/fuzz-seeds."""
import struct

from fuzz_frames import arp, between, checksum, link, stream, tcp, transport, udp, words

ACK = 16
MAC = lambda last: bytes([2, 0, 0, 0, 0, last])
EVERYBODY, GROUP, RESERVED = b"\xff" * 6, bytes([1, 0, 0x5E, 0, 0, 5]), bytes([1, 0x80, 0xC2, 0, 0, 2])
# Hosts behind the peers 2, 3 and 4 of the target `overlay`, and of the interface.
HOSTS = {2: bytes([198, 18, 1, 2]), 3: bytes([198, 18, 3, 2]), 4: bytes([198, 19, 0, 2])}
OWN = bytes([198, 18, 0, 77])
SIX = bytes.fromhex("20010db8000100000000000000000002"), bytes.fromhex("20010db8000900000000000000000002")
VXLAN, GENEVE = (lambda vni, flags=8: struct.pack(">II", flags << 24, vni << 8)), struct.pack(">HHI", 0, 0x6558, 5 << 8)


def v6(source, to, payload=b"data"):
    return struct.pack(">IHBB", 6 << 28, 8 + len(payload), 17, 64) + source + to + struct.pack(">HHHH", 5, 6, 8 + len(payload), 7) + payload


def owed(source, to):
    """A datagram whose checksum is left to the receiver: the field has the sum of the pseudo header."""
    rest = struct.pack(">HHHH", 5, 6, 12, 0xFFFF ^ checksum(words(source + to) + 17 + 12)) + b"data"
    return between(source, to, 17, rest)


def again(how):
    """The packet before, from somewhere else or at another time."""
    return bytes([how]) + b"\x80\0\0"


def bridge_streams():
    """Stations that are learned, move, age and are too many, ports that block and go down, and trains."""
    packet = udp((OWN, 5), (HOSTS[2], 6))
    frame = lambda port, to, source, packet=packet: (port, link(to, source, packet))
    segments = lambda port, to, source, count=5: [frame(port, to, source, tcp((OWN, 5), (HOSTS[2], 9), ACK, 1 + 300 * n, bytes(300))) for n in range(count)]
    learned = [frame(0, EVERYBODY, MAC(1)), frame(1, MAC(1), MAC(2)), frame(0, MAC(2), MAC(1))]
    refused = [frame(0, RESERVED, MAC(1)), frame(0, MAC(1), MAC(1)), frame(0, MAC(2), GROUP), frame(0, MAC(2), bytes(6)), frame(1, MAC(1), MAC(200)), (0, b"short"), (1, b"")]
    for how in (1, 4, 0x0E, 0x11, 0x26, 0x29, 0x45, 0x8A, 0xF3):
        start = bytes([how])
        for name, packets in (("learned", learned), ("refused", learned + refused), ("trains", learned + segments(0, MAC(2), MAC(1)) + segments(1, MAC(1), MAC(2)) + segments(0, EVERYBODY, MAC(1))),
                              ("moved", learned + [frame(2, MAC(1), MAC(2)), frame(0, MAC(2), MAC(1))])):
            yield f"{name}-{how}", start + stream(*packets)
        yield f"aged-{how}", start + stream(*learned) + again(0xE0) + again(0x20) + again(0xA0)
        yield f"many-{how}", start + stream(*[frame(0, EVERYBODY, MAC(10 + n)) for n in range(8)], *[frame(1, MAC(10 + n), MAC(2)) for n in range(8)])
        yield f"blocked-{how}", start + stream(*learned, *segments(1 | 4, MAC(1), MAC(2), 1), frame(0 | 0x10, MAC(2), MAC(1)), frame(0 | 0x10, MAC(2), MAC(1), udp((OWN, 5), (HOSTS[2], 6), bytes(8000)))) + again(0x50) * 3 + again(4 | 0x41) + again(0x60)
        yield f"down-{how}", start + stream(*learned, frame(1 | 8, MAC(1), MAC(2)), frame(0, MAC(2), MAC(1)), frame(1 | 8, MAC(1), MAC(2)), frame(0, MAC(2), MAC(1))) + again(0x48) + again(0x40)
        yield f"crowd-{how}", start + stream(frame(0x10, EVERYBODY, MAC(1))) + again(0x50) + again(0x11) + again(0xB0)


def overlay_streams():
    """Datagrams of each form from peers, removed peers and strangers, with the sources of each, and packets to them."""
    def inner(is_frame, source, to=OWN, mac=None):
        packet = udp((source, 5), (to, 6))
        return link(MAC(1), mac, packet) if is_frame else packet

    gue = lambda protocol, rest=b"": struct.pack(">BBH", 0, protocol, 0) + rest
    numbered = lambda kind, number: gue(47, struct.pack(">HHI", 0x1000, kind, number))
    # Of each form the two headers in front of the inner packet, with whether that is a frame; the interface has frames.
    forms = [(False, (gue(4), False), (numbered(0x0800, 1), False)), (False, (VXLAN(5), True), (gue(4), False)), (True, (VXLAN(5), True), (GENEVE, True)), (True, (GENEVE, True), (gue(143), True)),
             (False, (GENEVE, True), (b"", True)), (False, (VXLAN(5), True), (numbered(0x6558, 1), True)), (True, (VXLAN(5), True), (b"", True)), (True, (numbered(0x6558, 1), True), (VXLAN(5), True))]
    sender = lambda peer: {2: 0, 3: 1, 4: 2, 8: 3, 9: 4}[peer] << 2
    for kind, (frames, *listeners) in enumerate(forms):
        given = []
        for at, (head, is_frame) in enumerate(listeners):
            own = 2 if at == 0 else 4
            for peer in (own, 3, 8, 9):
                given.append((2 * at | sender(peer), head + inner(is_frame, HOSTS[own], mac=MAC(own))))
            given += [(2 * at | sender(own), head + inner(is_frame, HOSTS[2 + own % 4], mac=MAC(9))), (2 * at | sender(own), head), (2 * at | sender(own), head + inner(is_frame, HOSTS[own], mac=GROUP)),
                      (2 * at | sender(own), head + (link(MAC(7), MAC(own), udp((HOSTS[own], 5), (OWN, 6))) if is_frame else b"\x10")), (2 * at | sender(own), head[:3])]
            if is_frame:
                given += [(2 * at | sender(own), head + MAC(1) + MAC(own) + struct.pack(">HHH", 0x8100, 5, 0x0800) + udp((HOSTS[own], 5), (OWN, 6))), (2 * at | sender(own), head + arp(1, EVERYBODY, MAC(own), HOSTS[own], OWN))]
            given += [(2 * at | sender(own), head + (link(MAC(1), MAC(own), packet) if is_frame else packet)) for packet in [owed(HOSTS[own], OWN)] +
                      [tcp((HOSTS[own], 5), (OWN, 9), ACK, 1 + 300 * n, bytes(300)) for n in range(3)]]
            if head[:1] == b"\x08":
                given += [(2 * at | sender(3), VXLAN(6) + inner(True, HOSTS[3], mac=MAC(3))), (2 * at | sender(2), VXLAN(6) + inner(True, HOSTS[2], mac=MAC(2))), (2 * at | sender(2), VXLAN(7) + inner(True, HOSTS[2], mac=MAC(2)))]
                # Remote checksum offload: the UDP checksum behind Ethernet and IPv4 is left to the receiver.
                given.append((2 * at | sender(own), struct.pack(">II", 0x08200000, 5 << 8 | 0x80 | 17) + link(MAC(1), MAC(own), owed(HOSTS[own], OWN))))
            if head[1:2] == b"\x04":
                given.append((2 * at | sender(own), struct.pack(">BBHIHH", 2, 4, 1, 0x80000000, 20, 26) + owed(HOSTS[own], OWN)))
            given.append((2 * at | sender(own), head + (link(MAC(1), MAC(own), v6(*SIX)) if is_frame else v6(*SIX))))
            given.append((2 * at | sender(own), head.replace(b"\0\4", b"\0\x29").replace(b"\x08\0\0\0\0\1", b"\x86\xdd\0\0\0\1") + v6(*SIX)))
        packets = [udp((OWN, 5), (HOSTS[peer], 6)) for peer in (2, 3, 4)] + [udp((OWN, 5), (bytes(to), 6)) for to in ([198, 18, 8, 1], [198, 18, 7, 1], [224, 0, 0, 5], [255] * 4, [198, 18, 1, 9])]
        packets += [v6(SIX[1], SIX[0]), v6(SIX[0], SIX[1]), v6(SIX[1], bytes([255, 2]) + bytes(13) + b"\2"), between(OWN, HOSTS[2], 17, bytes(16), 0x2000), b"\x10\0", b""]
        long = [transport(17, OWN, HOSTS[2], struct.pack(">HHHH", 5, 6, 1448, 0), 6, bytes(1440)), between(OWN, HOSTS[2], 17, bytes(1440), 0), v6(SIX[1], SIX[0], bytes(1400))]
        trains = [tcp((OWN, 5), (HOSTS[peer], 9), ACK, 1, bytes(450)) for peer in (2, 4)]
        if frames:
            sent = [link(MAC(to), MAC(1), packets[0]) for to in (2, 3, 4, 8, 9)] + [link(EVERYBODY, MAC(1), packets[0]), link(GROUP, MAC(1), packets[8]), b"short", arp(1, EVERYBODY, MAC(1), OWN, HOSTS[2])]
            sent += [link(MAC(2), MAC(1), packet) for packet in long + trains] + [link(EVERYBODY, MAC(1), packet) for packet in trains]
        else:
            sent = packets + long + trains
        sent = [(1, packet) for packet in sent]
        for how, settings in ((0, 0), (0x20, 0), (0x80, 1), (0x20, 4), (0, 0x20), (0xA0, 0x41)):
            yield f"datagrams-{kind}-{how:02x}-{settings:02x}", bytes([kind | how, settings]) + stream(*given)
        for how, settings in ((0, 0), (8, 0), (0x28, 2), (0x20, 0x10), (0x40, 8), (0x60, 0x40), (0x88, 0x10)):
            yield f"packets-{kind}-{how:02x}-{settings:02x}", bytes([kind | how, settings]) + stream(*sent)
        yield f"tables-{kind}", bytes([kind | 0x20, 0]) + stream(*[(0x20 | how, data) for how, data in (*sent[:6], *given[:6], *sent[:3])])
        busy = [(1 | 0x10 | 4, sent[0][1]), (1 | 0x10 | 4 | 0x20, sent[1][1]), (0, given[0][1]), (1 | 8, sent[0][1]), given[0], (1 | 8 | 0x20, sent[0][1]), given[0], (1, sent[2][1])]
        for settings in (0, 0x20):
            yield f"busy-{kind}-{settings:02x}", bytes([kind | 0x10, settings]) + stream(*busy)
