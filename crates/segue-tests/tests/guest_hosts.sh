#!/bin/sh
# The guest of guest_hosts.rs: by its first interface it is on the link of a host, by the second one it reaches that
# host through a NAT, by the third one through a tunnel. A file goes to port 5001 of each address, whose answer is its
# hash, and another one comes from port 5003, of which port 5004 has the hash. What it tells is a line with "@ " in
# front.
say() { echo "@ $*"; }
sysctl -qw net.ipv6.conf.all.disable_ipv6=1
ip link set eth0 up
ip addr add 198.18.1.1/24 dev eth0
ip link set eth1 up
ip addr add 198.18.5.2/24 dev eth1
ip route add 198.18.2.0/24 via 198.18.5.1
ip link set eth2 mtu 1450 up
ip addr add 198.18.4.1/24 dev eth2
head -c "$FILE_LEN" /dev/urandom > /tmp/file
own=$(sha256sum < /tmp/file | cut -d' ' -f1)
for peer in 198.18.1.2 198.18.2.2 198.18.4.2; do
    tries=0
    until ping -c 1 -W 1 $peer >/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || { say "$peer does not answer"; exit 5; }
    done
    ping -c 3 -i 0.2 -W 60 -s 1400 $peer >/dev/null || { say "ping $peer"; exit 6; }
    got=$(socat -t 300 - TCP:$peer:5001 < /tmp/file | cut -d' ' -f1)
    [ "$got" = "$own" ] || { say "out $peer $got $own"; exit 7; }
    want=$(socat -u TCP:$peer:5004 -)
    got=$(socat -u TCP:$peer:5003 - | sha256sum | cut -d' ' -f1)
    [ "$got" = "$want" ] || { say "in $peer $got $want"; exit 8; }
    say "done $peer"
done
