#!/usr/bin/python3
"""tunnels: scapy builds packets in tunnels; `segue pcap` judges, takes out, joins and cuts them, and scapy reads what
came out.

    tunnels SEGUE FOLDER     prints one JSON object: the name of each case, and what is wrong with it, or nothing;
                             leaves the frames of all cases in FOLDER/all.pcap

A case is a tunnel, an outer and an inner IP version and a transport, such as `gre-key/6/4/tcp`: four packets of 1000
bytes and one of 300. scapy's checksums have to be right for segue, and segue's for scapy.
"""
import json
import os
import struct
import subprocess
import sys

from scapy.contrib.geneve import GENEVE
from scapy.fields import BitField, ByteField, ShortField
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import GRE, Ether
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet, bind_layers

SIZES = [1000, 1000, 1000, 1000, 300]
FOU = {"4": 5554, "6": 5541}
OPTIONS = ["--fou", "5554:ipip", "--fou", "5541:sit"]
ADDRESSES = {"4": ("198.18.{}.1", "198.18.{}.2"), "6": ("2001:db8:{}::1", "2001:db8:{}::2")}
TEB = 0x6558


class GUE(Packet):
    """Generic UDP encapsulation without options, which scapy lacks."""
    name = "GUE"
    fields_desc = [BitField("version", 0, 2), BitField("control", 0, 1), BitField("hlen", 0, 5), ByteField("proto", 0),
                   ShortField("flags", 0)]


bind_layers(UDP, GUE, dport=6080)
bind_layers(GUE, IP, proto=4)
bind_layers(GUE, IPv6, proto=41)
bind_layers(GUE, GRE, proto=47)
bind_layers(UDP, IP, dport=FOU["4"])
bind_layers(UDP, IPv6, dport=FOU["6"])


def frame_around(inside):
    """An Ethernet frame inside a tunnel."""
    return Ether(dst="02:00:00:00:01:01", src="02:00:00:00:01:02") / inside


def udp(port):
    return UDP(sport=50000, dport=port)


# What stands between the outer IP header and the inner packet, by the inner IP version.
TUNNELS = {
    "ipip": lambda version, inside: inside,
    "gre": lambda version, inside: GRE() / inside,
    "gre-key": lambda version, inside: GRE(key_present=1, key=42) / inside,
    "gre-csum": lambda version, inside: GRE(chksum_present=1) / inside,
    "gre-key-csum": lambda version, inside: GRE(chksum_present=1, key_present=1, key=42) / inside,
    "gre-eth": lambda version, inside: GRE(proto=TEB) / frame_around(inside),
    "vxlan": lambda version, inside: udp(4789) / VXLAN(flags="Instance", vni=42) / frame_around(inside),
    # scapy's own choice in front of Ethernet: the generic protocol extension, on the port of VXLAN.
    "vxlan-gpe": lambda version, inside: udp(4789) / VXLAN(vni=42) / frame_around(inside),
    "geneve": lambda version, inside: udp(6081) / GENEVE(proto=TEB, vni=42) / frame_around(inside),
    "fou": lambda version, inside: udp(FOU[version]) / inside,
    "gue": lambda version, inside: udp(6080) / GUE(proto={"4": 4, "6": 41}[version]) / inside,
    "gue-gre": lambda version, inside: udp(6080) / GUE(proto=47) / GRE() / inside,
}
HAS_FRAME = {"gre-eth", "vxlan", "vxlan-gpe", "geneve"}


def ip(version, net, number):
    """Returns an IP header; scapy fills in lengths and checksums."""
    source, destination = (address.format(net) for address in ADDRESSES[version])
    if version == "4":
        return IP(src=source, dst=destination, id=100 + number, flags="DF", ttl=64)
    return IPv6(src=source, dst=destination, hlim=64)


def cases():
    """Yields each case: its name, its frames, and the frames without their tunnel."""
    for tunnel, around in TUNNELS.items():
        for outer in "46":
            for inner in "46":
                for transport in ("tcp", "udp"):
                    frames, bare, done = [], [], 0
                    for number, size in enumerate(SIZES):
                        last = number + 1 == len(SIZES)
                        head = (TCP(sport=40000, dport=40001, seq=1000 + done, ack=1, flags="PA" if last else "A", window=500)
                                if transport == "tcp" else UDP(sport=40000, dport=40001))
                        data = bytes((done + at) * 7 & 0xff for at in range(size))
                        inside = ip(inner, 1, number) / head / data
                        link = Ether(dst="02:00:00:00:00:01", src="02:00:00:00:00:02")
                        frames.append(bytes(link / ip(outer, 0, number) / around(inner, inside)))
                        bare.append(bytes(frame_around(inside) if tunnel in HAS_FRAME else link / inside))
                        done += size
                    yield f"{tunnel}/{outer}/{inner}/{transport}", frames, bare


def write(path, frames):
    """Writes a pcap file of Ethernet frames."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 262144, 1))
        for number, frame in enumerate(frames):
            file.write(struct.pack("<IIII", 1, number, len(frame), len(frame)) + frame)


def read(path):
    """The frames of a pcap file."""
    with open(path, "rb") as file:
        data = file.read()
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    at, frames = 24, []
    while at < len(data):
        length, = struct.unpack_from(order + "I", data, at + 8)
        frames.append(data[at + 16:at + 16 + length])
        at += 16 + length
    return frames


def made_by_scapy(frame):
    """The frame with all lengths and checksums as scapy computes them."""
    packet = Ether(frame)
    layer = packet
    while layer:
        for field in ("len", "plen", "chksum"):
            if field in layer.fields:
                delattr(layer, field)
        layer = layer.payload
    return bytes(packet)


def faults_of(segue, folder, frames, bare):
    """Returns the faults of a case."""
    at = {name: os.path.join(folder, f"{name}.pcap") for name in ("in", "bare", "merged", "cut", "undone")}
    noted = os.path.join(folder, "merged.pcapng")

    def pcap(*words):
        command = [segue, "pcap", *words, *OPTIONS]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60, check=False)
        return f"segue pcap {words[0]}: exit {done.returncode}: {done.stdout.strip()}" if done.returncode else ""

    write(at["in"], frames)
    faults = [pcap("verify", at["in"]), pcap("decap", at["in"], at["bare"], "-f")]
    if not any(faults) and read(at["bare"]) != bare:
        faults.append("decap: other packets than scapy put into the tunnel")
    profile = ["--profile", "linux:6.12"]
    faults += [pcap("merge", at["in"], at["merged"], "-f", *profile), pcap("merge", at["in"], noted, "-f", *profile)]
    if any(faults):
        return faults
    trains = read(at["merged"])
    if len(trains) != 1:
        faults.append(f"merge: {len(trains)} packets, not one train")
    for train in trains:
        if made_by_scapy(train) != train:
            faults.append("merge: scapy computes other lengths or checksums")
    data = sum(SIZES)
    if len(trains) == 1 and len(trains[0]) != len(frames[0]) - SIZES[0] + data:
        faults.append(f"merge: a train of {len(trains[0])} bytes")
    faults += [pcap("split", at["merged"], at["cut"], "-f", "--mss", str(SIZES[0])),
               pcap("split", noted, at["undone"], "-f", "--undo")]
    if not any(faults):
        if read(at["cut"]) != frames:
            faults.append("split: other packets than scapy made")
        if read(at["undone"]) != frames:
            faults.append("split --undo: other packets than scapy made")
    return faults


def main(segue, folder):
    results, everything = {}, []
    for name, frames, bare in cases():
        everything += frames
        if any(made_by_scapy(frame) != frame for frame in frames):
            sys.exit(f"tunnels: {name}: scapy does not agree with itself")
        results[name] = "\n".join(fault for fault in faults_of(segue, folder, frames, bare) if fault)
    write(os.path.join(folder, "all.pcap"), everything)
    print(json.dumps(results))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
