"""Streams of packets through routers, address translation and busy tunnels for tools/fuzz-seeds."""
import struct

from fuzz_frames import arp, between, discovery, echo, error, link, stream, tcp, transport, udp

FIN, SYN, RST, ACK = 1, 2, 4, 16
CLIENT, OTHER = bytes([198, 18, 1, 2]), bytes([198, 18, 1, 3])
INSIDE, REMOTE = (CLIENT, 5555), (bytes([198, 19, 0, 1]), 80)
# The outside addresses of the translators of the targets `nat` and `route`.
NAT, ROUTER = bytes([198, 19, 9, 9]), bytes([198, 18, 2, 9])
SERVER = bytes([198, 18, 2, 2])
MACS = {"router0": bytes([2, 0, 0, 0, 1, 1]), "router1": bytes([2, 0, 0, 0, 2, 1]), "client": bytes([2, 0, 0, 0, 1, 2]), "server": bytes([2, 0, 0, 0, 2, 2]),
        "moved": bytes([2, 0, 0, 0, 2, 3]), "group": bytes([3, 0, 0, 0, 0, 1])}
V6 = lambda net, host: bytes.fromhex("20010db8") + struct.pack(">HH", 0, net) + bytes(7) + bytes([host])


def nat_streams():
    """Connections from their first segment to their last, fragments, errors about each protocol, and full tables."""
    out, back = (lambda flags, number, payload=b"", ack=1: (0, tcp(INSIDE, REMOTE, flags, number, payload, ack))), \
        (lambda flags, number, payload=b"", ack=1: (1, tcp(REMOTE, (NAT, 5555), flags, number, payload, ack)))
    opening = (out(SYN, 1000, ack=0), back(SYN | ACK, 5000, ack=1001), out(ACK, 1001, ack=5001), out(ACK, 1001, b"abc", 5001))
    closing = (out(FIN | ACK, 1004, ack=5001), back(ACK, 5001, ack=1005), back(FIN | ACK, 5001, ack=1005), out(ACK, 1005, ack=5002))
    yield "closing", stream(*opening, *closing, out(FIN | ACK, 1004, ack=5002), out(ACK, 1005, b"x", 5002), back(ACK, 5002, b"y", 1006), out(SYN, 9000, ack=0))
    yield "reopened", stream(*opening, *closing, out(SYN, 9000, ack=0), back(SYN | ACK, 7000, ack=9001), out(ACK, 9001, b"x", 7001))
    reset = back(RST, 5001)
    yield "reset", stream(*opening, reset, back(FIN | ACK, 5001, ack=1004), out(FIN | ACK, 1004, ack=5001), out(ACK, 1004, b"x", 5001), back(ACK, 5001, b"y", 1005), out(SYN, 9000, ack=0))
    yield "reset-inside", stream(*opening, out(RST, 1004), back(ACK, 5001, b"y", 1005), out(SYN | ACK, 1004, ack=5001), (0xC0, opening[0][1]))
    yield "refused-connection", stream(opening[0], back(RST | ACK, 0, ack=1001), opening[0])
    remotes = [(bytes([198, 19, 0, 1 + n]), 80) for n in range(7)]
    yield "remotes", stream(*[(0, tcp(INSIDE, to, SYN, 1000, ack=0)) for to in remotes], *[(0, tcp(INSIDE, to, RST, 1001)) for to in remotes[4:]], *[(0, tcp(INSIDE, to, SYN, 1000, ack=0)) for to in remotes[:3]])
    query, answer = udp(INSIDE, REMOTE), udp(REMOTE, (NAT, 5555))
    first, later = (lambda source, to, rest, protocol=17: between(source, to, protocol, rest, 0x2000)), (lambda source, to, protocol=17: between(source, to, protocol, bytes(16), 3))
    yield "first-fragments", stream((0, first(CLIENT, REMOTE[0], query[20:] + bytes(12))), (0, later(CLIENT, REMOTE[0])), (1, first(REMOTE[0], NAT, answer[20:] + bytes(12))), (1, later(REMOTE[0], NAT)),
                                    (1, first(REMOTE[0], NAT, udp(REMOTE, (NAT, 9))[20:] + bytes(12))), (1, later(REMOTE[0], NAT)), (0x80, later(CLIENT, REMOTE[0])))
    yield "tcp-fragments", stream((0, first(CLIENT, REMOTE[0], opening[0][1][20:] + bytes(12), 6)), (0, later(CLIENT, REMOTE[0], 6)), (0, first(CLIENT, REMOTE[0], opening[0][1][20:36], 6)),
                                  (0, first(CLIENT, REMOTE[0], bytes(16), 47)), (0, first(CLIENT, REMOTE[0], echo(CLIENT, REMOTE[0], 8, 5)[20:] + bytes(12), 1)))
    ping = echo(CLIENT, REMOTE[0], 8, 77)
    yield "errors", stream((0, query), opening[0], (0, ping), (1, error(REMOTE[0], NAT, 3, 1, tcp((NAT, 5555), REMOTE, SYN, 1000, ack=0))), (1, error(REMOTE[0], NAT, 11, 0, echo(NAT, REMOTE[0], 8, 77))),
                           (1, error(REMOTE[0], NAT, 3, 4, udp((NAT, 5555), REMOTE))), (0, error(CLIENT, REMOTE[0], 3, 3, udp(REMOTE, INSIDE))), (0, error(CLIENT, REMOTE[0], 3, 3, tcp(REMOTE, INSIDE, ACK, 5))),
                           (1, error(REMOTE[0], NAT, 3, 2, between(NAT, REMOTE[0], 47, bytes(8)))), (0, error(CLIENT, REMOTE[0], 3, 3, echo(REMOTE[0], CLIENT, 0, 77))))
    yield "hairpin-error", stream((0, query), (0, udp((OTHER, 6009), (NAT, 5555))), (0, error(CLIENT, NAT, 3, 3, udp((NAT, 6009), INSIDE))), (0, error(CLIENT, NAT, 3, 3, udp((NAT, 6010), INSIDE))), (0, error(CLIENT, NAT, 3, 3, udp(REMOTE, INSIDE))))
    answered = []
    for host in range(4):
        for port in range(9 if host == 0 else 8):
            inside = (bytes([198, 18, 1, 10 + host]), 2000 + 100 * host + port)
            answered += [(0, udp(inside, REMOTE)), (1, udp(REMOTE, (NAT, inside[1]))), (0, udp(inside, REMOTE))]
    yield "assured", stream(*answered[:27], *answered[27:])
    yield "assured-tcp", stream(*[packet for n in range(9) for packet in ((0, tcp((CLIENT, 3000 + n), REMOTE, SYN, 1, ack=0)), (1, tcp(REMOTE, (NAT, 3000 + n), SYN | ACK, 5, ack=2)), (0, tcp((CLIENT, 3000 + n), REMOTE, ACK, 2, b"x", 6)))])


def route_streams():
    """Neighbours that are probed, move, are silent or reported by the kernel; replies and fragments through NAT."""
    inward = lambda packet: (0, link(MACS["router0"], MACS["client"], packet))
    outward = lambda packet: (1, link(MACS["router1"], MACS["server"], packet))
    query = udp(INSIDE, (SERVER, 53))
    asks, answer = inward(query), (1, arp(2, MACS["router1"], MACS["server"], SERVER, bytes([198, 18, 2, 1])))
    at = lambda time, frame: (frame[0] | time << 5, frame[1])
    moved = (1, arp(2, MACS["router1"], MACS["moved"], SERVER, bytes([198, 18, 2, 1])))
    request = (1, arp(1, b"\xff" * 6, MACS["moved"], SERVER, bytes([198, 18, 2, 1])))
    yield "probe", b"\0" + stream(asks, answer, at(5, asks), *[at(2, asks)] * 5, answer, asks)
    yield "probe-answered", b"\0" + stream(asks, answer, at(5, asks), answer, asks, at(5, asks), request, asks, moved, at(6, asks))
    yield "silent", b"\0" + stream(asks, *[at(2, inward(udp(INSIDE, (bytes([198, 18, 2, 3]), 53))))] * 6)
    yield "held", b"\0" + stream(*[inward(udp((CLIENT, 1000 + n), (SERVER, 53))) for n in range(8)], answer)
    host, far, own = V6(1, 2), V6(2, 2), [V6(1, 1), V6(2, 1)]
    data = struct.pack(">HHHH", 5, 6, 12, 7) + b"data"
    six = inward(struct.pack(">IHBB", 6 << 28, 12, 17, 64) + host + far + data)
    solicits = (1, link(MACS["router1"], MACS["server"], discovery(far, own[1], bytes([135, 0, 0, 0, 0, 0, 0, 0]) + own[1] + b"\1\1" + MACS["server"])))
    says = lambda flags, mac: (1, link(MACS["router1"], mac, discovery(far, own[1], bytes([136, 0, 0, 0, flags, 0, 0, 0]) + far + b"\2\1" + mac)))
    yield "advertisements", b"\0" + stream(solicits, six, says(0x60, MACS["server"]), six, says(0x40, MACS["moved"]), six, says(0, MACS["moved"]), six, says(0x20, MACS["moved"]), six, at(5, six), at(2, six), says(0x40, MACS["moved"]))
    for how in (0, 1):
        # What the kernel reports after a frame: the neighbour set, set for good, gone; and the mappings.
        event = lambda bits, frame: (frame[0] | bits, frame[1])
        of = lambda mac, packet: (0, link(MACS["router0"], MACS[mac], packet))
        yield f"kernel-{how}", bytes([how | 2]) + stream(event(2, of("server", query)), asks, event(18, of("moved", query)), at(5, asks), event(4, asks), asks, event(10, of("server", query)), asks, event(2, of("group", query)), asks,
                                                         event(10, of("moved", query)), event(4, asks), asks, event(2, six), event(10, six), event(4, six), answer, event(2, of("moved", query)), event(4, asks), at(2, asks), event(16, asks))
        last = [bytes([198, 51, 100 + n, 1]) for n in range(3)]
        closed = [inward(udp(INSIDE, (to, 5))) for to in (*last, bytes([192, 0, 2, 1]), bytes([203, 0, 113, 1]), bytes([9, 9, 9, 9]), bytes([198, 18, 1, 1]), bytes([224, 0, 0, 5]))]
        closed += [inward(between(CLIENT, SERVER, 17, query[20:], ttl=1)), inward(between(bytes([198, 20, 0, 1]), SERVER, 17, query[20:])), inward(between(SERVER, SERVER, 17, query[20:]))]
        for alone in (0, 4, 8, 12):
            yield f"actions-{how}-{alone}", bytes([how | alone]) + stream(asks, answer, *closed, six, asks, outward(udp((SERVER, 53), INSIDE)))
    yield "nat-replies", b"\1" + stream(asks, answer, asks, outward(udp((SERVER, 53), (ROUTER, 5555))), outward(udp((SERVER, 53), (ROUTER, 7))), outward(udp((SERVER, 53), INSIDE)), inward(udp((OTHER, 9), (ROUTER, 5555))),
                                        outward(error(SERVER, ROUTER, 3, 3, udp((ROUTER, 5555), (SERVER, 53)))), outward(echo(SERVER, ROUTER, 8, 5)))
    first = lambda source, to, rest: between(source, to, 17, rest + bytes(4), 0x2000)
    later = lambda source, to: between(source, to, 17, bytes(16), 2)
    yield "nat-fragments", b"\1" + stream(asks, answer, inward(later(CLIENT, SERVER)), inward(first(CLIENT, SERVER, query[20:])), outward(later(SERVER, ROUTER)), outward(first(SERVER, ROUTER, udp((SERVER, 53), (ROUTER, 5555))[20:])),
                                          inward(later(CLIENT, SERVER)), inward(later(OTHER, SERVER)), at(5, asks), *[inward(later(bytes([198, 18, 1, 20 + n]), SERVER)) for n in range(20)])
    segments = [inward(tcp(INSIDE, (SERVER, 80), ACK, 1000 + 1000 * n, bytes(1000))) for n in range(4)]
    yield "trains", b"\1" + stream(asks, answer, *segments, segments[0])


def busy_tunnels(gue, gre):
    """More packets at a time than pass a tunnel beside its queues, with a port that takes nothing for a while."""
    again = lambda how: bytes([how]) + b"\x80\0\0"
    for kind, head in ((0, gue), (1, gre), (4, struct.pack(">HH", 0, 0x6558))):
        packet = transport(17, CLIENT, SERVER, struct.pack(">HHHH", 5, 6, 8708, 0), 6, bytes(8700))
        inside = packet if kind < 4 else link(MACS["router0"], MACS["client"], packet)
        data = stream((1 | 2 | 4, inside)) + again(1 | 2 | 4) + again(1 | 2) + again(0x21) + again(0x43) + again(0x61) + again(0x23) * 2
        data += stream((2 | 8, head + inside)) + again(2 | 8) + again(2) + again(0x20) + again(0x42) + again(0x60) + again(0x22) * 2 + again(8) + again(0x20)
        yield f"busy-{kind}", bytes([kind | 0x20]) + data
