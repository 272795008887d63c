"""Makes this host a node of flannel's VXLAN: python3 fleet_node.py OWN_ADDRESS SUBNET MAC.

Puts the lease of this host, sets a device up as flanneld does, and follows the leases of the others: a route, a
neighbour and an entry of the forwarding table for each, until it is killed. etcdctl finds etcd by its environment.
"""
import json
import subprocess
import sys
import time

own, subnet, mac = sys.argv[1:]
prefix = "/coreos.com/network/subnets/"
known = {}


def run(line):
    subprocess.run(line.split(), check=True)


def ctl(*words):
    patient = ["--command-timeout=60s", "--dial-timeout=60s"]
    return subprocess.run(["etcdctl", *patient, *words], check=True, stdout=subprocess.PIPE, text=True).stdout


base = subnet.split("/")[0]
value = {"PublicIP": own, "PublicIPv6": None, "BackendType": "vxlan", "BackendData": {"VNI": 1, "VtepMAC": mac}}
ctl("put", prefix + subnet.replace("/", "-"), "--", json.dumps(value, separators=(",", ":")))
run(f"ip link add flannel.1 address {mac} type vxlan id 1 dstport 8472 local {own} nolearning udpcsum")
run("ip link set flannel.1 mtu 1450 up")
run(f"ip address add {base}/32 dev flannel.1")
print("up", flush=True)
while True:
    time.sleep(0.2)
    lines = ctl("get", "--prefix", prefix).splitlines()
    now = {}
    for key, text in zip(lines[::2], lines[1::2]):
        try:
            lease = json.loads(text)
            now[key[len(prefix):].replace("-", "/")] = (lease["PublicIP"], lease["BackendData"]["VtepMAC"])
        except (ValueError, KeyError, TypeError):
            continue
    now = {net: peer for net, peer in now.items() if peer[0] != own and net.startswith("198.19.") and net.endswith(".0/24")}
    for net, (address, vtep) in now.items():
        if known.get(net) != (address, vtep) and len(vtep) == 17:
            gateway = net.split("/")[0]
            run(f"ip neigh replace {gateway} lladdr {vtep} dev flannel.1 nud permanent")
            run(f"bridge fdb replace {vtep} dst {address} dev flannel.1 self permanent")
            run(f"ip route replace {net} via {gateway} dev flannel.1 onlink src {base}")
    for net in known.keys() - now.keys():
        run(f"ip route del {net} dev flannel.1")
    known = now
