"""Sources of other projects, from the registries of Rust and of Go, in copies below target: fetched, changed and
run."""
import json
import os
import shutil
import stat
import subprocess
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(TOP, "target")))


class Fault(Exception):
    """A failure of a part, with its reason."""


class Unreachable(Fault):
    """A failure because a registry does not answer."""


def run(command, patience=600, **options):
    """Runs a command and returns what it printed."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=patience, check=False, **options)
    except subprocess.TimeoutExpired as late:
        raise Fault(f"{' '.join(command)}: not over after {patience} s") from late
    if done.returncode:
        raise Fault(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def fetched(command, **options):
    """Runs a command that downloads, again if the network fails."""
    for pause in (2, 10, 30, 60, None):
        try:
            return run(command, 300, **options)
        except Fault as fault:
            if pause is None:
                raise Unreachable(f"cannot be fetched: {str(fault).strip().splitlines()[-1]}") from fault
            time.sleep(pause)
    return None


def crates(probe, dependencies):
    """Returns the folders of crates of crates.io by name. `dependencies` are lines of a manifest, which is written to
    the folder `probe`."""
    os.makedirs(os.path.join(probe, "src"), exist_ok=True)
    with open(os.path.join(probe, "Cargo.toml"), "w", encoding="utf-8") as file:
        file.write('[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n[dependencies]\n' + dependencies)
    open(os.path.join(probe, "src/lib.rs"), "w", encoding="utf-8").close()
    metadata = json.loads(fetched(["cargo", "metadata", "--format-version", "1"], cwd=probe))
    return {package["name"]: os.path.dirname(package["manifest_path"]) for package in metadata["packages"]}


def copied(source, folder):
    """Makes a copy of a folder as `folder`, with write permission, and returns its path."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    for place, _, files in os.walk(folder):
        for path in [place, *(os.path.join(place, file) for file in files)]:
            os.chmod(path, os.stat(path).st_mode | stat.S_IWUSR)
    return folder


def changed(path, *changes):
    """Replaces a text in a file, exactly once each."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for before, after in changes:
        if text.count(before) != 1:
            raise Fault(f"{path}: {text.count(before)} times: {before}")
        text = text.replace(before, after)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def skip(part, why):
    """Notes that a part cannot run here."""
    print(f"skipped: {why}")
    if os.environ.get("SEGUE_SKIPS"):
        with open(os.environ["SEGUE_SKIPS"], "a", encoding="utf-8") as file:
            file.write(f"{part}: {why}\n")
