"""Shared parts of the measurements of a fleet: hosts in network namespaces, etcd, and tunnels with an agent."""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from measured import SEGUE

PATIENCE = 60
ETCD = "http://198.18.0.1:2379"


def until(what, holds, pause=0.05):
    """Waits until `holds` returns something true, and returns it."""
    end = time.monotonic() + PATIENCE
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > end:
            sys.exit(f"not within {PATIENCE} s: {what}")
        time.sleep(pause)


class Hosts:
    """Network namespaces and the programs in them; all of it goes at the end of the `with`."""

    def __enter__(self):
        self.top = f"segue-figures-{os.getpid()}"
        self.folder = tempfile.mkdtemp()
        os.chmod(self.folder, 0o755)
        self.names, self.running = [], []
        return self

    def __exit__(self, failure, *_):
        for name in self.names if failure else ():
            if os.path.exists(f"{self.folder}/{name}.log"):
                print(f"{name}: ... {self.log(name)[-2000:]}", file=sys.stderr)
        for process in reversed(self.running):
            process.terminate()
        for process in reversed(self.running):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", f"{self.top}-{name}"], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def host(self, name):
        self.names.append(name)
        subprocess.run(["ip", "netns", "add", f"{self.top}-{name}"], check=True)
        os.mkdir(f"{self.folder}/{name}")
        self.ip(name, "link set lo up")
        self.run(name, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")
        return name

    def ip(self, name, line):
        subprocess.run(["ip", "-n", f"{self.top}-{name}", *line.split()], check=True)

    def nic(self, one, other):
        """Joins two hosts by a link as `segue lab` has it under the name nic: 198.18.0.1 and 198.18.0.2."""
        self.ip(one, f"link add eth0 type veth peer name eth0 netns {self.top}-{other}")
        for at, name in enumerate((one, other), 1):
            self.run(name, "ethtool", "-K", "eth0", "tso", "off", "gso", "off", "tx", "off", "gro", "on")
            self.ip(name, f"addr add 198.18.0.{at}/24 dev eth0")
            self.ip(name, "link set eth0 up")

    def words(self, name, *words):
        return ["env", f"SEGUE_RUNTIME_DIR={self.folder}/{name}", "ip", "netns", "exec", f"{self.top}-{name}", *words]

    def run(self, name, *words, text=None):
        """Runs a command to its end and returns what it printed."""
        done = subprocess.run(self.words(name, *words), input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False)
        if done.returncode:
            sys.exit(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr}")
        return done.stdout

    def start(self, name, *words):
        with open(f"{self.folder}/{name}.log", "ab") as log:
            process = subprocess.Popen(self.words(name, *words), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.running.append(process)
        return process

    def end(self, process):
        process.terminate()
        process.wait(PATIENCE)
        self.running.remove(process)

    def log(self, name):
        with open(f"{self.folder}/{name}.log", encoding="utf-8", errors="replace") as file:
            return file.read()

    def stat(self, name, device):
        """Returns the state of a tunnel from its control socket; None where it does not answer."""
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(PATIENCE)
                line.connect(f"{self.folder}/{name}/{device}.sock")
                line.sendall(b'{"get":"stat"}\n')
                text = b"".join(iter(lambda: line.recv(1 << 20), b""))
            return json.loads(text)["instance"]
        except (OSError, ValueError, KeyError):
            return None

    def agent_state(self, name, device):
        try:
            with open(f"{self.folder}/{name}/{device}.fleet.json", encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return {}

    def etcd(self, name, config):
        """Starts etcd at 198.18.0.1 with this configuration of the network."""
        self.start(name, "etcd", "--listen-client-urls", ETCD, "--advertise-client-urls", ETCD, "--data-dir",
                   f"{self.folder}/etcd", "--log-level", "error")
        until("etcd is up", lambda: self.put(name, {"config": config}))

    def put(self, name, values):
        """Sets keys below the registry; whether etcd took them."""
        items, program = list(values.items()), PUT
        text = json.dumps([items[at:at + 128] for at in range(0, len(items), 128)])
        done = subprocess.run(self.words(name, sys.executable, "-c", program), input=text, text=True, check=False,
                              stderr=subprocess.DEVNULL)
        return done.returncode == 0

    def tunnel(self, name, device, words):
        """Starts a tunnel with an empty table, and waits until it answers."""
        self.start(name, SEGUE, "tunnel", "dev", device, "peers", "none", *words.split())
        return until(f"{device} is up", lambda: self.stat(name, device))

    def agent(self, name, device, *words):
        """Starts the agent of a tunnel."""
        return self.start(name, SEGUE, "fleet", "etcd", "--dev", device, "--endpoints", ETCD, "--allow-plain-http",
                          "--iface", "eth0", *words)

    def join(self, name, device, network):
        """Gives a host the address of its lease, and a route for the network; the address."""
        state = until("the agent has a lease", lambda: self.agent_state(name, device).get("subnet"))
        address = state.split("/")[0]
        self.ip(name, f"addr add {address}/32 dev {device}")
        self.ip(name, f"route add {network} dev {device} src {address}")
        return address


PUT = f"""
import base64, json, sys, urllib.request
def text(data):
    return base64.b64encode(data.encode()).decode()
for batch in json.load(sys.stdin):
    puts = [{{"requestPut": {{"key": text("/coreos.com/network/" + key), "value": text(value)}}}} for key, value in batch]
    body = json.dumps({{"success": puts}}).encode()
    request = urllib.request.Request("{ETCD}/v3/kv/txn", body, {{"Content-Type": "application/json"}})
    urllib.request.urlopen(request, timeout=20).read()
"""
