"""Packets, captures and streams of packets for tools/fuzz-seeds."""
import struct


def frames(path):
    """The frames of a little-endian pcap file."""
    with open(path, "rb") as f:
        data = f.read()
    assert data[:4] == b"\xd4\xc3\xb2\xa1", path
    at = 24
    while at < len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        yield data[at + 16 : at + 16 + length]
        at += 16 + length


def ethernet(kind, rest):
    return bytes.fromhex("020000000002020000000001") + struct.pack(">H", kind) + rest


def ipv4(protocol, rest, options=b""):
    head = struct.pack(">BBHHHBBH", 0x45 + len(options) // 4, 0, 20 + len(options) + len(rest), 1, 0x4000, 64, protocol, 0)
    return head + bytes([198, 18, 0, 1, 198, 18, 0, 2]) + options + rest


def ipv6(header, rest):
    return struct.pack(">IHBB", 6 << 28, len(rest), header, 64) + bytes.fromhex("20010db8" + "00" * 11 + "01") * 2 + rest


def words(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data[: len(data) // 2 * 2]))
    return total + (data[-1] << 8 if len(data) % 2 else 0)


def checksum(total):
    while total >> 16:
        total = (total >> 16) + (total & 0xFFFF)
    return total ^ 0xFFFF


def udp_checksum(packet, header):
    """Returns the packet with its UDP checksum, if it has one, corrected."""
    addresses = packet[12:20] if packet[0] >> 4 == 4 else packet[8:40]
    datagram = bytearray(packet[header:])
    if datagram[6:8] != b"\0\0":
        datagram[6:8] = b"\0\0"
        total = words(addresses) + 17 + len(datagram) + words(bytes(datagram))
        datagram[6:8] = struct.pack(">H", checksum(total) or 0xFFFF)
    return packet[:header] + bytes(datagram)


PORTS = {5554: 5555, 5541: 5556, 5547: 5557, 6086: 6080, 4790: 4789, 4791: 4789}


def to_ports_of_the_targets(frame):
    """Returns the frame with its UDP destination port changed to the one on which a fuzz target listens."""
    packet = frame[14:]
    header = 20 if packet[0] >> 4 == 4 else 40
    if packet[9 if header == 20 else 6] != 17:
        return frame
    port = struct.unpack_from(">H", packet, header + 2)[0]
    packet = bytearray(packet)
    struct.pack_into(">H", packet, header + 2, PORTS.get(port, port))
    return frame[:14] + udp_checksum(bytes(packet), header)


def packet_is_ip(frame):
    return frame[12:14] in (b"\x08\0", b"\x86\xdd")


def to_addresses_of_the_targets(packet):
    """Returns the packet with the outer addresses of the tunnels that the fuzz targets decapsulate."""
    packet = bytearray(packet)
    if packet[0] >> 4 == 4:
        packet[12:20] = bytes([198, 18, 0, 1, 198, 18, 0, 2])
        packet[10:12] = b"\0\0"
        packet[10:12] = struct.pack(">H", checksum(words(bytes(packet[:20]))))
        return udp_checksum(bytes(packet), 20) if packet[9] == 17 else bytes(packet)
    for at, host in ((8, 1), (24, 2)):
        packet[at : at + 16] = bytes.fromhex("20010db8" + "00" * 11) + bytes([host])
    return udp_checksum(bytes(packet), 40) if packet[6] == 17 else bytes(packet)


def discovery(source, destination, message):
    """A neighbour discovery message with its checksum, in IPv6 with hop limit 255."""
    total = words(source + destination) + 58 + len(message) + words(message)
    message = message[:2] + struct.pack(">H", checksum(total)) + message[4:]
    return struct.pack(">IHBB", 6 << 28, len(message), 58, 255) + source + destination + message


def pcap(packets, link=1):
    data = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link)
    for number, packet in enumerate(packets):
        data += struct.pack("<IIII", 1, number, len(packet), len(packet)) + packet
    return data


def block(kind, body):
    body += bytes(-len(body) % 4)
    return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)


def pcapng(packets, link=1, options=b""):
    data = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    data += block(1, struct.pack("<HHI", link, 0, 0) + struct.pack("<HHBxxx", 9, 1, 9))
    for number, packet in enumerate(packets):
        body = struct.pack("<IIIII", 0, 0, number, len(packet), len(packet)) + packet + bytes(-len(packet) % 4)
        data += block(6, body + options)
    data += block(3, struct.pack("<I", len(packets[0])) + packets[0])
    data += block(5, struct.pack("<III", 0, 0, 0)) + block(0xBAD, struct.pack("<I", 32473) + b"note")
    return data


def tcp(source, destination, flags, number, payload=b"", ack=1):
    """Returns a TCP segment with its checksum; `source` and `destination` are an address and a port each."""
    head = struct.pack(">HHIIBBHHH", source[1], destination[1], number, ack, 0x50, flags, 512, 0, 0)
    return transport(6, source[0], destination[0], head, 16, payload)


def udp(source, destination, payload=b"data"):
    head = struct.pack(">HHHH", source[1], destination[1], 8 + len(payload), 0)
    return transport(17, source[0], destination[0], head, 6, payload)


def transport(protocol, source, destination, head, at, payload):
    total = words(source + destination) + protocol + len(head + payload) + words(head + payload)
    head = head[:at] + struct.pack(">H", checksum(total)) + head[at + 2 :]
    return between(source, destination, protocol, head + payload)


def between(source, destination, protocol, rest, fragment=0x4000, ttl=64):
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(rest), 7, fragment, ttl, protocol, 0) + source + destination
    return head[:10] + struct.pack(">H", checksum(words(head))) + head[12:] + rest


def ip_sum(packet):
    """The IPv4 packet, whose header has no options, with its header checksum corrected."""
    head = packet[:10] + bytes(2) + packet[12:20]
    return head[:10] + struct.pack(">H", checksum(words(head))) + head[12:] + packet[20:]


def echo(source, destination, kind, number):
    message = struct.pack(">BBHHH", kind, 0, 0, number, 1) + b"ping"
    return between(source, destination, 1, message[:2] + struct.pack(">H", checksum(words(message))) + message[4:])


def error(source, destination, kind, code, quoted):
    message = struct.pack(">BBHI", kind, code, 0, 1280) + quoted[:28]
    return between(source, destination, 1, message[:2] + struct.pack(">H", checksum(words(message))) + message[4:])


def stream(*packets):
    """Returns an input of several packets: for each a byte for the target, such as its direction, its length and its
    bytes."""
    return b"".join(bytes([how]) + struct.pack(">H", len(packet)) + packet for how, packet in packets)


def link(destination, source, packet):
    return destination + source + (b"\x08\0" if packet[0] >> 4 == 4 else b"\x86\xdd") + packet


def arp(kind, destination, mac, ip, target):
    return destination + mac + b"\x08\x06" + struct.pack(">HHBBH", 1, 0x0800, 6, 4, kind) + mac + ip + bytes(6) + target
