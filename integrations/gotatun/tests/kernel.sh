#!/bin/sh
# The guest's side of kernel.rs: the kernel's WireGuard towards a host on which gotatun runs on segue.
# Tunnel N: UDP port 51820 + N, inside 198.19.N.2 and 2001:db8:N::2; the host has ...1.
# Port 5001 on every inner address hashes what it gets; port 5010 of the host takes files.
# What it tells the host is a line with "@ " in front. Its own turn begins when a client connects to port 5999.
say() { echo "@ $*"; }
sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 \
    net.ipv6.conf.all.router_solicitations=0 net.ipv6.conf.default.router_solicitations=0
modprobe wireguard || exit 3
ip link set eth0 up
ip addr add 198.18.0.2/24 dev eth0
head -c "$FILE_LEN" /dev/urandom > /tmp/file
say file "$(sha256sum < /tmp/file | cut -d' ' -f1)"
echo "$SECRET" > /tmp/secret
for n in 1 2; do
    port=$((51820 + n))
    ip link add wg$n type wireguard &&
        wg set wg$n listen-port $port private-key /tmp/secret \
            peer "$PUBLIC" allowed-ips 0.0.0.0/0,::/0 endpoint 198.18.0.1:$port &&
        ip link set wg$n up mtu 1420 || exit 4
    ip addr add 198.19.$n.2/24 dev wg$n
    ip addr add 2001:db8:$n::2/64 dev wg$n nodad
done
socat TCP6-LISTEN:5001,ipv6only=0,fork,reuseaddr,backlog=8 SYSTEM:sha256sum &
retry 20 sh -c 'ss -Htln | grep -q :5001' || exit 6
say ready
timeout 300 socat -u TCP4-LISTEN:5999,reuseaddr - > /dev/null || exit 5

bad=0
for n in 1 2; do
    for f in 4 6; do
        if [ $f = 4 ]; then to=198.19.$n.1 s=$to; else to=2001:db8:$n::1 s="[$to]"; fi
        res=
        for size in 56 777 2500; do
            ping -c1 -W5 -s $size $to > /dev/null 2>&1 || res="$res ping$size"
        done
        timeout 60 socat -u OPEN:/tmp/file,rdonly TCP$f:"$s":5010 || res="$res tcp"
        [ -z "$res" ] || bad=1
        say "client $n $f${res:- ok}"
    done
    # Bytes received and sent, as the kernel counts them.
    say transfer "$n" "$(wg show wg$n transfer | cut -f2-)"
done
say end
exit $bad
