"""
LLVM IR for a team of threads: a barrier, the loop of a worker, and the call that runs a job.

A team is `TEAM_BYTES` bytes of zeroed memory that its threads share, at an address that is a
multiple of 64. `THREADS` is written once, before the first worker starts; native code writes the
rest. Each word that threads wait for or count in sits in a cache line of its own.

A job is `void job(ptr ctx, i64 tid, i64 threads)` with tid in [0, threads). Its own barriers and
the one that ends it are the same: every thread of the team must reach each of them.
"""

from __future__ import annotations

from rlx.lowering.emitter import Function, Module
from rlx.lowering.values import Value, i32, i64

ARRIVED = 0
"""i32: threads that have reached the barrier and wait in it."""
GENERATION = 64
"""i32, i32: barriers passed, modulo 2**32, which is a futex, and the CPU of the last that came."""
BARRIER_SLEEPERS = 128
"""i32, i32: threads that may be asleep on `GENERATION`, and whether they shared a CPU, as below."""
EPOCH = 192
"""i32, i32: jobs published, modulo 2**32, which is a futex, and the CPU of who published."""
IDLE_SLEEPERS = 256
"""i32, i32: workers that may be asleep on `EPOCH`, and whether they shared a CPU, as below."""
JOB = 320
"""ptr: the job of this epoch; null tells the workers to return."""
CONTEXT = 328
"""ptr: the job's argument."""
THREADS = 336
"""i64: threads in the team, the caller of `run` included."""
STARTED = 344
"""i64: whether the workers have started; a forked child has none yet."""
TURN = 384
"""i32, i32: a lock, for callers of `run` take turns, and how many wait for it."""
TEAM_BYTES = 448

SPINS = 1024
"""
Pauses before a thread sleeps: 20 to 50 us, as a pause takes 20 to 50 ns by the CPU.

Threads that sleep pay 10 to 40 us. Where a team's thread awoke on another CPU than that of the
thread that woke it, it spins for longer from then on; where on the same, it lets that one have it.
"""
_SPINS_APART, _SPINS_TOGETHER = 4096, 64

_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}
_NULL = Value("ptr", "null")


def emit_barrier(module: Module) -> str:
    """
    Define `void barrier(ptr team, i64 threads)`, unless the module has it, and return its name.

    All `threads` threads return from it after the last of them called it, and then see what each
    of them wrote before its call, with non-temporal stores too: x86's atomics order those.
    A waiting thread spins, `SPINS` tells how long, then sleeps.
    """
    if module.defines("barrier"):
        return "barrier"
    _emit_wait(module)
    _emit_arrive(module)
    f = module.function("leave", [("ptr", "team"), ("i32", "seen")])
    team, seen = f.params
    _await(f, f.at(team, GENERATION), seen, f.at(team, BARRIER_SLEEPERS))
    f.ret()
    f = module.function("barrier", [("ptr", "team"), ("i64", "threads")])
    team, threads = f.params
    f.call("leave", "void", team, f.call("arrive", "i32", team, threads))
    f.ret()
    return "barrier"


def _emit_arrive(module: Module) -> None:
    """
    Define `i32 arrive(ptr team, i64 threads)`: the first half of a barrier.

    What it returns is for `void leave(ptr team, i32 seen)`, the other half.
    """
    f = module.function("arrive", [("ptr", "team"), ("i64", "threads")], result="i32")
    team, threads = f.params
    generation = f.at(team, GENERATION)
    # Read before arriving: it cannot change until this thread has arrived too.
    seen = f.load_atomic("i32", generation, "monotonic")

    def meet() -> list[Value]:
        before = f.atomic_rmw("add", f.at(team, ARRIVED), i32(1), "acq_rel")
        last = f.icmp("eq", f.cast("zext", before, "i64"), f.sub(threads, 1))

        def release() -> list[Value]:
            f.store_atomic(i32(0), f.at(team, ARRIVED), "monotonic")
            _advance(f, generation, f.at(team, BARRIER_SLEEPERS))
            return []

        f.if_(last, release)
        return [seen]

    # A thread alone has nobody to wait for: any other generation is past.
    f.ret(*f.if_(f.icmp("ne", threads, 1), meet, lambda: [f.sub(seen, 1)]))


def emit_team(module: Module) -> None:
    """
    Define and export `void worker(ptr team, i64 tid)`, `void run(ptr team, ptr job, ptr ctx)`, and
    `void lock(ptr lock)` and `void unlock(ptr lock)` for what Python and compiled code both change.

    A worker (tid from 1) runs job after job until one is null. `run` is called by thread 0: it
    runs its share of the job and returns when all have done theirs; callers take turns. A job may
    be published before its workers have started; `run` then waits for them.
    """
    barrier = emit_barrier(module)
    _emit_worker(module, barrier)
    _emit_run(module, barrier)
    for name, emit in (("lock", lock), ("unlock", unlock)):
        f = module.function(name, [("ptr", "lock")], exported=True)
        emit(f, f.params[0])
        f.ret()


def _emit_worker(module: Module, barrier: str) -> None:
    f = module.function("worker", [("ptr", "team"), ("i64", "tid")], exported=True)
    team, tid = f.params
    threads = f.load("i64", f.at(team, THREADS), align=8)
    job = Value("ptr", "%job")

    def next_job(epoch: list[Value]) -> Value:
        _await(f, f.at(team, EPOCH), epoch[0], f.at(team, IDLE_SLEEPERS))
        f.line(f"{job.name} = load ptr, ptr {f.at(team, JOB).name}, align 8")
        return f.icmp("ne", job, _NULL)

    def work(epoch: list[Value]) -> list[Value]:
        f.call_pointer(job, "void", f.load("ptr", f.at(team, CONTEXT), align=8), tid, threads)
        f.call(barrier, "void", team, threads)
        # Counted here, not read again: the next job may be published already.
        return [f.add(epoch[0], 1)]

    f.while_([i32(0)], next_job, work)
    f.ret()


def _emit_run(module: Module, barrier: str) -> None:
    params = [("ptr", "team"), ("ptr", "job"), ("ptr", "ctx")]
    f = module.function("run", params, exported=True)
    team, job, ctx = f.params
    threads = f.load("i64", f.at(team, THREADS), align=8)
    lock(f, f.at(team, TURN))
    f.store(job, f.at(team, JOB), align=8)
    f.store(ctx, f.at(team, CONTEXT), align=8)
    _advance(f, f.at(team, EPOCH), f.at(team, IDLE_SLEEPERS))

    def work() -> list[Value]:
        f.call_pointer(job, "void", ctx, i64(0), threads)
        f.call(barrier, "void", team, threads)
        return []

    f.if_(f.icmp("ne", job, _NULL), work)
    unlock(f, f.at(team, TURN))
    f.ret()


def try_lock(f: Function, lock: Value) -> Value:
    """Emit: take a lock, 8 bytes; return whether it was free."""
    return f.icmp("eq", f.atomic_rmw("xchg", lock, i32(1)), 0)


def lock(f: Function, lock: Value) -> None:
    """Emit: take a lock as soon as it is free; who waits long sleeps."""

    def taken(_: list[Value]) -> Value:
        return f.icmp("ne", f.atomic_rmw("xchg", lock, i32(1)), 0)

    def wait(_: list[Value]) -> list[Value]:
        f.call("wait", "i1", lock, i32(1), f.at(lock, 4), i64(SPINS))
        return []

    f.while_([], taken, wait)


def unlock(f: Function, lock: Value) -> None:
    """Emit: give a lock back, and wake those that sleep for it."""
    f.atomic_rmw("xchg", lock, i32(0))
    _wake(f, lock, f.at(lock, 4))


def _advance(f: Function, word: Value, sleepers: Value) -> None:
    """
    Emit: add 1 to a word that threads wait on, and wake those that sleep.

    Sequentially consistent on both sides: either this thread sees the count that a sleeper raised,
    or the sleeper's futex call sees the new word and returns.
    """
    if _tells_cpu(f):
        f.store_atomic(f.call("sched_getcpu", "i32"), f.at(word, 4), "monotonic")
    f.atomic_rmw("add", word, i32(1))
    _wake(f, word, sleepers)


def _wake(f: Function, word: Value, sleepers: Value) -> None:
    """Emit: wake those that sleep on a word."""
    asleep = f.icmp("ne", f.load_atomic("i32", sleepers, "seq_cst"), 0)

    def wake() -> list[Value]:
        _futex(f, word, _FUTEX_WAKE_PRIVATE, i64(2**31 - 1))
        return []

    f.if_(asleep, wake)


def _await(f: Function, word: Value, seen: Value, sleepers: Value) -> None:
    """Emit: wait until a word that `_advance` counts isn't `seen`."""
    if not _tells_cpu(f):
        f.call("wait", "i1", word, seen, sleepers, i64(SPINS))
        return
    shares = f.at(sleepers, 4)
    together = f.icmp("ne", f.load_atomic("i32", shares, "monotonic"), 0)
    spins = f.select(together, i64(_SPINS_TOGETHER), i64(_SPINS_APART))
    slept = f.call("wait", "i1", word, seen, sleepers, spins)

    def look() -> list[Value]:
        waker = f.load_atomic("i32", f.at(word, 4), "monotonic")
        same = f.icmp("eq", f.call("sched_getcpu", "i32"), waker)
        f.store_atomic(f.cast("zext", same, "i32"), shares, "monotonic")
        return []

    f.if_(slept, look)


def _tells_cpu(f: Function) -> bool:
    """Return whether the system's C library tells a thread which CPU it is on."""
    return "linux" in f.target.triple


def _emit_wait(module: Module) -> None:
    """
    Define `i1 wait(ptr word, i32 seen, ptr sleepers, i64 spins)`: return when the word isn't
    `seen`, and whether it slept.
    """
    params = [("ptr", "word"), ("i32", "seen"), ("ptr", "sleepers"), ("i64", "spins")]
    f = module.function("wait", params, result="i1")
    word, seen, sleepers, spins = f.params

    def unchanged() -> Value:
        return f.icmp("eq", f.load_atomic("i32", word), seen)

    def spin(v: list[Value]) -> list[Value]:
        _pause(f)
        return [f.add(v[0], 1)]

    def sleep() -> list[Value]:
        f.atomic_rmw("add", sleepers, i32(1))
        f.while_([], lambda _: unchanged(), nap)
        f.atomic_rmw("sub", sleepers, i32(1))
        return []

    def nap(_: list[Value]) -> list[Value]:
        _futex(f, word, _FUTEX_WAIT_PRIVATE, f.cast("zext", seen, "i64"))
        return []

    f.while_([i64(0)], lambda v: f.and_(unchanged(), f.icmp("ult", v[0], spins)), spin)
    sleeps = unchanged()
    f.if_(sleeps, sleep)
    f.ret(sleeps)


def _pause(f: Function) -> None:
    """Emit a short delay that frees the core's resources for its other hardware thread."""
    if architecture(f) == "x86_64":
        f.intrinsic("x86.sse2.pause", "void")
    elif architecture(f) == "aarch64":
        # `yield` does nothing on most cores; an instruction barrier takes some ten nanoseconds.
        f.intrinsic("aarch64.isb", "void", i32(15), suffixes=[])


def _futex(f: Function, word: Value, operation: int, value: Value) -> None:
    """Emit a futex call; where there is no futex a sleeper polls, and waking it is nothing."""
    number = _SYS_FUTEX.get(architecture(f))
    if "linux" in f.target.triple and number is not None:
        args = (word, i64(operation), value, _NULL, _NULL, i64(0))
        f.call("syscall", "i64", i64(number), *args)
    elif operation == _FUTEX_WAIT_PRIVATE and "windows" in f.target.triple:
        f.call("Sleep", "void", i32(1))
    elif operation == _FUTEX_WAIT_PRIVATE:
        f.call("usleep", "i32", i32(100))


def architecture(f: Function) -> str:
    """Return the instruction set that a function is for, by one name for each."""
    name = f.target.triple.split("-", maxsplit=1)[0]
    return "aarch64" if name == "arm64" else name
