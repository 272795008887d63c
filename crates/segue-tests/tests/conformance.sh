#!/bin/sh
# The guest's side of conformance.rs: its kernel's GRO and GSO are judged by the list, with this machine's loader and
# libraries, which the judges were built with. An emulated processor takes longer between two frames, so polls are
# further apart. Every device that comes up waits for a grace period or two.
echo 1 > /sys/kernel/rcu_expedited
modprobe -a veth vxlan geneve fou fou6 8021q ipip ip_gre ip6_gre sit ip6_tunnel || exit 3
export GRO_JUDGE_PACE_MS=10 GRO_JUDGE_PAIRS=16
run() { /lab/ld-linux-x86-64.so.2 --library-path /lab "$@"; }
run /lab/gro-judge "$@" || exit
# They listen on the ports of the second judge's devices.
for device in vx0 vx1 gn0; do ip link del $device || exit 4; done
{ run /lab/gso-judge || echo failed; } | sed 's/^/gso /'
