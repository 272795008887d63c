"""Packets and trains behind virtio-net headers, and tunnels with other settings, for tools/fuzz-seeds."""
import struct

from fuzz_frames import between, ip_sum, link, stream, tcp, transport, udp

ACK, CWR = 16, 128
NEEDS_CSUM, DATA_VALID, TUNNEL_CSUM = 1, 2, 8
TCPV4, TCPV6, UDP_L4, TUNNEL4, TUNNEL6, ECN = 1, 4, 5, 0x20, 0x40, 0x80
MACS = bytes([2, 0, 0, 0, 1, 1]), bytes([2, 0, 0, 0, 1, 2])
A, B = (bytes([198, 18, 0, 1]), 5555), (bytes([198, 18, 0, 2]), 80)
HOSTS6 = bytes.fromhex("20010db8" + "00" * 11 + "01") + bytes.fromhex("20010db8" + "00" * 11 + "02")


def six(protocol, rest):
    return struct.pack(">IHBB", 6 << 28, len(rest), protocol, 64) + HOSTS6 + rest


def tcp_train(is_v4, length=600, flags=ACK):
    packet = tcp(A, B, flags, 1, bytes(range(200)) * (length // 200))
    return packet if is_v4 else six(6, packet[20:])


def udp_train(is_v4, length=600):
    packet = udp(A, B, bytes(range(200)) * (length // 200))
    return packet if is_v4 else six(17, packet[20:])


def virtio_packets():
    """Each kind of packet and train that a kernel or guest delivers, with a header that fits and some that do not."""
    def whole(flags, kind, size, start, field, packet, more=None):
        head = struct.pack("<BBHHHH", flags, kind, 54, size, start, field)
        # The longest form: number of buffers, hash, its kind, and the offsets of a UDP tunnel.
        return head + (b"" if more is None else struct.pack("<HIHHHH", 1, 7, 1, 0, *more)) + packet

    for is_v4 in (True, False):
        family, at = ("4", 20) if is_v4 else ("6", 40)
        tcp_kind = TCPV4 if is_v4 else TCPV6
        frame = lambda packet: link(*MACS, packet)
        for name, kind, packet, field in (("tcp", tcp_kind, tcp_train(is_v4), 16), ("udp", UDP_L4, udp_train(is_v4), 6),
                                          ("ecn", tcp_kind | ECN, tcp_train(is_v4, flags=ACK | CWR), 16)):
            yield f"{name}{family}-train", whole(NEEDS_CSUM, kind, 200, at, field, packet)
            yield f"{name}{family}-frame", whole(NEEDS_CSUM, kind, 200, 14 + at, field, frame(packet))
            yield f"{name}{family}-one", whole(NEEDS_CSUM, kind, 4000, at, field, packet)
        yield f"syn{family}", whole(NEEDS_CSUM, tcp_kind, 200, at, 16, tcp_train(is_v4, flags=2))
        yield f"sizes{family}", whole(NEEDS_CSUM, tcp_kind, 0, at, 16, tcp_train(is_v4))
        yield f"many{family}", whole(NEEDS_CSUM, UDP_L4, 1, at, 6, udp_train(is_v4, 200))
        yield f"other-kind{family}", whole(NEEDS_CSUM, 3, 200, at, 6, udp_train(is_v4))
        yield f"partial{family}", whole(NEEDS_CSUM, 0, 0, at, 6, udp_train(is_v4, 200))
        yield f"outside{family}", whole(NEEDS_CSUM, 0, 0, 0xFFF0, 6, udp_train(is_v4, 200))
        yield f"elsewhere{family}", whole(NEEDS_CSUM, 0, 0, at + 4, 10, udp_train(is_v4, 200))
        # The CRC32c of SCTP is left to the receiver, 8 bytes behind the start of its header.
        sctp = struct.pack(">HHII", 5, 6, 7, 0) + bytes(range(40))
        yield f"sctp{family}", whole(NEEDS_CSUM, 0, 0, at, 8, between(A[0], B[0], 132, sctp) if is_v4 else six(132, sctp))
        yield f"padded{family}", whole(NEEDS_CSUM, 0, 0, 14 + at, 6, frame(udp_train(is_v4, 0)) + bytes(18))
        yield f"verified{family}", whole(DATA_VALID, 0, 0, 0, 0, udp_train(is_v4, 200))
        yield f"verified-padded{family}", whole(DATA_VALID, 0, 0, 0, 0, frame(udp_train(is_v4, 0)) + bytes(18))
    yield "nothing", whole(0, 0, 0, 0, 0, b"")
    yield "no-packet", whole(NEEDS_CSUM, TCPV4, 200, 20, 16, bytes(60))
    for outer in (4, 6):
        for inner in (4, 6):
            for name, kind, packet, field in (("tcp", TCPV4 if inner == 4 else TCPV6, tcp_train(inner == 4), 16), ("udp", UDP_L4, udp_train(inner == 4), 6)):
                within = link(*MACS, packet)
                for has_csum in (0, 1):
                    datagram = bytes.fromhex("0800000000000500") + within
                    head = struct.pack(">HHHH", 50000, 4789, 8 + len(datagram), 0x1234 if has_csum else 0)
                    carried = between(A[0], B[0], 17, head + datagram) if outer == 4 else six(17, head + datagram)
                    frame = link(*MACS, carried)
                    outer_th = len(frame) - 8 - len(datagram)
                    inner_nh = len(frame) - len(packet)
                    start = inner_nh + (20 if inner == 4 else 40)
                    bits = TUNNEL4 if outer == 4 else TUNNEL6
                    flags = NEEDS_CSUM | (TUNNEL_CSUM if has_csum else 0)
                    names = f"vxlan{outer}-{name}{inner}-{has_csum}"
                    yield names, whole(flags, kind | bits, 200, start, field, frame, (outer_th, inner_nh))
                    yield names + "-bare", whole(NEEDS_CSUM, kind, 200, start, field, frame)
                    yield names + "-wrong", whole(flags ^ TUNNEL_CSUM, kind | bits, 200, start, field, frame, (outer_th, inner_nh))
                    yield names + "-owed", whole(NEEDS_CSUM, 0, 0, start, field, frame)
                number = 4 if inner == 4 else 41
                for gre in (b"", struct.pack(">HH", 0, 0x0800 if inner == 4 else 0x86DD)):
                    rest = gre + packet
                    carried = between(A[0], B[0], 47 if gre else number, rest) if outer == 4 else six(47 if gre else number, rest)
                    start = len(carried) - len(packet) + (20 if inner == 4 else 40)
                    yield f"{'gre' if gre else 'ip'}{outer}-{name}{inner}", whole(NEEDS_CSUM, kind, 200, start, field, carried)


FIXED_TOS, INHERITS_TTL, UNSET_DF, INHERITS_DF, FIXED_PORT, NUMBERED, NO_CSUM = (1 << n for n in range(7))
OTHER, TRAINS, PARSED, NO_GRO, UNFINISHED, NARROWS, UNKNOWN_CSUM = (1 << n for n in range(7))


def set_tunnels(kinds):
    """Each kind of tunnel with settings, another tunnel beside it, trains, ECN and full queues; `kinds` has the
    datagrams of each kind for the first tunnel and for the second."""
    marked = tcp(A, B, ACK, 1, bytes(900))
    marked = ip_sum(marked[:1] + b"\3" + marked[2:6] + b"\0\0" + marked[8:])
    segments = [tcp(A, B, ACK, 1 + 400 * n, bytes(400)) for n in range(3)]
    long6 = six(17, udp(A, B, bytes(1400))[20:])
    settings = (
        (FIXED_TOS | INHERITS_TTL | UNSET_DF, OTHER | TRAINS), (INHERITS_DF | FIXED_PORT, NO_GRO), (NUMBERED, OTHER | PARSED), (NO_CSUM, UNFINISHED | UNKNOWN_CSUM),
        (NUMBERED | FIXED_TOS, TRAINS | PARSED | NARROWS), (FIXED_TOS | NO_CSUM, OTHER | NO_GRO | NARROWS),
    )
    for kind, (first, second) in enumerate(kinds):
        inside = [link(*MACS, packet) if kind >= 4 else packet for packet in (marked, *segments, long6)]
        for number, (config, ports) in enumerate(settings):
            for more in (0, 0x20, 0x10, 0x28)[: 2 if number else 4]:
                if more & 8 and kind < 4:
                    continue
                data = stream(*[(0, datagram) for datagram in first], *[(16, datagram) for datagram in second], *[(1, packet) for packet in inside], *[(17, packet) for packet in inside])
                if more & 0x20:
                    data += stream(*[(1 | 2 | 4, packet) for packet in inside], *[(2 | 8, datagram) for datagram in first + second])
                    data += (bytes([0x23]) + b"\x80\0\0") * 3 + stream(*[(0x63, packet) for packet in inside], *[(0x22, datagram) for datagram in first])
                yield f"set-{kind}-{number}-{more:02x}", bytes([kind | more | 0x40 | (number & 1) << 7, config, ports]) + data
