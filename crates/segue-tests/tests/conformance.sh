#!/bin/sh
# The guest's side of conformance.rs: its kernel's GRO is judged by the list, with this machine's loader and libraries, which the
# judge was built with. An emulated processor takes longer between two frames, so polls are further apart.
# Every device that comes up waits for a grace period or two.
echo 1 > /sys/kernel/rcu_expedited
modprobe -a veth vxlan geneve fou fou6 8021q || exit 3
export GRO_JUDGE_PACE_MS=10 GRO_JUDGE_PAIRS=16
exec /lab/ld-linux-x86-64.so.2 --library-path /lab /lab/gro-judge "$@"
