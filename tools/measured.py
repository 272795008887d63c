"""What the measurements of tools/figures.d share: rows of `segue bench` and `segue lab`, and a line for each figure."""
import json
import os
import statistics
import subprocess
import sys

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


median = statistics.median
