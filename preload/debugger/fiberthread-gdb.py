# SPDX-License-Identifier: MIT
"""gdb commands for programs that run on libfiberthread.so, live ones and cores:

    info fibers                         show all fibers, and what they wait for
    fiber                               show the selected fiber
    fiber ID [COMMAND]                  select this fiber; or run one command in it
    fiber apply all|ID... COMMAND       run a command in each fiber, as "thread apply" does

An ID is a fiber's number as in "info fibers", its name, or "main". While a parked fiber is selected, its frames stand in for those of the
selected thread. They begin at #1 or a little above, and no register of the process is changed. The fiber stays selected until "thread N", or
until the program goes on.

The script finds the library's data by the library's own table (preload/debug_layout.cpp), so it needs no debug information of the library.
"""

import itertools
import re
import struct

import gdb
import gdb.unwinder

STATES = ("created", "ready", "running", "parked", "done")
PARKED, RUNNING, DONE = 3, 2, 4


class Layout:
    """The numbers of fiberthread_debug_layout."""

    ENTRY = struct.Struct("<24sQ")

    def __init__(self):
        at = int(gdb.parse_and_eval("(unsigned long)&fiberthread_debug_layout"))
        self.numbers = {}
        while True:
            name, number = self.ENTRY.unpack(read(at, self.ENTRY.size))
            name = name.rstrip(b"\0").decode()
            if not name:
                break
            self.numbers[name] = number
            at += self.ENTRY.size
        if self["version"] != 1:
            raise gdb.GdbError("This program runs on a version of fiberthread that this script does not know.")

    def __getitem__(self, name):
        try:
            return self.numbers[name]
        except KeyError:
            raise gdb.GdbError(f"The library has no \"{name}\" in its table: it is of another version than this script.")


def read(address, size):
    return bytes(gdb.selected_inferior().read_memory(address, size))


def number(address, size=8):
    return int.from_bytes(read(address, size), "little")


def text(address):
    if not address:
        return ""
    s = b""
    while b"\0" not in s and len(s) < 4096:
        try:
            s += read(address + len(s), 16)
        except gdb.MemoryError:
            break
    return s.split(b"\0")[0].decode(errors="replace")


def layout():
    # Read it again each time: the process, or the library in it, may be another one by now. That takes some 70 reads.
    try:
        return Layout()
    except gdb.MemoryError:
        raise gdb.GdbError("There is no process, or no core, to look into.")
    except gdb.GdbError:
        raise
    except gdb.error:
        raise gdb.GdbError("This program does not run on libfiberthread.so.")


class Fiber:
    def __init__(self, record, data, l):
        def get(name, size=8):
            at = l["record." + name]
            return int.from_bytes(data[at:at + size], "little")

        self.layout = l
        self.record = record
        self.id = get("id", 4)
        self.name = data[l["record.name"]:][:16].split(b"\0")[0].decode(errors="replace")
        self.state = get("state", 4) if get("tcb") else DONE
        self.kernel = get("kernel", 1) != 0
        self.bound = get("bound") != 0
        self.start = get("start")
        self.sp = get("sp")
        self.tp = get("tp")
        self.what = get("what")
        self.object = get("object")
        self.owner = get("owner")
        self.since = get("since")
        self.file = get("file")
        self.line = get("line", 4)
        self.main = False
        self.thread = None  # the thread that runs it

    def registers(self):
        """Returns the registers that were saved when the fiber left its worker, by their names in gdb."""
        l = self.layout
        frame = read(self.sp, l["frame.size"])
        saved = {n[6:]: int.from_bytes(frame[at:at + 8], "little") for n, at in l.numbers.items() if n.startswith("frame.") and n != "frame.size"}
        saved["sp"] = self.sp + len(frame)
        return saved

    def wait(self, by_record):
        """Returns what the fiber waits for, its address, and the record of its owner, brought up to date as in the deadlock report."""
        l = self.layout
        what, obj, owner = text(self.what), self.object, self.owner
        try:
            if what == "cond":
                requeued = number(obj + l["waiter.requeued"], 1)
                obj = number(obj + l["waiter.address"])
                if requeued:
                    what = "mutex"
            if what == "mutex":
                owner = number(obj) & ~1
                mutex = obj - l["mutex.word"]
                tid = number(mutex + l["mutex.tid"], 4)
                same = owner in by_record and tid in (by_record[owner].id, 0x7FFFFFFF)
                if owner and (same or 1 << 22 <= tid <= 1 << 30):
                    obj = mutex
                    if not same:
                        owner = 0
            elif what.startswith("rwlock") and number(obj, 4) & 1:
                tid = number(obj + l["rwlock.tid"], 4)
                owner = next((f.record for f in by_record.values() if f.id == tid), 0)
            elif what == "descriptor":  # a number, and no address; -1 in a poll of none
                what, obj = "a signal, or the end of its time" if obj >> 63 else f"descriptor {obj}", 0
        except gdb.MemoryError:
            pass
        return what, obj, owner

    def title(self):
        return f"fiber {self.id}" + (" (main)" if self.main else "") + (f" '{self.name}'" if self.name else "")

    def describe(self, by_record):
        if self.thread:
            return f"running on thread {self.thread.num}"
        if self.state != PARKED:
            return STATES[self.state]
        what, obj, owner = self.wait(by_record)
        if obj and obj == owner:
            s = "waits for the end of "
        else:
            s = "waits for " + what + (f" {obj:#x}" + symbol(obj) if obj else "") + (" held by " if owner else "")
        if owner == self.record:
            s += "itself"
        elif owner:
            s += by_record[owner].title() if owner in by_record else "one that has ended"
        return s + f" ({text(self.file)}:{self.line})"


def symbol(address):
    m = re.match(r"(.+) in section ", gdb.execute(f"info symbol {address:#x}", to_string=True))
    return f" <{m.group(1)}>" if m else ""


def thread_pointers():
    """Returns all threads by thread pointer. That tells which fiber a thread runs, whatever the fiber's state says at this moment."""
    before, frame = gdb.selected_thread(), None
    try:
        frame = gdb.selected_frame()
    except gdb.error:
        pass
    found = {}
    for t in gdb.selected_inferior().threads():
        try:
            t.switch()
            for register in ("$fs_base", "$tpidr"):
                value = gdb.parse_and_eval(register)
                if value.type.code != gdb.TYPE_CODE_VOID:
                    found[int(value) & (1 << 64) - 1] = t
        except gdb.error:
            pass  # the thread is running
    if before:
        before.switch()
        if frame and frame.is_valid():
            frame.select()
    return found


def all_fibers():
    l = layout()
    view = Unwinder.the.suspend()
    try:
        running = thread_pointers()
    finally:
        Unwinder.the.view = view
        gdb.invalidate_cached_frames()
    fibers = []
    size = l["record.size"]

    def add(record, data):
        f = Fiber(record, data, l)
        if f.state == DONE:
            return
        f.main = record == main
        if f.kernel:
            f.thread = next((t for t in gdb.selected_inferior().threads() if t.ptid[1] == t.ptid[0]), None) if f.main else None
        else:
            f.thread = running.get(f.tp)
        fibers.append(f)

    main = number(l["main_fiber"])
    if main and not number(main + l["record.block"]):
        add(main, read(main, size))
    per_extent = l["extent.records"]
    for c in range(number(l["chunk_count"], 4)):
        chunk = l["chunks"] + c * l["chunk.size"]
        records, extents = number(chunk + l["chunk.records"]), number(chunk + l["chunk.extents"])
        blocks = number(chunk + l["chunk.blocks"], 4)
        for e in range(number(chunk + l["chunk.opened"], 4)):
            n = min(per_extent, blocks - e * per_extent)
            if number(extents + e * l["extent.size"] + l["extent.unborn"]) == (1 << n) - 1:
                continue
            first = records + e * per_extent * size
            data = read(first, n * size)
            for i in range(n):
                add(first + i * size, data[i * size:(i + 1) * size])
    fibers.sort(key=lambda f: (not f.main, f.id))
    return fibers


def find(fibers, wanted):
    for f in fibers:
        if wanted == str(f.id) or (f.name and wanted == f.name) or (f.main and wanted == "main"):
            return f
    raise gdb.GdbError(f"There is no fiber {wanted}.")


class Unwinder(gdb.unwinder.Unwinder):
    """Puts the frames of the selected fiber in place of those of the thread that was selected with it."""

    the = None

    def __init__(self):
        super().__init__("fiberthread")
        self.view = None  # (fiber, thread, its pc, its sp, the saved registers)
        self.types = {}   # of registers
        self.past_main = False  # whether we have set gdb's "backtrace past-main"

    def suspend(self):
        view, self.view = self.view, None
        if self.past_main:
            self.past_main = False
            gdb.set_parameter("backtrace past-main", False)
        gdb.invalidate_cached_frames()
        return view

    def look_at(self, fiber):
        self.suspend()
        if fiber.thread:
            fiber.thread.switch()
            return
        frame = gdb.newest_frame()
        names = {"pc": "rip", "sp": "rsp"} if frame.architecture().name().startswith("i386") else {}
        saved = [(names.get(n, n), value) for n, value in fiber.registers().items()]
        for name, _ in saved:
            if name not in self.types:
                self.types[name] = frame.read_register(name).type
        self.view = (fiber, gdb.selected_thread(), frame.pc(), int(frame.read_register("sp")),
                     [(name, gdb.Value(value).cast(self.types[name])) for name, value in saved])
        gdb.invalidate_cached_frames()
        frame = self.first_frame()
        if not frame:
            self.suspend()
            raise gdb.GdbError(f"The stack of {fiber.title()} cannot be read.")
        frame.select()

    @staticmethod
    def first_frame():
        """Returns the fiber's first frame. It follows the thread's newest frame, which may have inlined calls."""
        frame = gdb.newest_frame()
        while frame and frame.type() == gdb.INLINE_FRAME:
            frame = frame.older()
        if frame and not frame.older() and frame.name() == "main" and not gdb.parameter("backtrace past-main"):
            # By default a backtrace ends at main. The frames below it are the fiber's now.
            gdb.set_parameter("backtrace past-main", True)
            Unwinder.the.past_main = True
            return Unwinder.first_frame()
        return frame and frame.older()

    def active(self):
        """Returns the selected fiber if it is a parked one, else None."""
        if not self.view:
            return None
        thread = gdb.selected_thread()
        return self.view[0] if thread and self.view[1].is_valid() and thread.ptid == self.view[1].ptid else None

    class FrameId:
        def __init__(self, sp, pc):
            self.sp, self.pc = sp, pc

    def __call__(self, pending):
        if not self.active():
            return None
        fiber, _, pc, sp, registers = self.view
        if pending.read_register("sp") != sp or pending.read_register("pc") != pc:
            return None
        info = pending.create_unwind_info(self.FrameId(gdb.Value(fiber.sp), gdb.Value(pc)))
        for name, value in registers:
            info.add_saved_register(name, value)
        return info


class HideThread:
    """Leaves the thread's own frames out of the backtrace of the fiber that is shown in its place."""

    def __init__(self):
        self.name = "fiberthread"
        self.priority = 1000
        self.enabled = True
        gdb.frame_filters[self.name] = self

    def filter(self, frames):
        if Unwinder.the.active():
            level = Unwinder.the.first_frame().level()
            frames = itertools.dropwhile(lambda f: f.inferior_frame().level() < level, frames)
        return frames


def run_in(fiber, command):
    """Runs a command in `fiber`, restores the selection, and returns what the command printed."""
    unwinder = Unwinder.the
    before, view = gdb.selected_thread(), unwinder.view
    try:
        unwinder.look_at(fiber)
        # Take the output as one string, as "thread apply" does. Else gdb writes each word by itself, which takes a third of the time.
        return gdb.execute(command, to_string=True)
    finally:
        unwinder.suspend()
        if before and before.is_valid():
            before.switch()
        unwinder.view = view
        gdb.invalidate_cached_frames()
        if unwinder.active():
            unwinder.first_frame().select()


class InfoFibers(gdb.Command):
    """Show all fibers of a program that runs on libfiberthread.so.
A star marks the selected fiber."""

    def __init__(self):
        super().__init__("info fibers", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        fibers = all_fibers()
        by_record = {f.record: f for f in fibers}
        active = Unwinder.the.active()
        thread = gdb.selected_thread()
        for f in fibers:
            here = f.record == active.record if active else f.thread is not None and thread is not None and f.thread.ptid == thread.ptid
            start = f", started at{symbol(f.start) or f' {f.start:#x}'}" if f.start else ""
            print(f"{'*' if here else ' '} {f.title()}{start}: {f.describe(by_record)}{', bound' if f.bound else ''}")


class FiberCommand(gdb.Command):
    """Select a fiber: fiber ID [COMMAND].
ID is a number or a name as in "info fibers", or "main". With a command, run it in that fiber and keep the selection."""

    def __init__(self):
        super().__init__("fiber", gdb.COMMAND_STACK, prefix=True)

    def invoke(self, argument, from_tty):
        wanted, _, command = argument.strip().partition(" ")
        fibers = all_fibers()
        by_record = {f.record: f for f in fibers}
        if not wanted:
            active, thread = Unwinder.the.active(), gdb.selected_thread()
            for f in fibers:
                if f.record == active.record if active else f.thread and thread and f.thread.ptid == thread.ptid:
                    print(f"{f.title()}: {f.describe(by_record)}")
                    return
            print("The selected thread runs no fiber.")
            return
        f = find(fibers, wanted)
        if command.strip():
            print(run_in(f, command), end="")
            return
        Unwinder.the.look_at(f)
        print(f"{f.title()}: {f.describe(by_record)}")
        gdb.execute("frame")


class FiberApply(gdb.Command):
    """Run a command in fibers: fiber apply all|ID... COMMAND."""

    def __init__(self):
        super().__init__("fiber apply", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        fibers = all_fibers()
        by_record = {f.record: f for f in fibers}
        words = argument.split()
        chosen = []
        if words[:1] == ["all"]:
            chosen, words = fibers, words[1:]
        else:
            while words and (words[0].isdigit() or words[0] == "main" or any(f.name == words[0] for f in fibers)):
                chosen.append(find(fibers, words.pop(0)))
        if not chosen or not words:
            raise gdb.GdbError("usage: fiber apply all|ID... COMMAND")
        for f in chosen:
            try:
                said = run_in(f, " ".join(words))
            except gdb.error as e:
                said = f"{e}\n"
            print(f"\n{f.title()}: {f.describe(by_record)}\n{said}", end="")


def forget(_):
    Unwinder.the.suspend()


if Unwinder.the is None:
    Unwinder.the = Unwinder()
    gdb.unwinder.register_unwinder(None, Unwinder.the, replace=True)
    HideThread()
    InfoFibers()
    FiberCommand()
    FiberApply()
    gdb.events.cont.connect(forget)
    gdb.events.exited.connect(forget)
