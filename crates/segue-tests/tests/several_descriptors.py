#!/usr/bin/python3
"""several_descriptors PID COUNT: sends COUNT handover records with four descriptors each over the socket that is the
standard input of an instance's process, as that process could.

Exit: 0 they were sent, 2 this user may not take the socket (the reason is on stderr), 1 anything else.
"""
import array
import ctypes
import os
import socket
import sys

# The same number on every machine of Linux 5.6 and newer.
PIDFD_GETFD = 438
# A record has 24 bytes: `i`, a number of 32 bits, and the name of an interface, whose descriptor comes along.
RECORD = (b"i" + bytes(4) + b"sg9").ljust(24, b"\0")

process = os.pidfd_open(int(sys.argv[1]))
number = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, 0, 0)
if number < 0:
    print("pidfd_getfd: " + os.strerror(ctypes.get_errno()), file=sys.stderr)
    sys.exit(2)
line = socket.socket(fileno=number)
if line.family != socket.AF_UNIX:
    sys.exit("the standard input of the process is no local socket")
null = os.open("/dev/null", os.O_RDONLY)
for _ in range(int(sys.argv[2])):
    rights = array.array("i", [null] * 4)
    line.sendmsg([RECORD], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
