"""What the measurements of tools/figures.d share: rows of `segue bench` and `segue lab`, and a line for each figure."""
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SEGUE = os.environ.get("SEGUE_BIN", "target/release/segue")


def rows(*words):
    """The rows of a table of the program as (case, median of each metric); the command is printed."""
    print(f"command: segue {' '.join(words)}", flush=True)
    ran = subprocess.run([SEGUE, *words, "-j", "--progress", "never"], stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        sys.exit(f"segue {' '.join(words)}: exit {ran.returncode}")
    found = []
    for row in json.loads(ran.stdout)["rows"]:
        found.append((row["case"], {name: metric["median"] for name, metric in row["metrics"].items()}))
    return found


def row(found, **case):
    """The metrics of the one row whose case has these labels."""
    fits = [metrics for labels, metrics in found if all(labels.get(k) == v for k, v in case.items())]
    if len(fits) != 1:
        sys.exit(f"{len(fits)} rows have {case}")
    return fits[0]


class Figures:
    """Prints each figure beside its aim, and ends with 1 where one was missed."""

    def __init__(self):
        self.missed = 0

    def at_least(self, what, value, aim):
        self.say(what, value, f"at least {aim}", value >= aim)

    def at_most(self, what, value, aim):
        self.say(what, value, f"at most {aim}", value <= aim)

    def say(self, what, value, aim, is_met):
        self.missed += not is_met
        print(f"figure: {what} {value:.3g} (aim: {aim}){'' if is_met else ' MISSED'}", flush=True)

    def end(self):
        sys.exit(int(bool(self.missed)))


def tree(pid):
    """A process and all that it started."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [pid] + [one for child in file.read().split() for one in tree(int(child))]


def thousand(program, kinds, count=1000):
    """Seconds that `count` tunnels of `segue run` in `kinds` instances, of as many forms, take to start, for `segue stat`, to
    reload with one changed key and to end; MiB of memory, and per cent of a core when idle. Needs root: it makes a network
    namespace."""
    forms = ['mode = "gre"\nencap = "gue"', 'mode = "ipip"\nencap = "gue"', 'mode = "sit"\nencap = "gue"',
             'mode = "gretap"\nencap = "gue"', 'mode = "gre"\nencap = "fou"', 'mode = "vxlan"\nid = 7',
             'mode = "geneve"\nid = 7', 'mode = "ipip"\nencap = "fou"'][:kinds]
    namespace = f"segue-figures-{os.getpid()}"
    inside = ["ip", "netns", "exec", namespace]

    def run(*words):
        subprocess.run(words, check=True)

    run("ip", "netns", "add", namespace)
    service = None
    try:
        run("ip", "-n", namespace, "link", "set", "lo", "up")
        run("ip", "-n", namespace, "addr", "add", "198.18.0.1/15", "dev", "lo")
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "SEGUE_RUNTIME_DIR": f"{folder}/run"}
            os.mkdir(f"{folder}/run")

            def write(change):
                with open(f"{folder}/c.toml", "w", encoding="ascii") as file:
                    for at in range(count):
                        form = at % kinds
                        port = "dstport" if "id =" in forms[form] else "encap-dport"
                        file.write(f'[[tunnel]]\ndev = "m{at}"\nlocal = "198.18.0.1"\n'
                                   f'remote = "198.18.{1 + at // 250}.{1 + at % 250}"\n{forms[form]}\n'
                                   f"{port} = {7000 + form}\nttl = {change if at == 0 else 64}\n\n")

            write(64)
            begin = time.monotonic()
            service = subprocess.Popen([*inside, program, "run", "-j", "-c", f"{folder}/c.toml"], env=env, text=True,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

            def until(event):
                for line in service.stdout:
                    if json.loads(line).get("event") == event:
                        return time.monotonic()
                sys.exit(f"segue run ended before the event {event}")

            took = {"start": until("ready") - begin}
            time.sleep(2)

            def used():
                total = 0
                for pid in tree(service.pid):
                    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                        total += sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))
                return total / os.sysconf("SC_CLK_TCK")

            before = used()
            time.sleep(10)
            took["idle"] = (used() - before) * 10
            took["memory"] = 0
            for pid in tree(service.pid):
                with open(f"/proc/{pid}/status", encoding="ascii") as file:
                    took["memory"] += sum(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024
            begin = time.monotonic()
            subprocess.run([*inside, program, "stat", "-j"], env=env, check=True, stdout=subprocess.DEVNULL)
            took["stat"] = time.monotonic() - begin
            write(63)
            begin = time.monotonic()
            service.send_signal(signal.SIGHUP)
            took["reload"] = until("reloaded") - begin
            begin = time.monotonic()
            service.send_signal(signal.SIGTERM)
            service.communicate()
            took["stop"] = time.monotonic() - begin
            service = None
            return took
    finally:
        if service:
            service.kill()
            service.wait()
        subprocess.run(["ip", "netns", "del", namespace], check=False)


median = statistics.median
