"""Work-sharing thread pool with a generation-tagged state word, in LLVM IR.

Python enters `numus_worker`, in which every worker thread lives, and `numus_run`
(`launch_source`), which submits a command buffer.

A launch opens by writing its job and then the state word: a generation, a closed bit, the number of
workers inside. A worker enters with a compare-and-swap while the word is open, takes chunks of
blocks off an atomic counter (guided self-scheduling: chunks shrink towards the end), and leaves
with a decrement. The caller works too, then closes the word and waits until nobody is inside; late
workers find it closed, so nothing ever waits for a thread to be scheduled.

Idle workers spin for some microseconds, then sleep. `SHARE_FROM` and `WAKE_FROM` are the durations
from which sharing a launch, and waking threads for it, pays.
"""

from __future__ import annotations

import sys

from numus.codegen.cpu.target import LlvmTarget
from numus.runtime.cpu import launch_source
from numus.runtime.pycall.llvm_macros import clock, expand

# Words (of 8 bytes) of the pool's shared memory; contended ones have a cache line to themselves.
STATE = 0  # generation << 17 | closed << 16 | workers inside
NEXT = 16  # the next block to be taken
JOB = 32  # the open launch, see `OPEN`
SLEEPERS = 48
LIMIT = 49  # workers with this id or a higher one exit; 0 ends all
SPINS = 50  # iterations of an idle worker before it sleeps
THREADS = 51  # that may share a launch, the caller's included
SHARE_FROM = 52  # ticks from which launches are shared with workers that are awake
WAKE_FROM = 53  # ticks from which sleeping workers are woken
STARTED = 54  # running threads, the caller's included; 0: not started
LOCK = 64  # 1 while a caller uses the pool
CALLS = 80  # addresses of system functions, see `SYSTEM`
MUTEX = 96
CONDITION = 112
WORDS = 160

CLOSED = 1 << 16
GENERATION = 17

# System functions by which threads yield, sleep and wake.
SYSTEM = ("yield", "lock", "unlock", "wait", "broadcast")
if sys.platform == "win32":
    SYSTEM = ("yield", "wait", "wake")

# Words of the open launch.
OPEN = (
    *("function", "buffers", "scalars", "grid"),
    "parts",  # a chunk is this fraction of the remaining blocks
    *("threads", "share"),  # upper bound of workers, blocks per thread
    "joined",  # whether any worker did
)

SYMBOLS = ("numus_run", "numus_worker", "numus_wake", "numus_spin", "numus_repeat", "numus_ticks")


def pause(target: LlvmTarget) -> str:
    """The spin-loop hint of the target."""
    hint = {"x86": "pause", "arm": "isb"}.get(target.arch)
    return f'call void asm sideeffect "{hint}", ""()' if hint else ""


def source(target: LlvmTarget) -> str:
    """The module with the functions named in `SYMBOLS`."""
    sleep = _SLEEP_WINDOWS if sys.platform == "win32" else _SLEEP_POSIX
    words = "STATE NEXT JOB SLEEPERS LIMIT SPINS THREADS SHARE_FROM WAKE_FROM LOCK CALLS MUTEX"
    offsets = {name: globals()[name] for name in [*words.split(), "CONDITION"]}
    text = expand(
        _COMMON + sleep + launch_source.SOURCE,
        **{"OPEN": OPEN, "SYSTEM": SYSTEM, **offsets},
        CLOSED=CLOSED,
        GENERATION=GENERATION,
        PAUSE=pause(target),
    )
    return f'target triple = "{target.triple}"\n' + text + clock(target)


_COMMON = """
; Take chunks of the open launch until none are left.
define internal void @work(ptr %pool, i64 %id) {
entry:
  %job = getelementptr i64, ptr %pool, i64 $JOB$
  ?%fn = ptr OPEN.function of %job
  ?%buffers = ptr OPEN.buffers of %job
  ?%scalars = ptr OPEN.scalars of %job
  ?%grid = i64 OPEN.grid of %job
  ?%parts = i64 OPEN.parts of %job
  ?%share = i64 OPEN.share of %job
  %worker = or i64 %share, %id
  %next = getelementptr i64, ptr %pool, i64 $NEXT$
  br label %loop
loop:
  %taken = load atomic i64, ptr %next monotonic, align 8
  %left = sub i64 %grid, %taken
  %any = icmp sgt i64 %left, 0
  br i1 %any, label %take, label %done
take:
  %part = udiv i64 %left, %parts
  %chunk = call i64 @llvm.umax.i64(i64 %part, i64 1)
  %begin = atomicrmw add ptr %next, i64 %chunk monotonic
  %more = icmp slt i64 %begin, %grid
  br i1 %more, label %run, label %done
run:
  %sum = add i64 %begin, %chunk
  %past = icmp slt i64 %sum, %grid
  %end = select i1 %past, i64 %sum, i64 %grid
  call void %fn(i64 %begin, i64 %end, i64 %worker, ptr %buffers, ptr %scalars)
  br label %loop
done:
  ret void
}

define void @numus_spin(i64 %count) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  $PAUSE$
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}

define void @numus_worker(ptr %pool, i64 %id) {
entry:
  %state = getelementptr i64, ptr %pool, i64 $STATE$
  %limit = getelementptr i64, ptr %pool, i64 $LIMIT$
  %spins = getelementptr i64, ptr %pool, i64 $SPINS$
  br label %look
look:
  %seen = phi i64 [ -1, %entry ], [ %gen, %close ], [ %gen, %leave ], [ %seen, %retry ],
                  [ %seen1, %wait ], [ %seen1, %sleep ]
  %spun = phi i64 [ 0, %entry ], [ 0, %close ], [ 0, %leave ], [ %spun, %retry ],
                  [ %spun1, %wait ], [ 0, %sleep ]
  %now = load atomic i64, ptr %state acquire, align 8
  %gen = lshr i64 %now, $GENERATION$
  %new = icmp ne i64 %gen, %seen
  br i1 %new, label %fresh, label %idle
fresh:
  %bit = and i64 %now, $CLOSED$
  %closed = icmp ne i64 %bit, 0
  br i1 %closed, label %close, label %enter
close:
  br label %look
enter:
  %inside = add i64 %now, 1
  %swap = cmpxchg ptr %state, i64 %now, i64 %inside acq_rel acquire
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %entered, label %retry
retry:
  br label %look
entered:
  %job = getelementptr i64, ptr %pool, i64 $JOB$
  ?%most = i64 OPEN.threads of %job
  %mine = icmp slt i64 %id, %most
  br i1 %mine, label %work, label %leave
work:
  ?%joined = OPEN.joined of %job
  store atomic i64 1, ptr %joined monotonic, align 8
  call void @work(ptr %pool, i64 %id)
  br label %leave
leave:
  %was = atomicrmw sub ptr %state, i64 1 release
  br label %look
idle:
  %seen1 = phi i64 [ %seen, %look ]
  %last = load atomic i64, ptr %limit monotonic, align 8
  %stay = icmp slt i64 %id, %last
  br i1 %stay, label %decide, label %home
decide:
  %patience = load atomic i64, ptr %spins monotonic, align 8
  %spun1 = add i64 %spun, 1
  %on = icmp slt i64 %spun1, %patience
  br i1 %on, label %wait, label %sleep
wait:
  $PAUSE$
  br label %look
sleep:
  call void @sleep(ptr %pool, i64 %seen1, i64 %id)
  br label %look
home:
  ret void
}

; One launch, shared with the workers; sleeping ones are woken if `wake`. Returns an upper bound of
; the threads that took part.
define internal i64 @share(
    ptr %pool, ptr %fn, ptr %buffers, ptr %scalars, i64 %grid, i64 %threads, i1 %wake) {
entry:
  %state = getelementptr i64, ptr %pool, i64 $STATE$
  %parts = shl i64 %threads, 2
  %job = getelementptr i64, ptr %pool, i64 $JOB$
  ?OPEN.function of %job = ptr %fn
  ?OPEN.buffers of %job = ptr %buffers
  ?OPEN.scalars of %job = ptr %scalars
  ?OPEN.grid of %job = i64 %grid
  ?OPEN.parts of %job = i64 %parts
  %workers = call i64 @llvm.smin.i64(i64 %threads, i64 %grid)  ; at most one per block
  ?OPEN.threads of %job = i64 %workers
  %per_thread = udiv i64 %grid, %threads
  %share = shl i64 %per_thread, 16
  ?OPEN.share of %job = i64 %share
  ?%joined = OPEN.joined of %job
  store atomic i64 0, ptr %joined monotonic, align 8
  %next = getelementptr i64, ptr %pool, i64 $NEXT$
  store atomic i64 0, ptr %next monotonic, align 8
  %old = load atomic i64, ptr %state monotonic, align 8
  %gen = lshr i64 %old, $GENERATION$
  %gen1 = add i64 %gen, 1
  %open = shl i64 %gen1, $GENERATION$
  store atomic i64 %open, ptr %state seq_cst, align 8
  br i1 %wake, label %count, label %join
count:
  %sleepers_at = getelementptr i64, ptr %pool, i64 $SLEEPERS$
  %sleepers = load atomic i64, ptr %sleepers_at seq_cst, align 8
  %asleep = icmp sgt i64 %sleepers, 0
  br i1 %asleep, label %rouse, label %join
rouse:
  call void @numus_wake(ptr %pool)
  br label %join
join:
  call void @work(ptr %pool, i64 0)
  %shut = atomicrmw or ptr %state, i64 $CLOSED$ acq_rel
  br label %wait
wait:
  %spun = phi i64 [ 0, %join ], [ %spun1, %again ]
  %now = load atomic i64, ptr %state acquire, align 8
  %inside = and i64 %now, 65535
  %empty = icmp eq i64 %inside, 0
  br i1 %empty, label %done, label %still
still:
  $PAUSE$
  %spun1 = add i64 %spun, 1
  %long = icmp sgt i64 %spun1, 4000
  br i1 %long, label %yield, label %again
yield:
  %calls = getelementptr i64, ptr %pool, i64 $CALLS$
  ?%yield_fn = ptr SYSTEM.yield of %calls
  %ignored = call i32 %yield_fn()
  br label %again
again:
  br label %wait
done:
  %others = load atomic i64, ptr %joined monotonic, align 8
  %alone = icmp eq i64 %others, 0
  %busy = select i1 %alone, i64 1, i64 %threads
  ret i64 %busy
}

declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""

_SLEEP_POSIX = """
define internal void @sleep(ptr %pool, i64 %seen, i64 %id) noinline {
entry:
  %state = getelementptr i64, ptr %pool, i64 $STATE$
  %limit = getelementptr i64, ptr %pool, i64 $LIMIT$
  %sleepers = getelementptr i64, ptr %pool, i64 $SLEEPERS$
  %mutex = getelementptr i64, ptr %pool, i64 $MUTEX$
  %condition = getelementptr i64, ptr %pool, i64 $CONDITION$
  %calls = getelementptr i64, ptr %pool, i64 $CALLS$
  ?%lock = ptr SYSTEM.lock of %calls
  ?%unlock = ptr SYSTEM.unlock of %calls
  ?%wait = ptr SYSTEM.wait of %calls
  %r1 = call i32 %lock(ptr %mutex)
  %before = atomicrmw add ptr %sleepers, i64 1 seq_cst
  br label %loop
loop:
  %now = load atomic i64, ptr %state seq_cst, align 8
  %gen = lshr i64 %now, $GENERATION$
  %same = icmp eq i64 %gen, %seen
  %last = load atomic i64, ptr %limit seq_cst, align 8
  %stay = icmp slt i64 %id, %last
  %on = and i1 %same, %stay
  br i1 %on, label %doze, label %up
doze:
  %r2 = call i32 %wait(ptr %condition, ptr %mutex)
  br label %loop
up:
  %after = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  %r3 = call i32 %unlock(ptr %mutex)
  ret void
}

define void @numus_wake(ptr %pool) noinline {
  %mutex = getelementptr i64, ptr %pool, i64 $MUTEX$
  %condition = getelementptr i64, ptr %pool, i64 $CONDITION$
  %calls = getelementptr i64, ptr %pool, i64 $CALLS$
  ?%lock = ptr SYSTEM.lock of %calls
  ?%unlock = ptr SYSTEM.unlock of %calls
  ?%broadcast = ptr SYSTEM.broadcast of %calls
  ; a thread about to wait has done so once the mutex is ours
  %r1 = call i32 %lock(ptr %mutex)
  %r2 = call i32 %unlock(ptr %mutex)
  %r3 = call i32 %broadcast(ptr %condition)
  ret void
}
"""

# WaitOnAddress needs no mutex
_SLEEP_WINDOWS = """
define internal void @sleep(ptr %pool, i64 %seen, i64 %id) noinline {
entry:
  %copy = alloca i64
  %state = getelementptr i64, ptr %pool, i64 $STATE$
  %limit = getelementptr i64, ptr %pool, i64 $LIMIT$
  %sleepers = getelementptr i64, ptr %pool, i64 $SLEEPERS$
  %calls = getelementptr i64, ptr %pool, i64 $CALLS$
  ?%wait = ptr SYSTEM.wait of %calls
  %before = atomicrmw add ptr %sleepers, i64 1 seq_cst
  br label %loop
loop:
  %now = load atomic i64, ptr %state seq_cst, align 8
  %gen = lshr i64 %now, $GENERATION$
  %same = icmp eq i64 %gen, %seen
  %last = load atomic i64, ptr %limit seq_cst, align 8
  %stay = icmp slt i64 %id, %last
  %on = and i1 %same, %stay
  br i1 %on, label %doze, label %up
doze:
  store i64 %now, ptr %copy
  %r = call i32 %wait(ptr %state, ptr %copy, i64 8, i32 -1)
  br label %loop
up:
  %after = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  ret void
}

define void @numus_wake(ptr %pool) noinline {
  %state = getelementptr i64, ptr %pool, i64 $STATE$
  %calls = getelementptr i64, ptr %pool, i64 $CALLS$
  ?%wake = ptr SYSTEM.wake of %calls
  call void %wake(ptr %state)
  ret void
}
"""
