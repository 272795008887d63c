#!/usr/bin/python3
"""without_tcx PROGRAM [ARGUMENT]...: runs a program that gets EINVAL for BPF_LINK_CREATE, as before Linux 6.6."""
import errno
import os
import sys

import seccomp

BPF_LINK_CREATE = 28

rules = seccomp.SyscallFilter(defaction=seccomp.ALLOW)
rules.set_attr(seccomp.Attr.CTL_NNP, 0)
rules.add_rule(seccomp.ERRNO(errno.EINVAL), "bpf", seccomp.Arg(0, seccomp.EQ, BPF_LINK_CREATE))
rules.load()
os.execv(sys.argv[1], sys.argv[1:])
