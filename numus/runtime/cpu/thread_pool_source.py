"""Work-sharing thread pool with a generation-tagged state word, in LLVM IR.

Python enters `numus_worker`, in which every worker thread lives, and `numus_run`
(`launch_source`), which submits a command buffer.

A launch opens by writing its job and then the state word: a generation, a closed bit, the number of
active workers. A worker enters with a compare-and-swap while the word is open, takes chunks of
blocks off an atomic counter (guided self-scheduling: chunks shrink towards the end), and leaves
with a decrement. The caller works too, then closes the word and waits until none is active; late
workers find it closed, so nothing ever waits for a thread to be scheduled.

Idle workers spin for some microseconds, then sleep. `share_from` is the work from which sharing a
launch pays, `wake_from` that from which waking threads does: the work of one launch, or of several
that came one after the other while the workers slept (ski rental: the work that was not shared
costs no more than waking them would have). How much work that is depends on how deep an idle core
sleeps: it shrinks after every wake whose worker came in time to take a share, and doubles after one
that came too late.
"""

from __future__ import annotations

import sys

from numus.codegen.cpu.target import LlvmTarget
from numus.runtime.cpu import launch_source
from numus.runtime.llvm_macros import RESOLVE_BUFFERS, clock, expand

# Words (of 8 bytes) of the pool's shared memory; contended ones have a cache line to themselves.
POOL = {
    "state": 0,  # generation << 17 | closed << 16 | active workers
    "next": 16,  # the next block to be taken
    "job": 32,  # the open launch, see `OPEN`
    "sleepers": 48,
    "limit": 49,  # workers with this id or a higher one exit; 0 ends all
    "spins": 50,  # iterations of an idle worker before it sleeps
    "threads": 51,  # that may share a launch, the caller's included
    "share_from": 52,  # ticks from which launches are shared with workers that are awake
    "wake_from": 53,  # ticks from which sleeping workers are woken, and its bounds
    "wake_least": 58,
    "wake_most": 59,
    "started": 54,  # running threads, the caller's included; 0: not started
    "burst": 55,  # ticks between launches up to which they are one burst
    "missed": 56,  # ticks of a burst's launches that no worker joined
    "ended": 57,  # when the last launch did
    "lock": 64,  # 1 while a caller uses the pool
    "calls": 80,  # addresses of system functions, see `SYSTEM`
    "mutex": 96,
    "condition": 112,
}
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
    "worked",  # ticks of the workers that have left
)

SYMBOLS = ("numus_run", "numus_worker", "numus_wake", "numus_spin", "numus_repeat", "numus_ticks")


def pause(target: LlvmTarget) -> str:
    """The spin-loop hint of the target."""
    hint = {"x86": "pause", "arm": "isb"}.get(target.arch)
    return f'call void asm sideeffect "{hint}", ""()' if hint else ""


def source(target: LlvmTarget) -> str:
    """The module with the functions named in `SYMBOLS`."""
    text = expand(
        RESOLVE_BUFFERS + _TEXT + launch_source.TEXT,
        POOL=POOL,
        OPEN=OPEN,
        SYSTEM=SYSTEM,
        CLOSED=CLOSED,
        GENERATION=GENERATION,
        PAUSE=pause(target),
        HEADER=launch_source.HEADER,
        LAUNCH=launch_source.LAUNCH,
        **(_WINDOWS if sys.platform == "win32" else _POSIX),
    )
    return f'target triple = "{target.triple}"\n' + text + clock(target)


_TEXT = """
; Take chunks of the open launch until none are left.
define internal void @work(ptr %pool, i64 %id) {
  ?at job, at next = POOL of %pool
  ?ptr function, ptr buffers, ptr scalars, i64 grid, i64 parts, i64 share = OPEN of %job.at
  %worker = or i64 %share, %id
  br label %loop
loop:
  %taken = load atomic i64, ptr %next.at monotonic, align 8
  %left = sub i64 %grid, %taken
  br sgt i64 %left, 0, label %take, label %done
take:
  %part = udiv i64 %left, %parts
  %chunk = call i64 @llvm.umax.i64(i64 %part, i64 1)
  %begin = atomicrmw add ptr %next.at, i64 %chunk monotonic
  br slt i64 %begin, %grid, label %run, label %done
run:
  %sum = add i64 %begin, %chunk
  %end = call i64 @llvm.smin.i64(i64 %sum, i64 %grid)
  call void %function(i64 %begin, i64 %end, i64 %worker, ptr %buffers, ptr %scalars)
  br label %loop
done:
  ret void
}

define void @numus_spin(i64 %count) {
  for %i in 0..%count
  $PAUSE$
  end
  ret void
}

define void @numus_worker(ptr %pool, i64 %id) {
entry:
  ?at state, at limit, at spins, at job = POOL of %pool
  br label %look
look:
  %seen = phi i64 [ -1, %entry ], [ %gen, %close ], [ %gen, %leave ], [ %seen, %retry ],
                  [ %seen1, %wait ], [ %seen1, %sleep ]
  %spun = phi i64 [ 0, %entry ], [ 0, %close ], [ 0, %leave ], [ %spun, %retry ],
                  [ %spun1, %wait ], [ 0, %sleep ]
  %now = load atomic i64, ptr %state.at acquire, align 8
  %gen = lshr i64 %now, $GENERATION$
  br ne i64 %gen, %seen, label %fresh, label %idle
fresh:
  %closed = and i64 %now, $CLOSED$
  br ne i64 %closed, 0, label %close, label %enter
close:
  br label %look
enter:
  %entering = add i64 %now, 1
  %swap = cmpxchg ptr %state.at, i64 %now, i64 %entering acq_rel acquire
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %entered, label %retry
retry:
  br label %look
entered:
  ?i64 threads, at worked = OPEN of %job.at
  br slt i64 %id, %threads, label %work, label %leave
work:
  %began = call i64 @numus_ticks()
  call void @work(ptr %pool, i64 %id)
  %ended = call i64 @numus_ticks()
  %passed = sub i64 %ended, %began
  %others = atomicrmw add ptr %worked.at, i64 %passed monotonic
  br label %leave
leave:
  %was = atomicrmw sub ptr %state.at, i64 1 release
  br label %look
idle:
  %seen1 = phi i64 [ %seen, %look ]
  %limit = load atomic i64, ptr %limit.at monotonic, align 8
  br slt i64 %id, %limit, label %decide, label %exit
decide:
  %spins = load atomic i64, ptr %spins.at monotonic, align 8
  %spun1 = add i64 %spun, 1
  br slt i64 %spun1, %spins, label %wait, label %sleep
wait:
  $PAUSE$
  br label %look
sleep:
  call void @sleep(ptr %pool, i64 %seen1, i64 %id)
  br label %look
exit:
  ret void
}

; One launch of about `ticks` ticks, shared with the workers; returns the ticks that it took.
define internal i64 @share(
    ptr %pool, ptr %function, ptr %buffers, ptr %scalars, i64 %grid, i64 %threads, i64 %ticks) {
entry:
  ?at state, at job, at next, at sleepers, at missed, at ended, at wake_from = POOL of %pool
  ?at calls = POOL of %pool
  ?i64 wake_from, i64 burst, i64 missed, i64 ended = POOL of %pool
  %parts = shl i64 %threads, 2
  %job.threads = call i64 @llvm.smin.i64(i64 %threads, i64 %grid)  ; at most one per block
  %per_thread = udiv i64 %grid, %threads
  %share = shl i64 %per_thread, 16
  ?OPEN of %job.at = ptr function, ptr buffers, ptr scalars, i64 grid, i64 parts, i64 job.threads
  ?OPEN of %job.at = i64 share
  ?at worked = OPEN of %job.at
  store atomic i64 0, ptr %worked.at monotonic, align 8
  store atomic i64 0, ptr %next.at monotonic, align 8
  %old = load atomic i64, ptr %state.at monotonic, align 8
  %gen = lshr i64 %old, $GENERATION$
  %gen1 = add i64 %gen, 1
  %open = shl i64 %gen1, $GENERATION$
  store atomic i64 %open, ptr %state.at seq_cst, align 8
  %opened = call i64 @numus_ticks()
  %pause = sub i64 %opened, %ended
  %in_burst = icmp ule i64 %pause, %burst
  %before = select i1 %in_burst, i64 %missed, i64 0
  %unshared = call i64 @llvm.uadd.sat.i64(i64 %before, i64 %ticks)
  br uge i64 %unshared, %wake_from, label %count, label %join
count:
  %sleepers = load atomic i64, ptr %sleepers.at seq_cst, align 8
  br sgt i64 %sleepers, 0, label %rouse, label %join
rouse:
  call void @numus_wake(ptr %pool)
  br label %join
join:
  %missed.more = phi i64 [ %before, %entry ], [ 0, %count ], [ 0, %rouse ]
  %woken = phi i1 [ false, %entry ], [ false, %count ], [ true, %rouse ]
  %began = call i64 @numus_ticks()
  call void @work(ptr %pool, i64 0)
  %finished = call i64 @numus_ticks()
  %own = sub i64 %finished, %began
  %shut = atomicrmw or ptr %state.at, i64 $CLOSED$ acq_rel
  br label %wait
wait:
  %spun = phi i64 [ 0, %join ], [ %spun1, %again ]
  %now = load atomic i64, ptr %state.at acquire, align 8
  %active = and i64 %now, 65535
  br eq i64 %active, 0, label %done, label %still
still:
  $PAUSE$
  %spun1 = add i64 %spun, 1
  br sgt i64 %spun1, 4000, label %give_way, label %again
give_way:
  ?ptr yield = SYSTEM of %calls.at
  %ignored = call i32 %yield()
  br label %again
again:
  br label %wait
done:
  %others = load atomic i64, ptr %worked.at monotonic, align 8
  %work = add i64 %own, %others
  %alone = icmp eq i64 %others, 0
  %more = add i64 %missed.more, %own
  %missed.now = select i1 %alone, i64 %more, i64 0
  store i64 %missed.now, ptr %missed.at
  store i64 %finished, ptr %ended.at
  br i1 %woken, label %learn, label %return
learn:
  ?i64 wake_least, i64 wake_most = POOL of %pool
  %eighth = lshr i64 %work, 3
  %in_time = icmp ugt i64 %others, %eighth
  %part = lshr i64 %wake_from, 3
  %shorter = sub i64 %wake_from, %part
  %longer = shl i64 %wake_from, 1
  %least = call i64 @llvm.umax.i64(i64 %shorter, i64 %wake_least)
  %most = call i64 @llvm.umin.i64(i64 %longer, i64 %wake_most)
  %learnt = select i1 %in_time, i64 %least, i64 %most
  store i64 %learnt, ptr %wake_from.at
  br label %return
return:
  ret i64 %work
}

declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.uadd.sat.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

; Wait until the generation changes or the worker is dismissed.
define internal void @sleep(ptr %pool, i64 %seen, i64 %id) noinline {
  %copy = alloca i64
  ?at state, at limit, at sleepers, at mutex, at condition, at calls = POOL of %pool
  $ENTER$
  %before = atomicrmw add ptr %sleepers.at, i64 1 seq_cst
  br label %loop
loop:
  %now = load atomic i64, ptr %state.at seq_cst, align 8
  %gen = lshr i64 %now, $GENERATION$
  %same = icmp eq i64 %gen, %seen
  %limit = load atomic i64, ptr %limit.at seq_cst, align 8
  %stay = icmp slt i64 %id, %limit
  %on = and i1 %same, %stay
  br i1 %on, label %doze, label %up
doze:
  $WAIT$
  br label %loop
up:
  %after = atomicrmw sub ptr %sleepers.at, i64 1 seq_cst
  $LEAVE$
  ret void
}

define void @numus_wake(ptr %pool) noinline {
  ?at state, at mutex, at condition, at calls = POOL of %pool
  $WAKE$
  ret void
}
"""

# How workers sleep and wake. A thread about to wait has done so once the mutex is the waker's.
_POSIX = {
    "ENTER": """?ptr lock, ptr unlock, ptr wait = SYSTEM of %calls.at
  %locked = call i32 %lock(ptr %mutex.at)""",
    "WAIT": "%woken = call i32 %wait(ptr %condition.at, ptr %mutex.at)",
    "LEAVE": "%unlocked = call i32 %unlock(ptr %mutex.at)",
    "WAKE": """?ptr lock, ptr unlock, ptr broadcast = SYSTEM of %calls.at
  %r1 = call i32 %lock(ptr %mutex.at)
  %r2 = call i32 %unlock(ptr %mutex.at)
  %r3 = call i32 %broadcast(ptr %condition.at)""",
}
_WINDOWS = {  # WaitOnAddress needs no mutex
    "ENTER": "?ptr wait = SYSTEM of %calls.at",
    "WAIT": """store i64 %now, ptr %copy
  %woken = call i32 %wait(ptr %state.at, ptr %copy, i64 8, i32 -1)""",
    "LEAVE": "",
    "WAKE": """?ptr wake = SYSTEM of %calls.at
  call void %wake(ptr %state.at)""",
}
