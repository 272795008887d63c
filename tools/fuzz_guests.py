"""Guests and their front ends for tools/fuzz-seeds: steps of fuzz/src/vhost.rs, each a byte with its number and, in
bit 4, the queue."""
import struct

from fuzz_frames import ethernet, tcp, udp

A, B = (bytes([198, 18, 1, 2]), 5555), (bytes([198, 19, 0, 1]), 80)
SYN, ACK = 2, 16
syn, query = tcp(A, B, SYN, 1000), udp(A, (B[0], 53))

FROM_GUEST = 0x10
ready = b"\0\0\0"  # all features; the handshake
packet, buffers, sent = bytes([14, 0]), bytes([13]) + struct.pack(">H", 2048), bytes([10]) + struct.pack(">H", 3000)
kick = bytes([3 | FROM_GUEST])


def descriptor(number, place, length, shift, flags, following):
    return bytes([1 | FROM_GUEST]) + struct.pack(">HHHBHH", number, place, length, shift, flags, following)


def message(number, payload=b"", fds=0):
    return bytes([7, number, 8, fds]) + struct.pack(">H", len(payload)) + payload


def source(number, missing=0):
    """The source (connected, handed over, with a relay, listening), all features but these, and the handshake."""
    return struct.pack(">H", number << 14 | missing) + b"\0"


def guest_sends(flags, kind, size, headers, field, packet):
    """A guest's packet with its virtio-net header: flags, type, segment size, length of the headers, checksum field."""
    frame = ethernet(0x0800, packet)
    return bytes([15, 0, 1]) + struct.pack("<BBHHHH", flags, kind, headers, size, 34, field) + struct.pack(">H", len(frame)) + frame + kick


def to_guest(number, length, flags, following=0):
    """A descriptor of the receive queue, offered."""
    return b"\1" + struct.pack(">HHHBHH", number, 5461, length, 0, flags, following) + bytes([2]) + struct.pack(">H", number)


def words32(*values):
    return struct.pack(f"<{len(values)}I", *values)


def region(user, length, offset=0, guest=0x90000000):
    return struct.pack("<QQQQ", guest, length, user, offset)


returned, another, instead = b"\x0f\1", b"\x0f\2", b"\x0f\3"
USER, NO_TRAINS = 0x7F0000000000, 1 << 15 | 1 << 28 | 1 << 30 | 1 << 32
# Features by their number among those of fuzz/src/vhost.rs.
MERGEABLE, INDIRECT, EVENTS = 1 << 7, 1 << 8, 1 << 9


offer = bytes([2 | FROM_GUEST]) + bytes(2) + kick
tcp_train = guest_sends(1, 1, 500, 54, 16, tcp(A, B, ACK, 1, bytes(1400)))
udp_train = guest_sends(1, 5, 500, 42, 6, udp(A, B, bytes(1400)))


def indirect(entries, length=None, flags=4):
    """An indirect table of (flags, next), and a chain that names it."""
    table = b"".join(struct.pack("<QIHH", 0x40500000, 64, *entry) for entry in entries)
    place = 0x1F0000 // 384
    at = place * 384
    return bytes([6]) + struct.pack(">HBB", at // 64, at % 64, len(table)) + table \
        + descriptor(0, place, len(table) if length is None else length, 0, flags, 0) + offer


table = struct.pack("<QIHHQIHH", 0x40500000, 64, 1, 1, 0x40500100, 64, 0, 0)
one_region = struct.pack("<QQQQQ", 0, 0x90000000, 4096, 0x7F8000000000, 0)
GUESTS = {
    "packets": ready + (packet + kick) * 2,
    "buffers": ready + buffers + sent * 2,
    "chain": ready + descriptor(0, 5461, 100, 0, 1, 1) + descriptor(1, 5500, 1000, 0, 0, 0) + offer,
    "loop": ready + descriptor(0, 5461, 100, 0, 1, 0) + offer,
    "indirect": ready + bytes([6, 0x7C, 0, 0, 32]) + table + descriptor(0, 0x1F0000 // 384, 32, 0, 4, 0) + offer,
    "outside": ready + descriptor(0, 0, 0xFFFF, 0, 0, 0) + offer,
    "jump": ready + bytes([4 | FROM_GUEST, 0x80, 0]) + kick,
    "shrunk": ready + packet + bytes([9, 0]) + kick + sent,
    "legacy": b"\xff\xff\0" + buffers + packet + kick + sent,
    "messages": bytes(2) + b"".join(message(number, bytes(8)) for number in (1, 15, 17, 36, 3)),
    "memory": ready + message(37, one_region, 1) + message(38, one_region) + packet + kick,
    "half": ready + bytes([8, 3, 1, 0, 0]) + packet + kick,
    "stop_and_go": ready + packet + kick + message(11, struct.pack("<II", 1, 0)) + bytes([12 | FROM_GUEST]) + packet + kick,
    # Trains that go back to the guest: whole, cut for one that takes none, cut again for one that takes none any more.
    "trains": ready + buffers + returned + tcp_train + udp_train + guest_sends(1, 0x81, 500, 54, 16, tcp(A, B, ACK, 1, bytes(900))),
    "trains_cut": source(0, 0x307C) + buffers + returned + tcp_train + udp_train,
    "trains_narrowed": ready + returned + tcp_train + udp_train + message(2, struct.pack("<Q", NO_TRAINS)) + buffers + sent,
    "headers": ready + guest_sends(1, 3, 9, 54, 16, query) + guest_sends(1, 1, 0, 54, 16, syn) + guest_sends(0, 0, 0, 0, 0, query)
    + guest_sends(1, 0, 0, 0, 9000, query),
    "merged": ready + bytes([13]) + struct.pack(">H", 300) + sent + sent,
    "too_small": source(0, MERGEABLE) + bytes([13]) + struct.pack(">H", 300) + sent + sent,
    "no_events": source(0, EVENTS) + packet + kick + buffers + sent + bytes([5, 0, 1, 0, 0]) + sent,
    "no_buffers": ready + sent + sent + buffers + sent,
    "calls_suppressed": ready + buffers + bytes([5, 0, 0, 0, 200]) + sent,
    # Front ends that are handed over, that come by a listening socket, and that follow each other.
    "supplied": source(1) + packet + kick + another + instead + b"\0" + packet + kick + buffers + sent,
    "listening": source(3) + packet + kick + another + instead + b"\0" + packet + kick + buffers + sent,
    "half_and_gone": source(1) + bytes([8, 3, 1, 0, 0]) + instead + b"\0" + packet + kick,
    "early": source(1) + sent + instead + b"\0" + buffers + sent,
    # A relay passes messages on, and refuses descriptors that are not what they should be.
    "relayed": source(2) + packet + kick + message(1) + message(37, one_region, 1) + message(38, one_region) + buffers + sent,
    "relayed_kick": source(2) + message(12, struct.pack("<Q", 1), 1) + sent,
    "relayed_memory": source(2) + message(5, words32(1, 0) + region(USER, 1 << 40), 1) + sent,
    "relayed_overflow": source(2) + message(5, words32(1, 0) + region(USER, 4096, (1 << 64) - 1), 1) + sent,
    "relayed_nothing": source(2) + message(5, words32(1, 0) + region(USER, 4096)) + sent,
    "relayed_others": source(2) + message(1, b"", 2) + sent,
    "relayed_half": source(2) + bytes([8, 3, 1, 0, 0]) + packet + kick,
    "relayed_version": source(2) + bytes([8, 12]) + words32(1, 2, 0) + packet,
    # Chains and tables that break a rule.
    "written": ready + descriptor(0, 5461, 100, 0, 2, 0) + offer,
    "read": ready + to_guest(0, 2048, 0) + sent,
    "empty_buffer": ready + to_guest(0, 0, 2) + sent,
    "buffers_in_a_row": ready + to_guest(1, 2048, 2) + to_guest(0, 100, 3, 1) + sent,
    "head": ready + bytes([2 | FROM_GUEST]) + struct.pack(">H", 300) + kick,
    "next": ready + descriptor(0, 5461, 100, 0, 1, 0x1FF) + offer,
    "short": ready + descriptor(0, 5461, 5, 0, 0, 0) + offer,
    "long": ready + descriptor(0, 5461, 0x8000, 1, 1, 1) + descriptor(1, 5461, 100, 0, 0, 0) + offer,
    "behind_the_memory": ready + descriptor(0, 0xFFFF, 100, 0, 0, 0) + offer,
    "empty_piece": ready + descriptor(0, 5461, 0, 0, 1, 1) + descriptor(1, 5461, 200, 0, 0, 0) + offer,
    "table_not_agreed": source(0, INDIRECT) + indirect([(0, 0)]),
    "table_and_next": ready + indirect([(0, 0)], flags=5),
    "table_length": ready + indirect([(0, 0)], length=17),
    "table_empty": ready + indirect([(0, 0)], length=0),
    "table_nested": ready + indirect([(4, 0)]),
    "table_next": ready + indirect([(1, 9)]),
    "table_loop": ready + indirect([(1, 0)]),
    "table_written": ready + indirect([(2, 0)]),
    "table_outside": ready + descriptor(0, 0xFFFF, 64, 0, 4, 0) + offer,
    "table_long": ready + descriptor(0, 5461, 0x8000, 6, 4, 0) + offer,
    # Messages that stop the port, one each.
    **{f"message_{name}": bytes(2) + data for name, data in {
        "log": message(2, struct.pack("<Q", 1 << 26)), "iommu": message(2, struct.pack("<Q", 1 << 33)), "feature": message(2, struct.pack("<Q", 1 << 40)),
        "protocol": message(16, struct.pack("<Q", 1 << 5)), "queue": message(8, words32(2, 256)), "size": message(8, words32(0, 3)),
        "size_0": message(8, words32(0, 0)), "size_long": message(8, words32(0, 65536)), "log_base": message(6, bytes(16)), "log_fd": message(7, b"", 1),
        "postcopy": message(28), "iotlb": message(22), "logged_ring": message(9, words32(0, 1) + bytes(32)),
        "unaligned": message(9, words32(0, 0) + struct.pack("<QQQQ", USER + 1, USER, USER, 0)), "unknown": message(60),
        "kick": message(12, struct.pack("<Q", 1)), "no_kick": message(12, struct.pack("<Q", 0x101)), "no_call": message(13, struct.pack("<Q", 0x100)) + message(1),
        "error": message(14, struct.pack("<Q", 0x100)) + message(14, struct.pack("<Q", 0x107)), "call": message(13, struct.pack("<Q", 1), 1) + message(1),
        "kick_file": message(12, struct.pack("<Q", 1), 1), "stop": message(11, words32(7, 0)), "enable": message(18, words32(0, 1)) + message(18, words32(9, 1)),
        "reset": message(34) + message(4) + message(3) + message(15), "regions": message(5, words32(9, 0) + bytes(32)), "region_length": message(5, words32(1, 0), 1),
        "region_fds": message(5, words32(1, 0) + region(USER, 4096), 2), "added_short": message(37, bytes(32), 1), "added_fds": message(37, one_region),
        "removed": message(38, one_region), "fds": message(1, b"", 1), "length": message(1, bytes(3)),
        "region_0": message(37, bytes(8) + region(USER, 0), 1), "region_end": message(37, bytes(8) + region(USER, 4096, (1 << 64) - 1), 1),
        "region_guest": message(37, bytes(8) + region(USER, 4096, 0, (1 << 64) - 1), 1), "region_user": message(37, bytes(8) + region((1 << 64) - 1, 4096), 1),
        "region_huge": message(37, bytes(8) + region(USER, 1 << 41), 1), "overlap": message(37, one_region, 1) + message(37, one_region, 1),
        "overlap_guest": message(37, one_region, 1) + message(37, bytes(8) + region(USER, 4096), 1),
        "version": bytes([8, 12]) + words32(1, 2, 0), "reply": bytes([8, 12]) + words32(1, 5, 0), "too_long": bytes([8, 12]) + words32(1, 1, 10_000),
        "refused": bytes([8, 16]) + b"ongs" + words32(1, 4, 3), "refused_unknown": bytes([8, 16]) + b"ongs" + words32(1, 4, 999),
    }.items()},
    # A ring outside of the memory, and one that moves while it is used.
    "ring_outside": ready + message(9, words32(1, 0) + struct.pack("<QQQQ", USER + (23 << 20) + 0xFFFF0, USER, USER, 0)),
    "ring_moves": ready + packet + kick + message(5, words32(1, 0) + region(USER, 24 << 20, 0, 0x40000000), 1) + packet + kick + message(8, words32(1, 128)) + packet + kick,
}
