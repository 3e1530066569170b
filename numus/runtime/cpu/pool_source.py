"""The native side of the worker pool, in LLVM IR.

Two functions are entered from Python: `numus_worker`, in which every worker thread lives, and
`numus_run`, which runs a list of launches one after the other without coming back in between.

A launch is opened by writing its job and then the state word: a generation number, a bit that says
closed, and how many workers are inside. A worker enters by adding one to the word while it is open,
takes chunks of blocks off a counter until none are left, and leaves by taking one off. The caller
takes chunks as well, then closes the word and waits until nobody is inside. A worker that wakes up
too late finds the word closed and keeps out, so nothing ever waits for a thread to be scheduled.

Launches that don't depend on each other form a wave, which is opened as one: their blocks are
numbered through.

Chunks shrink as the end comes near, so that all threads finish together.

Idle workers spin for some microseconds, then sleep until they are woken. Handing blocks to another
core has a price, waking a thread a higher one, so every launch remembers how long it took the last
time: short ones are run by their caller, and only longer ones are worth waking anybody for.
"""

from __future__ import annotations

import sys

from numus.runtime.cpu.target import Target
from numus.runtime.native_text import PLACE, written_out

# Words (of 8 bytes) of the pool's shared memory; what is written often has a line to itself.
STATE = 0  # generation << 17 | closed << 16 | workers inside
NEXT = 16  # the next block to be taken
JOB = 32  # the open launch, see `OPEN`
SLEEPERS = 48
LIMIT = 49  # workers with an id from here on go home; 0 ends all
SPINS = 50  # how long an idle worker spins before it sleeps
THREADS = 51  # how many threads, the caller's included, may share a launch
SHARE_FROM = 52  # ticks of work from which on launches are shared with workers that are awake
WAKE_FROM = 53  # and from which on sleeping workers are woken
STARTED = 54  # how many threads have been started, the caller's included; 0: to be started first
LOCK = 64  # 1 while a caller uses the pool
CALLS = 80  # addresses of the system's functions, see `SYSTEM`
MUTEX = 96
CONDITION = 112
WORDS = 160

CLOSED = 1 << 16
GENERATION = 17

# Words of the system's functions, by which threads yield, sleep and wake.
SYSTEM = ("yield", "lock", "unlock", "wait", "broadcast")
if sys.platform == "win32":
    SYSTEM = ("yield", "wait", "wake")

# Words of the open launch.
OPEN = (
    *("function", "buffers", "scalars", "grid"),
    "parts",  # of what is left, so many make a chunk
    *("threads", "share"),  # how many may take part, and the share of one
    "joined",  # whether any worker did
)

# Words of what `numus_run` is given, and of each launch in it.
IMAGE = ("pool", "launches", "count", "slots", "threads")
LAUNCH = (
    *("function", "buffers", "places", "buffer_count", "parameters"),
    "together",  # how many launches, from this one on, may run at the same time
    *("end", "share"),  # filled in by `wave`: the blocks up to here, the share of a thread
    "ticks",  # what its blocks took all together the last time; UNKNOWN before
)
UNKNOWN = -1  # as a number without sign: long

SYMBOLS = ("numus_run", "numus_worker", "numus_wake", "numus_spin", "numus_repeat", "numus_ticks")


def pause(target: Target) -> str:
    """Tells the core that this is a spin loop."""
    hint = {"x86": "pause", "arm": "isb"}.get(target.arch)
    return f'call void asm sideeffect "{hint}", ""()' if hint else ""


def ticks(target: Target) -> str:
    """A function that reads a clock which goes evenly; 0 where there is none that is cheap."""
    clock = {
        "x86": "call i64 @llvm.readcyclecounter()",
        "arm": 'call i64 asm sideeffect "mrs $0, cntvct_el0", "=r"()',
    }.get(target.arch, "add i64 0, 0")
    return f"""
define i64 @numus_ticks() {{
  %now = {clock}
  ret i64 %now
}}
declare i64 @llvm.readcyclecounter()
"""


def source(target: Target) -> str:
    """The module with the functions named in `SYMBOLS`."""
    sleep = _SLEEP_WINDOWS if sys.platform == "win32" else _SLEEP_POSIX
    text = written_out(_COMMON + sleep, OPEN=OPEN, IMAGE=IMAGE, LAUNCH=LAUNCH, SYSTEM=SYSTEM)
    text = PLACE + text + ticks(target)
    words = "STATE NEXT JOB SLEEPERS LIMIT SPINS THREADS SHARE_FROM WAKE_FROM LOCK CALLS MUTEX"
    for name in [*words.split(), "CONDITION"]:
        text = text.replace(f"${name}$", str(globals()[name]))
    text = text.replace("$CLOSED$", str(CLOSED)).replace("$GENERATION$", str(GENERATION))
    text = text.replace("$RECORD$", str(len(LAUNCH)))
    return f'target triple = "{target.triple}"\n' + text.replace("$PAUSE$", pause(target))


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

define internal void @find_buffers(ptr %launch, ptr %slots) {
  ?%buffers = ptr LAUNCH.buffers of %launch
  ?%places = ptr LAUNCH.places of %launch
  ?%count = i64 LAUNCH.buffer_count of %launch
  call void @place(ptr %buffers, ptr %places, i64 %count, ptr %slots)
  ret void
}

; One launch, shared with the workers: those that sleep are woken if `wake`. Gives the number of
; threads that may have taken part.
define internal i64 @share(
    ptr %pool, ptr %fn, ptr %buffers, ptr %scalars, i64 %grid, i64 %threads, i1 %wake) {
entry:
  %state = getelementptr i64, ptr %pool, i64 $STATE$
  %parts = shl i64 %threads, 2
  %job = getelementptr i64, ptr %pool, i64 $JOB$
  ?%fn.at = OPEN.function of %job
  store ptr %fn, ptr %fn.at
  ?%buffers.at = OPEN.buffers of %job
  store ptr %buffers, ptr %buffers.at
  ?%scalars.at = OPEN.scalars of %job
  store ptr %scalars, ptr %scalars.at
  ?%grid.at = OPEN.grid of %job
  store i64 %grid, ptr %grid.at
  ?%parts.at = OPEN.parts of %job
  store i64 %parts, ptr %parts.at
  %team = call i64 @llvm.smin.i64(i64 %threads, i64 %grid)  ; one for each block at most
  ?%team.at = OPEN.threads of %job
  store i64 %team, ptr %team.at
  %per_thread = udiv i64 %grid, %threads
  %share = shl i64 %per_thread, 16
  ?%share.at = OPEN.share of %job
  store i64 %share, ptr %share.at
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

; Blocks of a wave: `launches` are its records, `last` the number of the last of them.
define internal void @wave(i64 %begin, i64 %end, i64 %worker, ptr %launches, ptr %last) {
entry:
  %id = and i64 %worker, 65535
  %most = ptrtoint ptr %last to i64
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %j, %next ]
  %start = phi i64 [ 0, %entry ], [ %stop, %next ]
  %from = phi i64 [ %begin, %entry ], [ %from1, %next ]
  %at = mul i64 %i, $RECORD$
  %record = getelementptr i64, ptr %launches, i64 %at
  ?%stop = i64 LAUNCH.end of %record
  %here = icmp slt i64 %from, %stop
  br i1 %here, label %run, label %next
run:
  %upto = call i64 @llvm.smin.i64(i64 %end, i64 %stop)
  %first = sub i64 %from, %start
  %past = sub i64 %upto, %start
  ?%fn = ptr LAUNCH.function of %record
  ?%buffers = ptr LAUNCH.buffers of %record
  ?%parameters = ptr LAUNCH.parameters of %record
  %scalars = getelementptr i64, ptr %parameters, i64 1
  ?%share = i64 LAUNCH.share of %record
  %who = or i64 %share, %id
  call void %fn(i64 %first, i64 %past, i64 %who, ptr %buffers, ptr %scalars)
  br label %next
next:
  %from1 = phi i64 [ %from, %look ], [ %upto, %run ]
  %j = add i64 %i, 1
  %left = icmp slt i64 %from1, %end
  %known = icmp sle i64 %j, %most
  %more = and i1 %left, %known
  br i1 %more, label %look, label %done
done:
  ret void
}

; Number the blocks of a wave's launches through; their count.
define internal i64 @number(ptr %launches, i64 %count, ptr %slots, i64 %threads) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %sum = phi i64 [ 0, %entry ], [ %end, %loop ]
  %at = mul i64 %i, $RECORD$
  %record = getelementptr i64, ptr %launches, i64 %at
  call void @find_buffers(ptr %record, ptr %slots)
  ?%parameters = ptr LAUNCH.parameters of %record
  %grid = load i64, ptr %parameters
  %end = add i64 %sum, %grid
  ?%end.at = LAUNCH.end of %record
  store i64 %end, ptr %end.at
  %per_thread = udiv i64 %grid, %threads
  %share = shl i64 %per_thread, 16
  ?%share.at = LAUNCH.share of %record
  store i64 %share, ptr %share.at
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %count
  br i1 %more, label %loop, label %done
done:
  ret i64 %end
}

define void @numus_run(ptr %image) {
entry:
  ?%pool = ptr IMAGE.pool of %image
  ?%launches = ptr IMAGE.launches of %image
  ?%count = i64 IMAGE.count of %image
  ?%slots = ptr IMAGE.slots of %image
  ?%cap = i64 IMAGE.threads of %image
  %threads_at = getelementptr i64, ptr %pool, i64 $THREADS$
  %allowed = load atomic i64, ptr %threads_at monotonic, align 8
  %threads = call i64 @llvm.smin.i64(i64 %cap, i64 %allowed)
  %lock = getelementptr i64, ptr %pool, i64 $LOCK$
  %share_from_at = getelementptr i64, ptr %pool, i64 $SHARE_FROM$
  %wake_from_at = getelementptr i64, ptr %pool, i64 $WAKE_FROM$
  br label %loop
loop:
  ; `held`: 0 not tried yet, 1 the pool is ours, 2 another thread has it and we work alone
  %i = phi i64 [ 0, %entry ], [ %j, %latch ]
  %held = phi i64 [ 0, %entry ], [ %held1, %latch ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %launch, label %end
launch:
  %at = mul i64 %i, $RECORD$
  %record = getelementptr i64, ptr %launches, i64 %at
  ?%together = i64 LAUNCH.together of %record
  %alone1 = icmp eq i64 %together, 1
  br i1 %alone1, label %single, label %many
many:
  %total = call i64 @number(ptr %record, i64 %together, ptr %slots, i64 %threads)
  %last = sub i64 %together, 1
  %last1 = inttoptr i64 %last to ptr
  br label %start
single:
  call void @find_buffers(ptr %record, ptr %slots)
  ?%own = ptr LAUNCH.function of %record
  ?%own_buffers = ptr LAUNCH.buffers of %record
  ?%parameters = ptr LAUNCH.parameters of %record
  %own_grid = load i64, ptr %parameters
  %own_scalars = getelementptr i64, ptr %parameters, i64 1
  br label %start
start:
  %fn = phi ptr [ @wave, %many ], [ %own, %single ]
  %buffers = phi ptr [ %record, %many ], [ %own_buffers, %single ]
  %grid = phi i64 [ %total, %many ], [ %own_grid, %single ]
  %scalars = phi ptr [ %last1, %many ], [ %own_scalars, %single ]
  %large = icmp sgt i64 %grid, 1
  %several = icmp sgt i64 %threads, 1
  %shared = and i1 %large, %several
  br i1 %shared, label %weigh, label %inline
weigh:
  ?%ticks_at = LAUNCH.ticks of %record
  %ticks = load i64, ptr %ticks_at
  %began = call i64 @numus_ticks()
  %share_from = load i64, ptr %share_from_at
  %light = icmp ult i64 %ticks, %share_from
  br i1 %light, label %short, label %acquire
short:
  %one = shl i64 %grid, 16
  call void %fn(i64 0, i64 %grid, i64 %one, ptr %buffers, ptr %scalars)
  br label %remember
acquire:
  %untried = icmp eq i64 %held, 0
  br i1 %untried, label %try, label %have
try:
  %swap = cmpxchg ptr %lock, i64 0, i64 1 acquire monotonic
  %won = extractvalue { i64, i1 } %swap, 1
  %got = select i1 %won, i64 1, i64 2
  br label %have
have:
  %held2 = phi i64 [ %held, %acquire ], [ %got, %try ]
  %ours = icmp eq i64 %held2, 1
  br i1 %ours, label %parallel, label %inline
parallel:
  %wake_from = load i64, ptr %wake_from_at
  %wake = icmp uge i64 %ticks, %wake_from
  %active = call i64 @share(
      ptr %pool, ptr %fn, ptr %buffers, ptr %scalars, i64 %grid, i64 %threads, i1 %wake)
  br label %remember
remember:
  ; work that was shared took at most so much of all of them
  %held4 = phi i64 [ %held, %short ], [ %held2, %parallel ]
  %busy = phi i64 [ 1, %short ], [ %active, %parallel ]
  %ended = call i64 @numus_ticks()
  %passed = sub i64 %ended, %began
  %all = mul i64 %passed, %busy
  store i64 %all, ptr %ticks_at
  br label %latch
inline:
  %held3 = phi i64 [ %held, %start ], [ %held2, %have ]
  %some = icmp sgt i64 %grid, 0
  br i1 %some, label %call, label %latch
call:
  %alone = shl i64 %grid, 16
  call void %fn(i64 0, i64 %grid, i64 %alone, ptr %buffers, ptr %scalars)
  br label %latch
latch:
  %held1 = phi i64 [ %held4, %remember ], [ %held3, %inline ], [ %held3, %call ]
  %j = add i64 %i, %together
  br label %loop
end:
  %mine = icmp eq i64 %held, 1
  br i1 %mine, label %unlock, label %done
unlock:
  store atomic i64 0, ptr %lock release, align 8
  br label %done
done:
  ret void
}

; A program up to `count` times; gives how often it ran. The table has pairs: slots and by how many
; bytes each moves after a run, then slots that change places. A flag that is cleared ends it.
define i64 @numus_repeat(
    ptr %image, i64 %count, ptr %table, i64 %steps, i64 %swaps, ptr %flag) {
entry:
  ?%slots = ptr IMAGE.slots of %image
  %steps2 = shl i64 %steps, 1
  %pairs = getelementptr i64, ptr %table, i64 %steps2
  %has_flag = icmp ne ptr %flag, null
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %done, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %run, label %end
run:
  call void @numus_run(ptr %image)
  %done = add i64 %i, 1
  br label %move
move:
  %k = phi i64 [ 0, %run ], [ %k1, %moving ]
  %moves = icmp slt i64 %k, %steps
  br i1 %moves, label %moving, label %swap
moving:
  %k2 = shl i64 %k, 1
  %entry_at = getelementptr i64, ptr %table, i64 %k2
  %slot = load i64, ptr %entry_at
  %by_at = getelementptr i64, ptr %entry_at, i64 1
  %by = load i64, ptr %by_at
  %at = getelementptr i64, ptr %slots, i64 %slot
  %address = load i64, ptr %at
  %moved = add i64 %address, %by
  store i64 %moved, ptr %at
  %k1 = add i64 %k, 1
  br label %move
swap:
  %j = phi i64 [ 0, %move ], [ %j1, %swapping ]
  %pair = icmp slt i64 %j, %swaps
  br i1 %pair, label %swapping, label %check
swapping:
  %j2 = shl i64 %j, 1
  %pair_at = getelementptr i64, ptr %pairs, i64 %j2
  %first = load i64, ptr %pair_at
  %second_at = getelementptr i64, ptr %pair_at, i64 1
  %second = load i64, ptr %second_at
  %first_at = getelementptr i64, ptr %slots, i64 %first
  %other_at = getelementptr i64, ptr %slots, i64 %second
  %x = load i64, ptr %first_at
  %y = load i64, ptr %other_at
  store i64 %y, ptr %first_at
  store i64 %x, ptr %other_at
  %j1 = add i64 %j, 1
  br label %swap
check:
  br i1 %has_flag, label %read, label %next
read:
  %value = load i8, ptr %flag
  %clear = icmp eq i8 %value, 0
  br i1 %clear, label %last, label %next
next:
  br label %loop
last:
  ret i64 %done
end:
  ret i64 %i
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
  ; who is about to wait does so before we have the mutex; it is free when they wake
  %r1 = call i32 %lock(ptr %mutex)
  %r2 = call i32 %unlock(ptr %mutex)
  %r3 = call i32 %broadcast(ptr %condition)
  ret void
}
"""

# a word is slept on directly, no mutex is needed
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
