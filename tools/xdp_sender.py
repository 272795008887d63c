#!/usr/bin/env python3
"""Sends UDP frames at a constant rate from inside the kernel, more of them than a process can hand to it:

    xdp_sender.py DEV STATION TARGET RATE SECONDS

60-byte frames of 1,000 flows in turn, to the Ethernet address STATION and the IPv4 address TARGET, RATE a second, 64
at a time. It prints how many it has offered. DEV is an end of a veth pair whose other end has NAPI (`ethtool -K PEER
gro on`): frames for which the ring of 256 there has no room are among those offered, and count as dropped by DEV
(tx_dropped in /sys/class/net/DEV/statistics). Frames that are late by more than 1 ms, and by more than 200 of them, are
not made up for.

An XDP program waits until the next frames are due, writes each of them whole, because the host behind the ring may have
changed the one that was on the same page before, and redirects it to DEV. BPF_PROG_TEST_RUN with
BPF_F_TEST_XDP_LIVE_FRAMES runs it on the processor of this process, and hands over 64 frames with one wake-up of the
other end. Needs root, Linux 5.18 and x86-64 or aarch64."""
import ctypes
import os
import platform
import socket
import struct
import sys
import time

FLOWS, LENGTH, BATCH = 1000, 60, 64
# Seconds of frames that a call of the kernel sends: each makes and removes a pool of pages.
CALL = 0.02
# How often at most the program looks at the clock before it gives the processor to others.
LOOKS = 8000
# Of include/uapi/linux/bpf.h and if_link.h.
MAP_CREATE, MAP_LOOKUP_ELEM, MAP_UPDATE_ELEM, PROG_LOAD, PROG_TEST_RUN, LINK_CREATE = 0, 1, 2, 5, 10, 28
MAP_TYPE_ARRAY, PROG_TYPE_XDP, ATTACH_XDP, PSEUDO_MAP_VALUE, LIVE_FRAMES, LOG_STATS = 2, 6, 37, 2, 2, 4
KTIME_GET_NS, REDIRECT, XDP_DROP, XDP_PASS, XDP_FLAGS_SKB_MODE = 5, 23, 1, 2, 2
# The map has one value: these words of eight bytes, and from STRIDE on a frame every STRIDE bytes. RUNS counts those of
# the program, SENT frames. NEXT is when the next frames are due, and INTERVAL nanoseconds later those after them; none
# are from END on. Where they are later than SLACK, it counts from now. OPEN is 1 while frames that are due are sent.
RUNS, SENT, NEXT, END, INTERVAL, SLACK, OPEN = range(0, 56, 8)
STRIDE = 64
LIBC = ctypes.CDLL(None, use_errno=True)


def checksum(header):
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xffff) + (total >> 16)
    return ~((total & 0xffff) + (total >> 16)) & 0xffff


def frames(station, own, target):
    """A frame of each flow, to an Ethernet address from another one, and to an IPv4 address."""
    made = []
    for flow in range(FLOWS):
        ends = socket.inet_aton(f"198.18.1.{10 + flow % 200}") + socket.inet_aton(target)
        header = struct.pack("!BBHHHBBH", 0x45, 0, 46, 0, 0x4000, 64, 17, 0) + ends
        header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
        made.append(station + own + bytes([8, 0]) + header + struct.pack("!HHHH", 1024 + flow, 9, 26, 0) + bytes(18))
    return made


def bpf(command, layout, *fields):
    """The system call bpf(2). `fields` are the first ones of its argument; all others are zero."""
    argument = ctypes.create_string_buffer(struct.pack(f"={layout}", *fields), 144)
    number = {"x86_64": 321, "aarch64": 280}[platform.machine()]
    result = LIBC.syscall(number, command, argument, len(argument))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf(2), command {command}: {os.strerror(ctypes.get_errno())}")
    return result


def address(data):
    return ctypes.addressof(data)


class Assembler:
    """Instructions of BPF, with jumps to names. Registers and offsets are numbers."""

    def __init__(self):
        self.steps, self.places = [], {}

    def add(self, code, to=0, source=0, offset=0, value=0):
        self.steps.append((code, to, source, offset, value))

    def here(self, name):
        self.places[name] = len(self.steps)

    def load(self, to, source, offset, size=8):
        self.add({4: 0x61, 8: 0x79}[size], to, source, offset)

    def store(self, to, offset, source, size=8):
        self.add({4: 0x63, 8: 0x7b}[size], to, source, offset)

    def set(self, to, value):
        self.add(0xb7, to, value=value)

    def move(self, to, source):
        self.add(0xbf, to, source)

    def calculate(self, to, sign, value=None, register=0):
        code = {"+": 0x07, "-": 0x17, "*": 0x27, "&": 0x57, "%": 0x97}[sign]
        self.add(code if value is not None else code | 8, to, register, value=value or 0)

    def jump(self, name, left=0, sign=None, value=None, register=0):
        code = {None: 0x05, "==": 0x15, ">": 0x25, ">=": 0x35, "!=": 0x55, "<": 0xa5}[sign]
        self.add(code if value is not None or not sign else code | 8, left, register, name, value or 0)

    def call(self, function):
        self.add(0x85, value=function)

    def code(self):
        made = b""
        for at, (code, to, source, offset, value) in enumerate(self.steps):
            if isinstance(offset, str):
                offset = self.places[offset] - at - 1
            made += struct.pack("<BBhi", code, to | source << 4, offset, value)
        return made


def assemble(table, index):
    """The program for a map and an interface: it writes the next frame and sends it, if it is due."""
    a = Assembler()
    context, values, due, looks = 7, 6, 8, 9
    # What the interface itself receives passes.
    a.load(2, 1, 12, size=4)
    a.set(0, XDP_PASS)
    a.jump("end", 2, "==", index)
    a.move(context, 1)
    a.add(0x18, values, PSEUDO_MAP_VALUE, value=table)
    a.add(0)
    # The first frame of a batch decides for all of it, which is handed over when its last one has been written.
    a.load(1, values, RUNS)
    a.move(2, 1)
    a.calculate(2, "+", 1)
    a.store(values, RUNS, 2)
    a.calculate(1, "&", BATCH - 1)
    a.jump("decided", 1, "!=", 0)
    a.set(1, 0)
    a.store(values, OPEN, 1)
    a.load(due, values, NEXT)
    a.load(1, values, END)
    a.jump("drop", due, ">=", register=1)
    a.set(looks, LOOKS)
    a.here("wait")
    a.call(KTIME_GET_NS)
    a.calculate(looks, "-", 1)
    a.jump("waited", looks, "==", 0)
    a.jump("wait", 0, "<", register=due)
    a.here("waited")
    a.jump("drop", due, ">", register=0)
    a.load(1, values, SLACK)
    a.calculate(1, "+", register=due)
    a.jump("in time", 1, ">", register=0)
    a.move(due, 0)
    a.here("in time")
    a.load(1, values, INTERVAL)
    a.calculate(due, "+", register=1)
    a.store(values, NEXT, due)
    a.set(1, 1)
    a.store(values, OPEN, 1)
    a.here("decided")
    a.load(1, values, OPEN)
    a.jump("drop", 1, "==", 0)
    a.load(3, context, 0, size=4)
    a.load(4, context, 4, size=4)
    a.move(5, 3)
    a.calculate(5, "+", LENGTH)
    a.jump("drop", 5, ">", register=4)
    a.load(1, values, SENT)
    a.move(2, 1)
    a.calculate(2, "+", 1)
    a.store(values, SENT, 2)
    a.calculate(1, "%", FLOWS)
    # Not all kernels know that of a remainder.
    a.jump("drop", 1, ">", FLOWS - 1)
    a.calculate(1, "*", STRIDE)
    a.calculate(values, "+", register=1)
    for at in range(0, LENGTH, 8):
        size = min(8, LENGTH - at)
        a.load(1, values, STRIDE + at, size)
        a.store(3, at, 1, size)
    a.set(1, index)
    a.set(2, 0)
    a.call(REDIRECT)
    a.jump("end")
    a.here("drop")
    a.set(0, XDP_DROP)
    a.here("end")
    a.add(0x95)
    return a.code()


class Sender:
    """The program, loaded for an interface."""

    def __init__(self, dev, station, target):
        index = socket.if_nametoindex(dev)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as here:
            here.bind((dev, 0))
            made = frames(station, here.getsockname()[4], target)
        values = bytes(STRIDE) + b"".join(frame.ljust(STRIDE, b"\0") for frame in made)
        self.values = ctypes.create_string_buffer(values, len(values))
        self.table = bpf(MAP_CREATE, "4I", MAP_TYPE_ARRAY, 4, len(self.values), 1)
        self.key, self.frame = ctypes.create_string_buffer(4), ctypes.create_string_buffer(LENGTH)
        code, licence = assemble(self.table, index), ctypes.create_string_buffer(b"Dual MIT/GPL")
        steps, log = ctypes.create_string_buffer(code), ctypes.create_string_buffer(1 << 16)
        try:
            self.program = bpf(PROG_LOAD, "2I2Q2IQ", PROG_TYPE_XDP, len(code) // 8, address(steps), address(licence),
                               LOG_STATS, len(log), address(log))
        except OSError as error:
            sys.exit(f"{error}\n{log.value.decode()}")
        # The kernel patches its dispatcher and waits for RCU for each run of a program that is attached nowhere.
        bpf(LINK_CREATE, "4I", self.program, index, ATTACH_XDP, XDP_FLAGS_SKB_MODE)

    def send(self, rate, seconds):
        """Sends at a rate, from now on, and returns how many frames it has offered."""
        now = time.monotonic_ns()
        end = now + round(seconds * 1e9)
        interval, slack = round(BATCH * 1e9 / rate), round(max(1e6, 200e9 / rate))
        struct.pack_into("=7Q", self.values, 0, 0, 0, now, end, interval, slack, 0)
        bpf(MAP_UPDATE_ELEM, "I4x3Q", self.table, address(self.key), address(self.values), 0)
        count = BATCH * max(1, round(CALL * rate / BATCH))
        while time.monotonic_ns() < end:
            bpf(PROG_TEST_RUN, "4I2Q4I2Q3I", self.program, 0, LENGTH, 0, address(self.frame), 0, count, 0, 0, 0, 0, 0,
                LIVE_FRAMES, 0, BATCH)
        bpf(MAP_LOOKUP_ELEM, "I4x2Q", self.table, address(self.key), address(self.values))
        return struct.unpack_from("=Q", self.values, SENT)[0]


def taken(dev):
    """Frames that went to the other end, or for which it had no room."""
    total = 0
    for name in ("tx_packets", "tx_dropped"):
        with open(f"/sys/class/net/{dev}/statistics/{name}", encoding="ascii") as file:
            total += int(file.read())
    return total


def main():
    dev, station, target, rate, seconds = sys.argv[1:]
    before = taken(dev)
    sent = Sender(dev, bytes.fromhex(station.replace(":", "")), target).send(float(rate), float(seconds))
    if sent and taken(dev) == before:
        sys.exit(f"{dev}: the other end took no frame; it needs NAPI: ethtool -K PEER gro on")
    print(sent)


if __name__ == "__main__":
    main()
