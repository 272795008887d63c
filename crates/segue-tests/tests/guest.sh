#!/bin/sh
# The guest's side of guest.rs: a real kernel's tunnels towards a host on which segue runs.
# Tunnel N: outer 198.18.N.2 (or 2001:db8:ffff:N::2), inside 198.19.N.2 and 2001:db8:N::2; the host has ...1.
# Ports on every inner address: 5001 hashes what it gets, 5002 echoes datagrams, 5010 (at the host) takes files.
# What it tells the host is a line with "@ " in front. Ends when a client connects to port 5999, after its own turn.
say() { echo "@ $*"; }
sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 \
    net.ipv6.conf.all.router_solicitations=0 net.ipv6.conf.default.router_solicitations=0 net.ipv4.conf.all.rp_filter=0
modprobe -a fou fou6 ipip ip_gre ip6_gre sit ip6_tunnel vxlan geneve tun sch_ingress cls_bpf
ip link set eth0 up
# With GRO on, a receiving 6.1 kernel loses most bursts of GRE in UDP.
ethtool -K eth0 gro off
ip addr add 198.18.0.2/24 dev eth0
ip fou add port 6080 gue && ip fou add port 5554 ipproto 4 && ip fou add port 5541 ipproto 41 &&
    ip fou add port 5547 ipproto 47 && ip fou add port 6086 gue -6 && ip fou add port 5647 ipproto 47 -6 &&
    ip fou add port 5641 ipproto 41 -6 && ip fou add port 5604 ipproto 4 -6 || exit 3
head -c "$FILE_LEN" /dev/urandom > /tmp/file
say file "$(sha256sum < /tmp/file | cut -d' ' -f1)"

names=
tunnel() { # N OUTER-FAMILY INNER-FAMILIES LINK-ARGUMENTS...
    n=$1 outer=$2 inner=$3; shift 3
    if [ "$outer" = 4 ]; then
        l=198.18.$n.2 r=198.18.$n.1; ip addr add $l/24 dev eth0
    else
        l=2001:db8:ffff:$n::2 r=2001:db8:ffff:$n::1; ip addr add $l/64 dev eth0 nodad
    fi
    # Geneve takes no local address.
    case $* in *geneve*) local= ;; *) local="local $l" ;; esac
    # shellcheck disable=SC2086
    ip link add t$n "$@" $local remote $r && ip link set t$n up || exit 4
    case $inner in *4*) ip addr add 198.19.$n.2/24 dev t$n ;; esac
    case $inner in *6*) ip addr add 2001:db8:$n::2/64 dev t$n nodad ;; esac
    names="$names $n:$inner"
}
tunnels() { # OUTER FIRST LAST: GRE and Ethernet in GRE in turn, told apart by keys, all between the same two addresses
    ip addr add 198.18.$1.2/24 dev eth0
    for n in $(seq "$2" "$3"); do
        if [ $((n % 2)) = 0 ]; then kind=gre; else kind=gretap; fi
        ip link add t$n type $kind ttl 64 key $((n / 2)) local 198.18.$1.2 remote 198.18.$1.1 && ip link set t$n up || exit 4
        ip addr add 198.19.$n.2/24 dev t$n
        names="$names $n:4"
    done
}
owns=
own() { # N INNER-FAMILIES WORDS...: segue at this end; this kernel has no tcx links
    n=$1 inner=$2; shift 2
    addrs="addr 198.19.$n.2/24"
    case $inner in *6*) addrs="$addrs addr 2001:db8:$n::2/64" ;; esac
    # shellcheck disable=SC2086
    /mnt/share/$SEGUE tunnel dev t$n local 198.18.$n.2 remote 198.18.$n.1 "$@" $addrs > /tmp/own$n 2>&1 &
    eval "own$n=$!"
    retry 60 sh -c "grep -q ' is up' /tmp/own$n || ! kill -0 $! 2> /dev/null"
    grep -q ' is up' /tmp/own$n || { cat /tmp/own$n; exit 7; }
}
filters() { tc filter show dev eth0 ingress | grep -c segue_ingress; }
gue="encap gue encap-sport auto encap-dport 6080 encap-csum"
gue0="encap gue encap-sport auto encap-dport 6080"
fou="encap fou encap-sport auto encap-csum encap-dport"
gue6="encap gue encap-sport auto encap-dport 6086"
fou6="encap fou encap-sport auto encap-dport"
tunnel 1 4 4  type ipip ttl 64 $gue
tunnel 2 4 4  type ipip ttl 64 $gue encap-remcsum
tunnel 3 4 4  type ipip ttl 64 $fou 5554
tunnel 4 4 6  type sit ttl 64 $gue
tunnel 5 4 6  type sit ttl 64 $gue encap-remcsum
tunnel 6 4 6  type sit ttl 64 $fou 5541
tunnel 7 4 46 type gre ttl 64 $gue
tunnel 8 4 46 type gre ttl 64 $gue encap-remcsum
tunnel 9 4 46 type gre ttl 64 $fou 5547
tunnel 10 4 46 type gre ttl 64 key 12345 csum $gue encap-remcsum
tunnel 11 6 46 type ip6gre hoplimit 64 encaplimit none $gue6 encap-remcsum
tunnel 12 6 46 type ip6tnl mode any hoplimit 64 encaplimit none $gue6
tunnel 13 4 4  type ipip ttl 64
tunnel 14 4 6  type sit ttl 64
tunnel 15 4 46 type gre ttl 64
tunnel 16 4 46 type gre ttl 64 key 12345 csum
tunnel 17 4 46 type gretap ttl 64
tunnel 18 6 46 type ip6gre hoplimit 64 encaplimit none
tunnel 19 6 46 type ip6tnl mode any hoplimit 64 encaplimit none
tunnel 20 4 46 type gretap ttl 64 $gue encap-remcsum
tunnel 21 4 46 type vxlan id 42 dev eth0 dstport 4789 udpcsum
tunnel 22 4 46 type vxlan id 42 dev eth0 dstport 4790 udpcsum remcsumtx remcsumrx
tunnel 23 6 46 type vxlan id 43 dev eth0 dstport 4791 udp6zerocsumtx udp6zerocsumrx
tunnel 24 4 46 type geneve id 42 dstport 6081 udpcsum
tunnel 25 4 46 type gre ttl 64 key 12345 csum $gue
tunnel 26 4 46 type gre ttl 64 key 12345 csum $fou 5547
tunnel 27 4 46 type gretap ttl 64 $gue
tunnel 28 4 46 type gretap ttl 64 $fou 5547
tunnel 29 6 46 type ip6gre hoplimit 64 encaplimit none $gue6
tunnel 30 6 46 type ip6gre hoplimit 64 encaplimit none $fou6 5647
tunnel 31 6 46 type ip6tnl mode any hoplimit 64 encaplimit none $gue6 encap-remcsum
tunnel 32 6 6  type ip6tnl mode ip6ip6 hoplimit 64 encaplimit none $fou6 5641
tunnel 33 6 4  type ip6tnl mode ipip6 hoplimit 64 encaplimit none $fou6 5604
tunnel 34 4 46 type gre ttl 64 $gue0
tunnel 35 4 4  type ipip ttl 64 encap fou encap-sport auto encap-dport 5554
tunnel 36 4 46 type gre ttl 64
tunnel 37 4 46 type vxlan id 44 dev eth0 dstport 4792 noudpcsum
tunnel 38 4 46 type geneve id 44 dstport 6082 noudpcsum
if [ -n "$SEGUE" ]; then
    for n in 51 52 53 54 55 56; do ip addr add 198.18.$n.2/24 dev eth0; done
    own 51 4 mode ipip fastpath require
    own 52 46 mode vxlan id 45 dstport 4793 noudpcsum fastpath require
    owns="51:4 52:46"
    names="$names $owns"
    # What these get is wrong; without IPv6 they send nothing by themselves.
    sysctl -qw net.ipv6.conf.default.disable_ipv6=1
    own 53 4 mode vxlan id 42 dstport 4794 noudpcsum fastpath require
    own 54 4 mode vxlan id 42 dstport 4795 noudpcsum fastpath off
    own 55 4 mode gre encap gue encap-dport 6090 noencap-csum fastpath require
    own 56 4 mode gre encap gue encap-dport 6090 noencap-csum fastpath off
    sysctl -qw net.ipv6.conf.default.disable_ipv6=0
fi
tunnels 40 41 48

socat TCP6-LISTEN:5001,ipv6only=0,fork,reuseaddr,backlog=8 SYSTEM:sha256sum &
# One process a peer; one for each datagram would be slow.
socat -T 10 -b 65536 UDP6-LISTEN:5002,ipv6only=0,fork,reuseaddr PIPE &
retry 20 sh -c 'ss -Htln | grep -q :5001 && ss -Huln | grep -q :5002' || exit 6
say ready
timeout 100 socat -u TCP4-LISTEN:5999,reuseaddr - > /dev/null || exit 5

bad=0
for t in $names; do
    n=${t%%:*} inner=${t#*:}
    for f in 4 6; do
        case $inner in *$f*) ;; *) continue ;; esac
        if [ $f = 4 ]; then to=198.19.$n.1 s=$to; else to=2001:db8:$n::1 s="[$to]"; fi
        res=
        for size in 56 777 2500; do
            # Nothing answers for a packet that an emulated card has lost; what segue drops is counted.
            retry 3 ping -c1 -W5 -s $size $to > /dev/null 2>&1 || res="$res ping$size"
        done
        timeout 30 socat -u OPEN:/tmp/file,rdonly TCP$f:$s:5010 || res="$res tcp"
        [ -z "$res" ] || bad=1
        say "client $n $f${res:- ok}"
    done
done
if [ -n "$owns" ]; then
    for n in 51 52 53 54 55 56; do say "stat $n $(/mnt/share/$SEGUE stat t$n -j | tr -d '\n')"; done
    # What a killed one leaves passes everything on, and the next one removes it.
    say filters before "$(filters)"
    kill -9 $own51
    retry 20 sh -c '! ip link show t51 2> /dev/null' || exit 8
    ping -c1 -W5 198.18.51.1 > /dev/null || exit 8
    say filters killed "$(filters)"
    own 51 4 mode ipip fastpath require
    retry 20 ping -c1 -W5 198.19.51.1 > /dev/null || exit 8
    say filters again "$(filters)"
fi
nstat -az | while read -r name value _; do
    case $name in *Csum*|*InErr*) say "counter $name $value" ;; esac
done
for dev in /sys/class/net/t[0-9]* /sys/class/net/eth0; do
    say "counter ${dev##*/}.rx_errors $(cat "$dev/statistics/rx_errors")"
done
say end
exit $bad
