"""What the scripts here share: where things are, clean environments, medians, text, plots."""

import json
import os
import shutil
import statistics
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Build:
    def __init__(self, directory):
        self.path = os.path.join(TOP, directory)
        self.so = os.path.join(self.path, "libfiberthread.so")
        self.bench = os.path.join(self.path, "bench")
        if not os.path.exists(self.so):
            sys.exit(f"There is no {self.so}: run make first.")
        os.makedirs(self.bench, exist_ok=True)

    def program(self, name):
        return os.path.join(self.bench, name)

    def write_json(self, name, data):
        path = self.program(name)
        with open(path, "w") as f:
            json.dump({"machine": machine(), **data}, f, indent=1)
            f.write("\n")
        print(f"\nAll figures: {os.path.relpath(path)}")

    def plot(self, name, script):
        path = self.program(name)
        if not shutil.which("gnuplot"):
            print("No plot: there is no gnuplot.")
            return
        head = f'set terminal svg size 1400,700 background "white"\nset output "{path}"\n'
        done = subprocess.run(["gnuplot"], input=head + script, text=True, capture_output=True)
        if done.returncode:
            print(f"No plot: {done.stderr.strip()}", file=sys.stderr)
        else:
            print(f"Plot: {os.path.relpath(path)}")


def environment(preload=None):
    """Ours without what would change a measurement, and with the library if so wanted."""
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("FIBERTHREAD_")}
    return {**env, "LD_PRELOAD": preload} if preload else env


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    return {"cpus": len(os.sched_getaffinity(0)), "model": model, "kernel": os.uname().release, "load": os.getloadavg()[0]}


def announce(what):
    m = machine()
    print(f"{what}; {m['cpus']} CPUs ({m['model']}), load {m['load']:.1f}")
    if m["load"] > m["cpus"] / 2:
        print("The machine is busy with something else: trust the ratios little, and the figures less.")
    print()


def in_turn(sides, rounds):
    """Each side once a round, taking turns at being first: whatever else the machine does hits all alike."""
    for i in range(rounds):
        k = i % len(sides)
        yield from sides[k:] + sides[:k]


class Cannot(Exception):
    pass


def figures(command, preload=None, cpus=None, time_limit=60, more={}):
    """The NAME=NUMBER pairs that a program prints, as a dict; Cannot with a few words for the table if there are none."""
    if cpus:
        command = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cpus])), *command]
    try:
        done = subprocess.run(command, env={**environment(preload), **more}, capture_output=True, text=True, timeout=time_limit)
    except subprocess.TimeoutExpired:
        raise Cannot(f"> {time_limit} s") from None
    if done.returncode == 3:
        raise Cannot(done.stdout.strip())
    if done.returncode:
        print(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip()}", file=sys.stderr)
        raise Cannot("failed")
    return {k: float(v) for k, v in (pair.split("=") for pair in done.stdout.split())}


def is_failure(result):
    """A crash or a hang, as figures() words them; what the platform cannot do is none."""
    return isinstance(result, str) and result.startswith(("failed", ">"))


def summary(values):
    return {"median": statistics.median(values), "best": min(values), "values": values}


def time_text(ns):
    for limit, divisor, unit in ((1e3, 1, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms")):
        if abs(ns) < limit:
            break
    else:
        divisor, unit = 1e9, "s"
    x = ns / divisor
    return f"{x:.{2 if abs(x) < 10 else 1 if abs(x) < 100 else 0}f} {unit}"


def size_text(kb):
    return f"{kb:.1f} kB" if kb < 1000 else f"{kb / 1024:.0f} MB"
