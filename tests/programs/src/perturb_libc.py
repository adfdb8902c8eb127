# SPDX-License-Identifier: MIT
"""Runs a program on the library with a libc that describes itself wrongly. In copies of libc, which otherwise work as before, each descriptor that
the self-check reads is made wrong. In copies of the library, each name that it asks libc for is replaced by one that libc lacks. The program
has to end as usual: on libc's threads with a line that says why, or on fibers if the wrong descriptor makes no difference.

Arguments: library, the folder of the sources that read libc (sched/glibc), program, its argument, a directory; then patterns of
perturbations' names. PERTURB_VERBOSE=1 shows them all."""

import concurrent.futures as futures
import glob
import os
import re
import struct
import subprocess
import sys

library, sources, program, module, directory = sys.argv[1:6]
patterns = sys.argv[6:]
HUGE = [0x10000000, 0x7FFFFFF8, 0xFFFFFFF8]
# Wrong descriptors that make no difference: the library does not read the number of elements of an array without a bound.
HARMLESS = r"_thread_db_(dtv_dtv|dtv_slotinfo_list_slotinfo) count"


class Elf:
    """The dynamic symbols of a 64-bit little-endian file."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = f.read()
        (shoff,) = struct.unpack_from("<Q", self.data, 0x28)
        entry, count = struct.unpack_from("<HH", self.data, 0x3A)
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", self.data, shoff + i * entry) for i in range(count)]
        self.symbols = {}  # name: (where the symbol is in the file, its value)
        for s in self.sections:
            if s[1] != 11:  # SHT_DYNSYM
                continue
            names = self.sections[s[6]][4]
            for at in range(s[4], s[4] + s[5], 24):
                name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", self.data, at)
                if section:
                    end = self.data.index(b"\0", names + name)
                    self.symbols[self.data[names + name:end].decode()] = (at, value)

    def place(self, name):
        value = self.symbols[name][1]
        for s in self.sections:
            if s[1] != 8 and s[3] and s[3] <= value < s[3] + s[5]:  # not SHT_NOBITS
                return value - s[3] + s[4]
        raise KeyError(name)

    def words(self, name, n):
        return struct.unpack_from(f"<{n}I", self.data, self.place(name))

    def patched(self, at, form, value):
        data = bytearray(self.data)
        struct.pack_into(form, data, at, value)
        return bytes(data)


def loaded(what):
    listed = subprocess.run(["ldd", program], stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout
    return re.search(rf"(/\S*{what}\S*)", listed).group(1)


loader, libc = loaded("ld-linux"), Elf(loaded("libc.so.6"))
with open(library, "rb") as f:
    ours = f.read()
text = ""
for source in sorted(glob.glob(f"{sources}/*.cpp")):
    with open(source) as f:
        text += f.read()
descriptors = sorted(set(re.findall(r'"(_thread_db_\w+)"', text)))
private = sorted(set(re.findall(r'private_symbol\("([^_]\w+|_(?!thread_db)\w+)"\)', text)))
assert len(descriptors) >= 20 and len(private) >= 5
cases = [("as it is", lambda: None)]  # name, function that returns (file name, its bytes)


def lie(name, place, form, value):
    cases.append((name, lambda: ("libc.so.6", libc.patched(place, form, value))))


for name in descriptors:
    if name.startswith("_thread_db_sizeof"):
        (true,) = libc.words(name, 1)
        for value in sorted({0, 1, 8, true - 16, true - 8, true + 8, true + 16, true + 64, true - 64, true * 2, true // 2, *HUGE} - {true}):
            if value >= 0:
                lie(f"{name} {true} -> {value}", libc.place(name), "<I", value)
        continue
    bits, count, offset = libc.words(name, 3)
    # Offsets of other fields of the same structure (names with the same start) replace the right one.
    others = {libc.words(n, 3)[2] for n in libc.symbols if n.startswith("_thread_db_") and not n.startswith("_thread_db_sizeof")
              and n.split("_")[3:5] == name.split("_")[3:5]}
    for value in sorted({0, 1, offset + 4, offset + 8, offset - 8, offset + 16, offset - 16, offset * 2, *others, *HUGE} - {offset}):
        if value >= 0:
            lie(f"{name} offset {offset} -> {value}", libc.place(name) + 8, "<I", value)
    for what, at, true in ("bits", 0, bits), ("count", 4, count):
        for value in sorted({0, 1, true // 2, true * 2 & 0xFFFFFFFF, 0xFFFFFFFF} - {true}):
            lie(f"{name} {what} {true} -> {value}", libc.place(name) + at, "<I", value)
for name in descriptors + private:
    assert name.encode() + b"\0" in ours, name
    cases.append((f"{name} missing", lambda name=name: ("libfiberthread.so", ours.replace(name.encode() + b"\0", b"?" + name[1:].encode() + b"\0"))))
at, true = libc.symbols["__resp"]
for value in sorted({0, true + 8, true - 8, true + 16, 1 << 40} - {true}):
    if value >= 0:
        lie(f"__resp at {true} -> {value}", at + 8, "<Q", value)
cases = [c for c in cases if not patterns or any(p in c[0] for p in patterns)]


def run(number):
    name, make = cases[number]
    place = f"{directory}/{number}"
    os.mkdir(place)
    made = make()
    if made:
        with open(f"{place}/{made[0]}", "wb") as f:
            f.write(made[1])
            os.fchmod(f.fileno(), 0o755)
    preload = f"{place}/libfiberthread.so" if made and made[0] == "libfiberthread.so" else library
    env = {k: v for k, v in os.environ.items() if not k.startswith("FIBERTHREAD_")}
    env.update(FIBERTHREAD_VERBOSE="1", FIBERTHREAD_STATS="1", FIBERTHREAD_WORKERS="2")
    try:
        p = subprocess.run([loader, "--library-path", place, "--preload", preload, program, module], env=env, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
        status, out, err = p.returncode, p.stdout.decode(), p.stderr.decode(errors="replace")
    except subprocess.TimeoutExpired as e:
        status, out, err = "hung", "", (e.stderr or b"").decode(errors="replace")
    if made:
        os.unlink(f"{place}/{made[0]}")
    os.rmdir(place)
    if status == 127 and "cannot" in err:
        verdict = "loader"  # it does not take the copy
    elif status != 0 or out != "right\n":
        verdict = "BROKEN"
    else:
        verdict = "refused" if "threads are NPTL's: " in err else "fibers"
    why = re.search(r"threads are NPTL's: (.*)", err)
    return name, verdict, f"status {status}: {out}{err}".strip() if verdict in ("BROKEN", "loader") else why.group(1) if why else ""


bad = 0
verdicts = {}
with futures.ThreadPoolExecutor(int(os.environ.get("PERTURB_JOBS", "3"))) as pool:
    for name, verdict, why in pool.map(run, range(len(cases))):
        right = verdict == "fibers" if name == "as it is" else verdict == "refused" or (verdict == "fibers" and re.match(HARMLESS, name))
        if verdict == "loader" and len(cases) and not bad and name.startswith(descriptors[0]):
            print(f"the loader does not take a copy of libc: {why}")
            sys.exit(77)
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        bad += not right
        if not right or os.environ.get("PERTURB_VERBOSE"):
            print(f"{verdict:8} {name}: {why}", flush=True)
print(f"{len(cases)} perturbations, {bad} not as expected: " + ", ".join(f"{n} {v}" for v, n in sorted(verdicts.items())))
sys.exit(bad != 0 or not cases)
