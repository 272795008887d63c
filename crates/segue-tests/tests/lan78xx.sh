#!/bin/sh
# The guest's side of lan78xx.rs: the kernel's own lan78xx driver on models that the host serves by USB/IP.
# Model N answers on port 3240+N; its cable ends in a bridge of the host, 198.18.10N.1 and 2001:db8:10N::1, and so does
# eth1 here, which is kept apart in a namespace and has VLAN 100, 198.18.11N.1 (not every host's kernel has VLANs).
# Ports at the host: 5010 takes a file, 5011 gives one; in the namespace: 5010 hashes, 5011 gives the file; here 5002
# echoes datagrams.
# What it tells the host is a line with "@ " in front; "@ N please WORDS" asks for something, for a command to model N
# for the most part, and the host connects to port 5999 here once it has done it.
# The kernel's log has it too, so that a complaint there has a place in the test.
WAIT=60 # seconds for what takes one: a busy machine may leave this guest no time for several
say() { echo "<7>test: $*" > /dev/kmsg; echo "@ $*"; }
try() { # NAME COMMAND...: says whether it worked
    name=$1; shift
    if "$@" > /tmp/try 2>&1; then say "$name ok"; else say "$name failed: $(tail -n3 /tmp/try | tr '\n' ' ')"; fi
}
ask() { # N WORDS...: asks the host for something, and waits until it was done
    asked=$1; shift
    say "$asked please $*"
    timeout 300 socat -u TCP4-LISTEN:5999,reuseaddr - > /dev/null || { say "$asked no answer to $*"; return 1; }
}
dmesg -n 1
echo on > /proc/sys/kernel/printk_devkmsg
sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
modprobe -a vhci-hcd lan78xx microchip 8021q tun || exit 3
ip link set eth0 up && ip addr add 198.18.0.2/24 dev eth0 || exit 4
head -c "$FILE_LEN" /dev/urandom > /tmp/file
ip netns add peer && ip link set eth1 netns peer || exit 6
peer() { ip netns exec peer "$@"; }
peer ip link set eth1 up
peer ip link add link eth1 name v100 type vlan id 100 && peer ip link set v100 up || exit 7
# By itself socat waits half a second for the digest.
peer socat -t "$WAIT" TCP4-LISTEN:5010,fork,reuseaddr SYSTEM:sha256sum &
peer socat -U TCP4-LISTEN:5011,fork,reuseaddr OPEN:/tmp/file,rdonly &
sum=$(sha256sum < /tmp/file | cut -d' ' -f1)
say file "$sum"
socat -b 65536 UDP6-RECVFROM:5002,ipv6only=0,fork PIPE &
retry "$WAIT" sh -c 'ss -Huln | grep -q :5002' || exit 5
dmesg -c > /dev/null

# For retry, which runs programs only.
printf '#!/bin/sh\ntest "$(cat "/sys/class/net/$1/carrier" 2>/dev/null)" = "$2"\n' > /bin/carrier
chmod +x /bin/carrier
# find_dev N: sets dev to the interface of model N, by the last byte of its Ethernet address.
find_dev() { dev=$(grep -l "02:78:00:00:00:0$1" /sys/class/net/*/address 2>/dev/null | grep -v '\.100' | head -n1); dev=${dev%/address}; dev=${dev##*/}; test -n "$dev"; }
wait_dev() { # N
    end=$(($(cut -d. -f1 /proc/uptime) + WAIT))
    until find_dev "$1"; do
        [ "$(cut -d. -f1 /proc/uptime)" -lt "$end" ] || { say "$1 no interface"; return 1; }
        sleep 0.1
    done
}
attach() { # N
    retry "$WAIT" usbip --tcp-port $((3240 + $1)) attach -r 198.18.0.1 -b 1-1 > /tmp/try 2>&1 || { say "$1 attach failed"; return 1; }
    wait_dev "$1" && configure "$1"
}
configure() { # N
    ip link set "$dev" up
    ip addr add "198.18.10$1.2/24" dev "$dev"; ip addr add "2001:db8:10$1::2/64" dev "$dev" nodad
    retry "$WAIT" carrier "$dev" 1 || say "$1 no carrier"
}
detach() { # whatever is attached
    usbip detach -p "$(usbip port 2> /dev/null | sed -n 's/^Port \([0-9]*\):.*/\1/p')" > /tmp/try 2>&1
    retry "$WAIT" sh -c "! test -e /sys/class/net/$dev"
}
multicast() { # N: what was joined arrives, and what was not is filtered
    timeout 300 socat -u "UDP4-RECV:5003,ip-add-membership=239.1.2.3:$dev" - > /tmp/multicast &
    member=$!
    retry "$WAIT" sh -c "ip maddr show dev $dev | grep -q 239.1.2.3"
    ask "$1" multicast && retry "$WAIT" grep -qx joined /tmp/multicast && ask "$1" filtered
    arrived=$?
    kill $member; wait $member
    return $arrived
}
# A neighbour that does not answer for three seconds is given up with all that waits for it, hence the repetitions.
echoed() { retry "$WAIT" ping -c2 -i0.2 -W10 -s "$1" "$2"; } # SIZE ADDRESS
pings() { # N SIZE: both families
    echoed "$2" "198.18.10$1.1" && echoed "$2" "2001:db8:10$1::1"
}
# Ends when the host has taken all and closed.
send() { timeout 300 socat -t "$WAIT" - "$1" < /tmp/file; }
fetch() { # NAME ADDRESS
    say "$1 got $(timeout 300 socat -u "$2" - | sha256sum | cut -d' ' -f1)"
}

for n in $MODELS; do
    ask "$n" trace
    attach "$n" || continue
    say "$n link $(ethtool "$dev" | sed -n 's/^\s*\(Speed\|Duplex\): //p' | tr '\n' ' ')"
    try "$n ping56" pings "$n" 56
    try "$n ping1400" pings "$n" 1400
    try "$n send4" send "TCP4:198.18.10$n.1:5010"
    try "$n send6" send "TCP6:[2001:db8:10$n::1]:5010"
    fetch "$n get4" "TCP4:198.18.10$n.1:5011"
    fetch "$n get6" "TCP6:[2001:db8:10$n::1]:5011"
    ask "$n" udp
    peer ip addr add "198.18.11$n.1/24" dev v100
    ip link add link "$dev" name "$dev.100" type vlan id 100
    ip link set "$dev.100" up; ip addr add "198.18.11$n.2/24" dev "$dev.100"
    try "$n vlan-ping" echoed 1400 "198.18.11$n.1"
    try "$n vlan-send" test "$(timeout 300 socat -t "$WAIT" - "TCP4:198.18.11$n.1:5010" < /tmp/file | cut -c1-64)" = "$sum"
    try "$n vlan-get" test "$(timeout 300 socat -u "TCP4:198.18.11$n.1:5011" - | sha256sum | cut -c1-64)" = "$sum"
    ip link del "$dev.100"
    ask "$n" mtu 9000
    try "$n mtu" ip link set "$dev" mtu 9000
    try "$n ping8972" pings "$n" 8972
    try "$n jumbo-send" send "TCP4:198.18.10$n.1:5010"
    # Not by try: it says something to the host.
    multicast "$n" && say "$n multicast ok" || say "$n multicast failed"
    try "$n promisc" sh -c "ip link set $dev promisc on && ip link set $dev promisc off"
    for _ in $(seq "$CYCLES"); do
        ip link set "$dev" down; ip link set "$dev" up
        ip addr add "2001:db8:10$n::2/64" dev "$dev" nodad
        retry "$WAIT" carrier "$dev" 1 || say "$n no carrier after up"
    done
    try "$n ping-after-up" pings "$n" 56
    ask "$n" link down
    try "$n carrier-off" retry "$WAIT" carrier "$dev" 0
    ask "$n" link up 100
    try "$n carrier-on" retry "$WAIT" carrier "$dev" 1
    say "$n slow $(ethtool "$dev" | sed -n 's/^\s*Speed: //p')"
    try "$n ping-slow" pings "$n" 1400
    for name in "RX FCS Errors" "RX Dropped Frames" "TX FCS Errors"; do
        say "$n counter $name $(ethtool -S "$dev" | sed -n "s/^ *$name: //p")"
    done
    say "$n counter rx_errors $(cat "/sys/class/net/$dev/statistics/rx_errors")"
    ask "$n" trace
    for _ in $(seq "$CYCLES"); do
        say "$n detach"
        detach && say "$n detached" || say "$n no end after detach"
        attach "$n"
    done
    try "$n ping-after-attach" pings "$n" 56
    try "$n module-removed" modprobe -r lan78xx
    try "$n gone-with-module" retry "$WAIT" sh -c "! test -e /sys/class/net/$dev"
    modprobe lan78xx
    wait_dev "$n" && configure "$n"
    try "$n ping-after-module" pings "$n" 56
    ask "$n" unplug
    try "$n gone" retry "$WAIT" sh -c "! test -e /sys/class/net/$dev"
done

# The same adapter without the kernel's driver: segue takes it from there, and gives it back at its end.
if attach 2; then
    ip link set "$dev" down; ip addr flush dev "$dev"
    for mode in napi standard; do
        ask 2 trace
        "/lab/$PROGRAM" lan78xx up --dev lan0 --mode $mode 2> /tmp/segue.log &
        pid=$!
        retry "$WAIT" carrier lan0 1 || say "2 no carrier of lan0: $(cat /tmp/segue.log)"
        ip addr add 198.18.102.2/24 dev lan0; ip addr add 2001:db8:102::2/64 dev lan0 nodad
        try "2 $mode ping56" pings 2 56
        try "2 $mode ping1400" pings 2 1400
        try "2 $mode send4" send TCP4:198.18.102.1:5010
        try "2 $mode send6" send "TCP6:[2001:db8:102::1]:5010"
        fetch "2 $mode get4" TCP4:198.18.102.1:5011
        ask 2 udp
        ask 2 trace
        # It goes and comes back, and the kernel's driver has it first.
        ask 2 unplug
        try "2 $mode carrier-off" retry "$WAIT" carrier lan0 0
        ask 2 plug
        retry "$WAIT" usbip --tcp-port 3242 attach -r 198.18.0.1 -b 1-1 > /tmp/try 2>&1 || say "2 $mode attach failed again"
        try "2 $mode comes-back" retry "$WAIT" carrier lan0 1
        try "2 $mode ping-after" pings 2 1400
        kill $pid; wait $pid; say "2 $mode exit $?"
        try "2 $mode driver-back" retry "$WAIT" sh -c "grep -q 02:78:00:00:00:02 /sys/class/net/*/address"
    done
    ask 2 unplug
    try "2 gone" retry "$WAIT" sh -c "! grep -q 02:78:00:00:00:02 /sys/class/net/*/address"
fi
dmesg -c > /tmp/log
# The tables of an adapter that is gone can be neither read nor cleared, and the kernel says so, also where its driver
# was reading counters when the adapter went and has not been told yet.
awk '/test: /{sub(/.*test: /, ""); gsub(/fail|please/, "-"); last = $0; next} {print $0 " (after: " last ")"}' /tmp/log |
    grep -v 'failed to kill vid 0081/0' | grep -vE '\(unregistered\): Failed to (read|write) (register|stat)' |
    grep -vE 'Failed to (read|write) (register|stat).*\(after: [0-9] (- unplug|detach)\)' |
    grep -iE 'csum|checksum fail|WARNING|BUG:|Oops|call trace|kevent .* dropped|unexpected|failed to|timed out' | while read -r line; do
    say "complaint $line"
done
nstat -az | while read -r name value _; do
    case $name in *Csum*|*InErr*) say "counter $name $value" ;; esac
done

# Chips that are wrong: the kernel must notice, or what was seen above means nothing.
attach 8 && retry "$WAIT" sh -c 'ping -c2 -W2 198.18.108.1 > /dev/null 2>&1; dmesg | grep -q "hw csum failure"'
say "8 complaints $(dmesg | grep -c 'hw csum failure')"
attach 9
if ping -c2 -W2 198.18.109.1 > /dev/null 2>&1; then say "9 ping ok"; else say "9 ping failed"; fi
say end
exit 0
