#!/bin/sh
# A guest's side of guest_pair.rs: two guests, LOCAL and REMOTE (the last part of their addresses), on one Ethernet
# between vhost-user ports. Both hash what comes to port 5001, send a file TIMES times from port 5003, and echo
# datagrams at port 5002. The guest with TURN=1 does the asking and ends with a status; the other one waits until it is
# stopped. What it tells is a line with "@ " in front.
say() { echo "@ $*"; }
sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 \
    net.ipv6.conf.all.router_solicitations=0 net.ipv6.conf.default.router_solicitations=0
ip link set eth0 up
ip addr add "198.18.0.$LOCAL/24" dev eth0
ip addr add "2001:db8::$LOCAL/64" dev eth0 nodad
head -c "$FILE_LEN" /dev/urandom > /tmp/file
files=/tmp/file
while [ "$TIMES" -gt 1 ]; do
    files="$files /tmp/file"
    TIMES=$((TIMES - 1))
done
own=$(cat $files | sha256sum | cut -d' ' -f1)
socat TCP6-LISTEN:5001,ipv6only=0,fork,reuseaddr,backlog=8 SYSTEM:'sha256sum' &
socat TCP6-LISTEN:5003,ipv6only=0,fork,reuseaddr,backlog=8 SYSTEM:"cat $files" &
socat TCP6-LISTEN:5004,ipv6only=0,fork,reuseaddr,backlog=8 SYSTEM:"echo $own" &
socat -T 20 -b 65536 UDP6-LISTEN:5002,ipv6only=0,fork,reuseaddr PIPE &
say ready
[ "$TURN" = 1 ] || { while :; do sleep 1000; done; }

tries=0
until ping -c 1 -W 1 "198.18.0.$REMOTE" >/dev/null && socat -u /dev/null "TCP:198.18.0.$REMOTE:5004"; do
    tries=$((tries + 1))
    [ $tries -lt 500 ] || { say "the other guest does not answer"; exit 5; }
    sleep 0.2
done
for peer in "198.18.0.$REMOTE" "[2001:db8::$REMOTE]"; do
    plain=${peer#[} plain=${plain%]}
    ping -c 3 -i 0.2 -W 60 -s 56 "$plain" >/dev/null || { say "ping $plain"; exit 6; }
    # Out: the other guest's hash of this guest's file.
    got=$(cat $files | socat -t 300 - "TCP:$peer:5001" | cut -d' ' -f1)
    [ "$got" = "$own" ] || { say "out $plain $got $own"; exit 7; }
    # In: this guest's hash of the other guest's file.
    want=$(socat -u "TCP:$peer:5004" -)
    got=$(socat -u "TCP:$peer:5003" - | sha256sum | cut -d' ' -f1)
    [ "$got" = "$want" ] || { say "in $plain $got $want"; exit 8; }
    for len in 1 100 1472 1473 9000 60000; do
        head -c $len /tmp/file > /tmp/datagram
        # Datagrams may be lost, bytes may not change.
        for _ in 1 2 3 4 5 6 7 8; do
            socat -T 20 -t 5 -b 65536 "UDP:$peer:5002" SYSTEM:'cat /tmp/datagram; timeout 9 head -c '$len' > /tmp/echo' || true
            cmp -s /tmp/datagram /tmp/echo && break
        done
        cmp -s /tmp/datagram /tmp/echo || { say "datagram of $len bytes, $plain"; exit 9; }
    done
    say "done $plain"
done
