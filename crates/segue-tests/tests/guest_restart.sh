#!/bin/sh
# The guest of guest_restart.rs, 198.18.0.5: it says that it is ready, echoes datagrams at port 5002, starts again
# after one at port 5003, and sends datagrams to 198.18.0.4 until it is stopped.
# What it tells is a line with "@ " in front.
say() { echo "@ $*"; }
sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 \
    net.ipv6.conf.all.router_solicitations=0 net.ipv6.conf.default.router_solicitations=0
socat -T 20 UDP6-LISTEN:5002,ipv6only=0,fork,reuseaddr PIPE &
socat -u UDP6-RECVFROM:5003,ipv6only=0 SYSTEM:'reboot -f' &
ip link set eth0 address 02:00:00:00:00:05
ip link set eth0 up
ip addr add 198.18.0.5/24 dev eth0
for station in 3 4; do
    ip neigh replace "198.18.0.$station" lladdr "02:00:00:00:00:0$station" dev eth0 nud permanent
done
say ready
while :; do
    socat -u -b 1400 /dev/zero UDP4-SENDTO:198.18.0.4:9 || sleep 0.1
done
