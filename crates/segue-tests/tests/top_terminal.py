"""Runs `segue top` on a pseudo-terminal, presses keys, and waits for text on the screen. Arguments: the program.

Prints what is missing and ends with 1 where something is.
"""
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time

PATIENCE = 60.0
CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>78]")
# Keys, and words that the screen has then. Only what changes is drawn, so each is a word that was not there before.
STEPS = [
    ("", ["NAME", "blue", "red", "NOT", "WELL", "details"]),
    ("\r", ["underlay", "problem:", "fix:"]),
    ("\r?", ["PageDown"]),
    ("?/red\r", ["filter"]),
    ("p", ["PAUSED"]),
]


def main():
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 110, 0, 0))
    before = termios.tcgetattr(slave)
    environment = dict(os.environ, TERM="xterm", LANG="C.UTF-8", NO_COLOR="1")

    def own_terminal():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    program = subprocess.Popen(
        [sys.argv[1], "top"], stdin=slave, stdout=slave, stderr=slave, env=environment, preexec_fn=own_terminal
    )
    everything = b""

    def read(wanted, until):
        nonlocal everything
        seen = b""
        while time.monotonic() < until:
            if select.select([master], [], [], 0.2)[0]:
                try:
                    part = os.read(master, 65536)
                except OSError:
                    break
                seen, everything = seen + part, everything + part
            plain = CONTROL.sub(b"", seen).decode("utf-8", "replace")
            missing = [word for word in wanted if word not in plain]
            if not missing:
                return
            if program.poll() is not None:
                break
        sys.exit(f"missing {wanted} in {CONTROL.sub(b'|', seen)!r}, status {program.poll()}")

    for keys, words in STEPS:
        for key in keys:
            os.write(master, key.encode())
            # A lone key is read as one; two in one read could be a sequence.
            time.sleep(0.05)
        read(words, time.monotonic() + PATIENCE)
    os.write(master, b"q")
    until = time.monotonic() + PATIENCE
    while program.poll() is None and time.monotonic() < until:
        if select.select([master], [], [], 0.1)[0]:
            everything += os.read(master, 65536)
    while select.select([master], [], [], 0.1)[0]:
        everything += os.read(master, 65536)
    if program.poll() != 0:
        sys.exit(f"status {program.poll()}")
    if termios.tcgetattr(slave) != before:
        sys.exit("the terminal is not as it was")
    if b"\x1b[?1049h" not in everything or not everything.rstrip().endswith((b"\x1b[?1049l", b"\x1b[?25h")):
        sys.exit(f"the screen is not given back: {everything[-80:]!r}")
    if re.search(rb"\x1b\[(3[0-7]|9[0-7]|4[0-7]|38;)", everything):
        sys.exit("colours in spite of NO_COLOR")


main()
