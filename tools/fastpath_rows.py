"""Shared parts of the measurements of the in-kernel path: rows of `segue bench tunnel` in paired rounds, each beside
the kernel's VXLAN, with the 90 % interval of its ratio."""
import json
import math
import os
import statistics
import subprocess
import sys
import time

from measured import SEGUE, Figures

RUNS = int(os.environ.get("RUNS", "7"))
LIMIT = float(os.environ.get("LIMIT", "12"))
# The 95 % quantile of Student's t for that many degrees of freedom, from 1 on.
STUDENT = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76)
# The forms by the path that have rows, by the family inside.
FORMS = {4: ("fastpath-ipip", "fastpath-gre", "fastpath-gue", "fastpath-vxlan"),
         6: ("fastpath-sit", "fastpath-gre", "fastpath-gue", "fastpath-vxlan")}
FLOWS = (1, 4, 64)


def rounds(rows):
    """Returns the samples of each row, by its labels, in the order of the rounds: RUNS rounds, or as many as LIMIT
    minutes leave room for."""
    words = ["bench", "tunnel", "--runs", "1", *(word for row in rows for word in ("--rows", row))]
    print(f"command: segue {' '.join(words)}", flush=True)
    print(f"congestion control of every row: reno; {RUNS} rounds of this, at most {LIMIT:g} minutes", flush=True)
    begin, longest, found, done = time.monotonic(), 0.0, {}, 0
    while done < RUNS:
        left = 60 * LIMIT - (time.monotonic() - begin)
        if done and left < longest:
            break
        start = time.monotonic()
        with subprocess.Popen([SEGUE, *words, "-j", "--progress", "never"], stdout=subprocess.PIPE, text=True) as ran:
            try:
                said, _ = ran.communicate(timeout=max(left, 1))
            except subprocess.TimeoutExpired:
                # It removes its hosts.
                ran.terminate()
                ran.wait()
                if not done:
                    sys.exit(f"segue bench tunnel: no round was done after {LIMIT:g} minutes")
                break
        if ran.returncode:
            sys.exit(f"segue bench tunnel: exit {ran.returncode}\n{said.strip()}")
        for row in json.loads(said)["rows"]:
            case = row["case"]
            key = (case["tunnel"], case["link"], case["family"], case.get("load", "tcp-1"))
            for name, metric in row["metrics"].items():
                found.setdefault(key, {}).setdefault(name, []).extend(metric["samples"])
        longest, done = max(longest, time.monotonic() - start), done + 1
    print(f"{done} of {RUNS} rounds in {(time.monotonic() - begin) / 60:.1f} minutes", flush=True)
    return found


def interval(ratios):
    """The geometric mean of ratios, and the ends of its 90 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.mean(logs)
    half = math.inf
    if len(logs) > 1:
        half = STUDENT[min(len(logs) - 2, len(STUDENT) - 1)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return [math.exp(at) for at in (middle, middle - half, middle + half)]


class Rows:
    """The ratios of rows on one kind of link, each beside its aim."""

    def __init__(self, link, found):
        self.link, self.found, self.figures = link, found, Figures()
        self.means = {}

    def beside(self, tunnel, family, load, aim, bases=("vxlan",), slack=1.0):
        """Compares a row with the fastest of `bases` in the same round: throughput beside its aim, if it has one, and
        CPU. It misses where the whole interval lies below the aim times `slack`."""
        key = (tunnel, self.link, f"IPv{family}", load)
        others = [self.found[name, *key[1:]] for name in bases]
        gain, cost = ("gbps", "cpu_s_per_gb") if not load.startswith("rr") else (
            "transactions_per_s", "cpu_us_per_transaction")
        best = [max(range(len(others)), key=lambda at: others[at][gain][turn])
                for turn in range(len(others[0][gain]))]
        for metric in (gain, cost):
            mine = self.found[key][metric]
            pairs = [(value, others[at][metric][turn]) for turn, (value, at) in enumerate(zip(mine, best))]
            # A busy machine may leave a row of a short round without a packet, or without processor time.
            ratios = [value / other for value, other in pairs if value > 0 and other > 0]
            if not ratios:
                self.figures.say(f"{tunnel}, link {self.link}, {load}/IPv{family}: {metric}", math.nan, "a measurement", False)
                continue
            middle, low, high = interval(ratios)
            what = (f"{tunnel}, link {self.link}, {load}/IPv{family}: {metric}, times {' or '.join(bases)} "
                    f"[{low:.2f}, {high:.2f}]")
            if metric == gain and aim is not None:
                self.figures.say(what, middle, f"at least {aim}", high >= slack * aim)
            else:
                print(f"{what} {middle:.3g}", flush=True)
            kind = "VXLAN" if tunnel == "fastpath-vxlan" else "IPIP, SIT, GRE and GUE"
            self.means.setdefault((kind, metric), []).append(middle)

    def mean(self):
        """The geometric mean of all rows so far: throughput at least that of VXLAN, and CPU at most."""
        for (kind, metric), values in sorted(self.means.items()):
            middle = math.exp(statistics.mean(map(math.log, values)))
            what = f"{kind}, link {self.link}, geometric mean of {metric}, times vxlan"
            (self.figures.at_least if metric == "gbps" else self.figures.at_most)(what, middle, 1.0)
