# SPDX-License-Identifier: MIT
"""Code that the scripts here share: paths, clean environments, medians, text, plots."""

import argparse
import glob
import hashlib
import json
import os
import resource
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
line_program = None  # line.c, once there is a Build


class Build:
    def __init__(self, directory):
        self.path = os.path.join(TOP, directory)
        self.so = os.path.join(self.path, "libfiberthread.so")
        self.bench = os.path.join(self.path, "bench")
        if not os.path.exists(self.so):
            sys.exit(f"There is no {self.so}: run make first.")
        os.makedirs(self.bench, exist_ok=True)
        global line_program
        line_program = self.program("line")

    def program(self, name):
        return os.path.join(self.bench, name)

    def built(self, name):
        """Returns the path of a program that make must have built."""
        path = self.program(name)
        if not os.path.exists(path):
            sys.exit(f"There is no {os.path.relpath(path)}: run make bench-programs first.")
        return path

    def write_json(self, name, data, table=None):
        """Writes `data` to NAME. A table (what it compares, columns, rows of text) is also written to NAME.md."""
        path = self.program(name)
        if table:
            what, columns, rows = table
            data = {**data, "table": {"what": what, "columns": columns, "rows": rows}}
            lines = [" | ".join(cells) for cells in [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]]
            with open(os.path.splitext(path)[0] + ".md", "w") as f:
                f.write(f"{what}\n\n" + "".join(f"| {line} |\n" for line in lines))
        with open(path, "w") as f:
            json.dump({"machine": machine(), "at": time.strftime("%Y-%m-%d %H:%M"), **data}, f, indent=1)
            f.write("\n")
        print(f"\nAll figures: {os.path.relpath(path)}")

    def plot(self, name, script, size="1400,700"):
        path = self.program(name)
        if not shutil.which("gnuplot"):
            print("No plot: there is no gnuplot.")
            return
        head = f'set terminal svg size {size} font "sans-serif,13" background "white"\nset output "{path}"\n'
        done = subprocess.run(["gnuplot"], input=head + script, text=True, capture_output=True)
        if done.returncode:
            print(f"No plot: {done.stderr.strip()}", file=sys.stderr)
        else:
            print(f"Plot: {os.path.relpath(path)}")


def environment(preload=None):
    """Returns our environment without variables that would change a measurement, and with LD_PRELOAD if `preload` is given."""
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("FIBERTHREAD_")}
    return {**env, "LD_PRELOAD": preload} if preload else env


def between_cpus():
    """Returns how many ns a cache line takes from one CPU to another and back, as text. Empty if there is only one, or line.c is not built."""
    if not line_program or not os.path.exists(line_program):
        return ""
    try:
        found = figures([line_program], time_limit=5)
    except Cannot:
        return ""
    if not found:
        return ""
    near, far = found["nearest"], found["farthest"]
    return f"{near:.0f} ns" if far < 1.2 * near else f"{near:.0f} to {far:.0f} ns"


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    return {"cpus": len(os.sched_getaffinity(0)), "model": model, "kernel": os.uname().release, "load": os.getloadavg()[0],
            "between_cpus": between_cpus()}


def announce(what):
    m = machine()
    apart = f", {m['between_cpus']} from one to another and back" if m["between_cpus"] else ""
    print(f"{what}; {m['cpus']} CPUs ({m['model']}{apart}), load {m['load']:.1f}")
    if m["load"] > m["cpus"] / 2:
        print("The machine is busy with something else: trust the ratios little, and the figures less.")
    print()


def in_turn(sides, rounds):
    """Yields each side once a round. The sides take turns at being first, so that other load on the machine hits all alike."""
    for i in range(rounds):
        k = i % len(sides)
        yield from sides[k:] + sides[:k]


class Cannot(Exception):
    pass


def figures(command, preload=None, cpus=None, time_limit=60, more={}):
    """Returns the NAME=NUMBER pairs that a program prints, as a dict. Raises Cannot with a few words for the table if it fails."""
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
    """Returns whether the result is a crash or a hang, in the words of figures(). A limit of the platform is no failure."""
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


# ---- unmodified programs: one command on each side ----

JEMALLOC = next(iter(sorted(glob.glob("/usr/lib/*/libjemalloc.so.2") + glob.glob("/usr/lib*/libjemalloc.so.2"))), None)
FOUR = ["nptl", "fiberthread"] + (["nptl+jemalloc", "fiberthread+jemalloc"] if JEMALLOC else [])
COLOURS = {"nptl": "#888888", "fiberthread": "#0060c0", "nptl+jemalloc": "#c0a060", "fiberthread+jemalloc": "#40a080"}
NAMES = {"nptl": "NPTL", "fiberthread": "fibers", "nptl+jemalloc": "NPTL + jemalloc", "fiberthread+jemalloc": "fibers + jemalloc"}


def preload(build, side):
    return ":".join(([build.so] if side.startswith("fiberthread") else []) + ([JEMALLOC] if side.endswith("jemalloc") else []))


def options_of(what, quick="3 rounds", rounds=10, more=lambda parser: None):
    """Parses the command line that all scripts share. With --quick, `rounds` is the number at the start of `quick`."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("build", nargs="?", default="build", help="build directory")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--quick", action="store_true", help=quick)
    more(parser)
    options = parser.parse_args()
    if options.quick:
        options.rounds = int(quick.split()[0])
    return options


def need(*commands):
    for command in commands:
        if not shutil.which(command):
            print(f"There is no {command}: run tests/deps bench.")
            sys.exit(77)


def corpus(build, mb, directory):
    """Makes a file of `mb` MB of real text and binaries, and returns its path."""
    made = subprocess.run([os.path.join(TOP, "tests", "corpus"), os.path.relpath(build.path, TOP)], cwd=TOP, check=True,
                          stdout=subprocess.PIPE, text=True).stdout.strip()
    path = os.path.join(directory, f"corpus-{mb}")
    with open(path, "wb") as f:
        subprocess.run(["head", "-c", str(mb << 20), os.path.join(TOP, made)], check=True, stdout=f)
    return path


def timed(command, preloaded, status=0):
    """Returns wall and CPU seconds of one run, by hyperfine where it is installed. Raises Cannot if it ends with another status. Both
    sides are started by env, so that both pay for that."""
    command = ["env", *([f"LD_PRELOAD={preloaded}"] if preloaded else []), *command]
    if shutil.which("hyperfine"):
        with tempfile.NamedTemporaryFile(suffix=".json") as f:
            done = subprocess.run(["hyperfine", "-N", "-i", "-r", "1", "--style", "none", "--export-json", f.name, shlex.join(command)],
                                  env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                raise Cannot(f"failed: {done.stderr.strip()}")
            result = json.load(f)["results"][0]
        if "measurements" in result:  # since version 2
            (run,) = result["measurements"]
            ended, wall, cpu = run["exit_code"], run["time_wall_clock"]["value"], run["time_user"]["value"] + run["time_system"]["value"]
        else:
            (ended,), wall, cpu = result["exit_codes"], result["mean"], result["user"] + result["system"]
        if ended != status:
            raise Cannot(f"failed: status {ended}")
        return wall, cpu
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    if subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode != status:
        raise Cannot("failed")
    end, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return end - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def of_process(pid):
    """Returns CPU seconds so far, kernel threads, resident MB and their peak so far."""
    with open(f"/proc/{pid}/stat") as f:
        stat = f.read().rsplit(")", 1)[1].split()
    with open(f"/proc/{pid}/status") as f:
        status = dict(line.split(":", 1) for line in f if ":" in line)
    return ((int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"), int(status["Threads"]), int(status["VmRSS"].split()[0]) / 1024,
            int(status["VmHWM"].split()[0]) / 1024)


def watched(command, preloaded):
    """Runs the command once. Returns its output's digest, exit status, peak memory in MB, and the most kernel threads that were seen."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, env=environment(preloaded or None), stdin=subprocess.DEVNULL, stdout=out)
        memory = threads = 0
        while process.poll() is None:
            try:
                _, now, _, peak = of_process(process.pid)
                memory, threads = max(memory, peak), max(threads, now)
            except (OSError, KeyError):
                pass  # the process has just ended
            time.sleep(0.002)
        out.seek(0)
        digest = hashlib.sha256()
        while part := out.read(1 << 20):
            digest.update(part)
        return digest.hexdigest(), process.returncode, memory, threads


def compare_programs(build, name, what, cases, rounds, sides=None):
    """cases: (name, command). Times each case on each side in turn. A case whose outputs differ is not compared. Ends the process."""
    sides = sides or FOUR
    announce(f"{what}, {rounds} rounds, median (best)")
    columns = ["", *[NAMES[side] for side in sides], "NPTL / fibers", "of CPU time", "peak MB", "kernel threads"]
    widths = [26] + [20] * len(sides) + [15, 13, 14, 16]
    line = lambda cells: print("".join(f"{cell:{'<' if i == 0 else '>'}{w}}" for i, (cell, w) in enumerate(zip(cells, widths))), flush=True)
    line(columns)
    table, rows, failed = [], [], False
    for case, command in cases:
        checks = {side: watched(command, preload(build, side)) for side in sides}  # this also warms up
        if len({check[:2] for check in checks.values()}) > 1:
            print(f"{case}: not compared, as the outputs differ: {[(NAMES[s], c[0][:8], c[1]) for s, c in checks.items()]}")
            table.append([case, "outputs differ: not compared"] + [""] * (len(columns) - 2))
            failed = True
            continue
        runs = {side: [] for side in sides}
        try:
            for side in in_turn(sides, rounds):
                runs[side].append(timed(command, preload(build, side), checks[side][1]))
        except Cannot as why:
            print(f"{case}: {why}")
            table.append([case, str(why)] + [""] * (len(columns) - 2))
            failed = True
            continue
        wall = {side: summary([w for w, c in runs[side]]) for side in sides}
        cpu = {side: summary([c for w, c in runs[side]]) for side in sides}
        ratio = wall["nptl"]["median"] / wall["fiberthread"]["median"]
        cpu_ratio = cpu["nptl"]["median"] / max(cpu["fiberthread"]["median"], 1e-6)
        rows.append({"case": case, "command": command, "wall_s": wall, "cpu_s": cpu, "ratio": ratio, "ratio_of_cpu": cpu_ratio,
                     "peak_mb": {s: c[2] for s, c in checks.items()}, "kernel_threads": {s: c[3] for s, c in checks.items()}})
        cells = [case, *[f"{wall[s]['median']:.3f} s ({wall[s]['best']:.3f})" for s in sides], f"{ratio:.3f}", f"{cpu_ratio:.3f}",
                 *[f"{checks['nptl'][i]:.0f} / {checks['fiberthread'][i]:.0f}" for i in (2, 3)]]
        line(cells)
        table.append(cells)
    build.write_json(f"{name}.json", {"rounds": rounds, "rows": rows}, (what, columns, table))
    if rows:
        bars(build, f"{name}.svg", "seconds (median; best to worst)", [(row["case"], row["wall_s"]) for row in rows], sides)
    sys.exit(failed)


def bars(build, name, title, rows, sides):
    """rows: (label, {side: summary}). Plots a group of bars for each row, with the range of all runs."""
    data = []
    for label, values in rows:
        cells = []
        for side in sides:
            got = values.get(side)
            cells += [f"{x:.6g}" for x in (got["median"], min(got["values"]), max(got["values"]))] if isinstance(got, dict) else ["-", "-", "-"]
        data.append(" ".join([f'"{label}"', *cells]))
    curves = ", ".join(f'$data using {3 * i + 2}:{3 * i + 3}:{3 * i + 4}{":xtic(1)" if i == 0 else ""} title "{NAMES.get(side, side)}" '
                       f'lc rgb "{COLOURS.get(side, "#a04040")}"' for i, side in enumerate(sides))
    newline = "\n"
    build.plot(name, f"""$data << END
{newline.join(data)}
END
set datafile missing "-"
set style data histogram
set style histogram errorbars gap 1 lw 1
set style fill solid 0.8 noborder
set grid ytics
set yrange [0:*]
set ylabel "{title}"
set xtics scale 0
set key outside top horizontal
set errorbars 1 linecolor rgb "#404040"
plot {curves}
""", "1100,380")


# ---- servers ----

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server on one side. As a context manager, it starts the server and waits until it is ready."""

    def __init__(self, build, side, command, ready):
        self.command, self.ready = command, ready
        self.env = environment(preload(build, side) or None)

    def __enter__(self):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.command, env=self.env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        for _ in range(300):
            if self.process.poll() is not None:
                break
            if self.ready():
                return self
            time.sleep(0.1)
        self.__exit__()
        self.log.seek(0)
        raise Cannot(f"failed to start: {self.log.read()[-300:].decode(errors='replace')}")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def usage(self):
        return of_process(self.process.pid)


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def compare_servers(build, name, what, cases, measure, rounds, sides=None):
    """measure(side, case) returns {"rate", "p99_us" or None, "answers", "threads", "mb"}: requests per second, and a digest of the
    answers. If the answers differ, nothing is compared. Ends the process."""
    sides = sides or FOUR
    announce(f"{what}, {rounds} rounds, medians")
    columns = ["", "side", "requests/s", "/ NPTL", "p99", "/ NPTL", "kernel threads", "MB"]
    widths = [30, 20, 13, 9, 12, 9, 16, 8]
    line = lambda cells: print("".join(f"{cell:{'<' if i < 2 else '>'}{w}}" for i, (cell, w) in enumerate(zip(cells, widths))), flush=True)
    line(columns)
    table, rows, failed = [], [], False
    for case in cases:
        runs, bad = {side: [] for side in sides}, None
        for side in in_turn(sides, rounds):
            try:
                runs[side].append(measure(side, case))
            except (Cannot, subprocess.TimeoutExpired) as why:
                bad = f"{NAMES[side]}: {why}"
                break
        answers = {run["answers"] for got in runs.values() for run in got}
        if bad or len(answers) > 1:
            bad = bad or f"the answers differ: {answers}"
            print(f"{case}: not compared: {bad}")
            table.append([str(case), "not compared", bad] + [""] * (len(columns) - 3))
            failed = True
            continue
        row = {"case": str(case)}
        for side in sides:
            row[side] = {key: summary([run[key] for run in runs[side]]) for key in runs[side][0]
                         if key != "answers" and all(run[key] is not None for run in runs[side])}
        rows.append(row)
        for side in sides:
            got, base = row[side], row["nptl"]
            to = lambda key: f"{got[key]['median'] / base[key]['median']:.2f}" if key in got and base[key]["median"] else ""
            cells = [str(case), NAMES[side], f"{got['rate']['median']:.0f}", to("rate"), time_text(got["p99_us"]["median"] * 1e3) if "p99_us" in got else "",
                     to("p99_us"), f"{got['threads']['median']:.0f}", f"{got['mb']['median']:.0f}"]
            line(cells)
            table.append(cells)
    build.write_json(f"{name}.json", {"rounds": rounds, "rows": rows}, (what, columns, table))
    if rows:
        bars(build, f"{name}.svg", "requests a second (median; worst to best)", [(row["case"], {s: row[s]["rate"] for s in sides}) for row in rows], sides)
    sys.exit(failed)
