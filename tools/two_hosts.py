"""Shared parts of the measurements of tunnels: two hosts with a cable between them, the tunnels between, and a load."""
import json
import os
import subprocess
import sys
import tempfile
import time

PATIENCE = 30
TOP = f"segue-figures-{os.getpid()}"
# Links that the measurements know.
OFFLOADS = {"nic": "tso off gso off tx off gro on", "veth": ""}


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


class Hosts:
    """Two hosts with a cable between them, and what runs in them; all of it goes at the end of the `with`. Several
    pairs of one measurement have different `name`s."""

    def __init__(self, link, name=""):
        self.place = tempfile.TemporaryDirectory()
        self.top = TOP + name
        self.folder, self.running = self.place.name, []
        os.chmod(self.folder, 0o755)
        try:
            self.make(link)
        except BaseException:
            self.end()
            raise

    def make(self, link):
        for name, at in (("a", 1), ("b", 2)):
            run("ip", "netns", "add", f"{self.top}-{name}")
            os.mkdir(f"{self.folder}/{name}")
            self.run(name, "ip", "link", "set", "lo", "up")
            self.run(name, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")
        run("ip", "-n", f"{self.top}-a", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", f"{self.top}-b")
        for name, at in (("a", 1), ("b", 2)):
            self.run(name, "ip", "addr", "add", f"198.18.0.{at}/24", "dev", "eth0")
            self.run(name, "ip", "link", "set", "eth0", "up")
            if OFFLOADS[link]:
                self.run(name, "ethtool", "-K", "eth0", *OFFLOADS[link].split())

    def command(self, name, *words):
        return ["env", f"SEGUE_RUNTIME_DIR={self.folder}/{name}", "ip", "netns", "exec", f"{self.top}-{name}", *words]

    def run(self, name, *words):
        run(*self.command(name, *words))

    def ask(self, name, *words):
        return subprocess.run(self.command(name, *words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False,
                              text=True).stdout

    def launch(self, name, *words):
        with open(f"{self.folder}/{name}.log", "ab") as log:
            process = subprocess.Popen(self.command(name, *words), stdout=log, stderr=log)
        self.running.append(process)
        return process

    def log(self, name):
        """Returns what the programs of a host have printed."""
        try:
            with open(f"{self.folder}/{name}.log", encoding="utf-8", errors="replace") as log:
                return log.read()
        except FileNotFoundError:
            return ""

    def reach(self, address, what):
        """Waits until a ping from the first host gets through."""
        end = time.monotonic() + PATIENCE
        while subprocess.run(self.command("a", "ping", "-qc1", "-W1", address), stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, check=False).returncode:
            if time.monotonic() > end:
                sys.exit(f"{what}: nothing passes the tunnel: {self.log('a')}{self.log('b')}")
            time.sleep(0.1)

    def serve(self):
        """Starts an iperf3 in the second host that serves once, and waits until it listens."""
        server = self.launch("b", "iperf3", "-s", "-1")
        end = time.monotonic() + PATIENCE
        while "5201" not in self.ask("b", "ss", "-Hltn"):
            if time.monotonic() > end:
                sys.exit("iperf3 does not listen")
            time.sleep(0.05)
        return server

    def send(self, address, flows, seconds, meanwhile=lambda: None, most=None):
        """Sends as fast as TCP can, or at most so many bits per second in each flow. Returns the end of iperf3's
        report, and what `meanwhile` returned."""
        server = self.serve()
        words = ["-c", address, "-P", str(flows), "-t", str(int(seconds)), "-J", *(["-b", str(int(most))] if most else [])]
        client = subprocess.Popen(self.command("a", "iperf3", *words), stdout=subprocess.PIPE, text=True)
        self.running.append(client)
        said = meanwhile()
        report = json.loads(client.communicate(timeout=PATIENCE + seconds)[0])
        if client.returncode:
            sys.exit(f"iperf3: {report.get('error')}")
        server.wait(PATIENCE)
        self.running.remove(client)
        self.running.remove(server)
        return report["end"], said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        for process in self.running:
            process.terminate()
        for process in self.running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for name in ("a", "b"):
            subprocess.run(["ip", "netns", "del", f"{self.top}-{name}"], check=False)
        self.place.cleanup()
