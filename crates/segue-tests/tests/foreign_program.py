#!/usr/bin/python3
"""foreign_program INTERFACE: a BPF program named `other` at the tcx ingress hook of an interface, which passes every
packet on; it stays attached until the process ends. Prints `attached`, or fails with the kernel's reason."""
import ctypes
import os
import platform
import signal
import socket
import struct
import sys

SYS_BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]
PROG_LOAD, LINK_CREATE = 5, 28
SCHED_CLS, TCX_INGRESS = 3, 46
# r0 = TCX_NEXT; exit
CODE = bytes.fromhex("b7000000ffffffff" "9500000000000000")

libc = ctypes.CDLL(None, use_errno=True)


def bpf(command, attributes):
    """Calls bpf(2), and returns the descriptor that it makes."""
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    made = libc.syscall(ctypes.c_long(SYS_BPF), ctypes.c_long(command), buffer, ctypes.c_long(128))
    if made < 0:
        sys.exit(f"bpf: {os.strerror(ctypes.get_errno())}")
    return made


code = ctypes.create_string_buffer(CODE, len(CODE))
licence = ctypes.create_string_buffer(b"GPL")
program = bpf(PROG_LOAD, struct.pack("=IIQQIIQII16s", SCHED_CLS, len(CODE) // 8, ctypes.addressof(code),
                                     ctypes.addressof(licence), 0, 0, 0, 0, 0, b"other"))
bpf(LINK_CREATE, struct.pack("=IIII", program, socket.if_nametoindex(sys.argv[1]), TCX_INGRESS, 0))
print("attached", flush=True)
signal.pause()
