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

# Words (of 8 bytes) of the pool's shared memory; what is written often has a line to itself.
STATE = 0  # generation << 17 | closed << 16 | workers inside
NEXT = 16  # the next block to be taken
JOB = 32  # the open launch: function, buffers, scalars, grid, parts, threads, share, joined
SLEEPERS = 48
LIMIT = 49  # workers with an id from here on go home; 0 ends all
SPINS = 50  # how long an idle worker spins before it sleeps
THREADS = 51  # how many threads, the caller's included, may share a launch
SHARE_FROM = 52  # ticks of work from which on launches are shared with workers that are awake
WAKE_FROM = 53  # and from which on sleeping workers are woken
STARTED = 54  # how many threads have been started, the caller's included; 0: to be started first
LOCK = 64  # 1 while a caller uses the pool
CALLS = 80  # addresses of system functions, see `system_calls`
MUTEX = 96
CONDITION = 112
WORDS = 160

CLOSED = 1 << 16
GENERATION = 17

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
    text = _COMMON + sleep
    text += ticks(target)
    words = "STATE NEXT JOB SLEEPERS LIMIT SPINS THREADS SHARE_FROM WAKE_FROM LOCK CALLS MUTEX"
    for name in [*words.split(), "CONDITION"]:
        text = text.replace(f"${name}$", str(globals()[name]))
    text = text.replace("$CLOSED$", str(CLOSED)).replace("$GENERATION$", str(GENERATION))
    text = text.replace("$RECORD$", str(len(LAUNCH)))
    text = text.replace("$TICKS$", str(LAUNCH.index("ticks")))
    return f'target triple = "{target.triple}"\n' + text.replace("$PAUSE$", pause(target))


_COMMON = """
; Take chunks of the open launch until none are left.
define internal void @work(ptr %pool, i64 %id) {
entry:
  %job = getelementptr i64, ptr %pool, i64 $JOB$
  %fn = load ptr, ptr %job
  %p1 = getelementptr i64, ptr %job, i64 1
  %buffers = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %job, i64 2
  %scalars = load ptr, ptr %p2
  %p3 = getelementptr i64, ptr %job, i64 3
  %grid = load i64, ptr %p3
  %p4 = getelementptr i64, ptr %job, i64 4
  %parts = load i64, ptr %p4
  %p6 = getelementptr i64, ptr %job, i64 6
  %share = load i64, ptr %p6
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
  %most_at = getelementptr i64, ptr %job, i64 5
  %most = load i64, ptr %most_at
  %mine = icmp slt i64 %id, %most
  br i1 %mine, label %work, label %leave
work:
  %joined = getelementptr i64, ptr %job, i64 7
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

; Addresses of a launch's buffers: a slot of the image plus an offset, for each.
define internal void @place(ptr %launch, ptr %slots) {
entry:
  %p1 = getelementptr i64, ptr %launch, i64 1
  %buffers = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %launch, i64 2
  %places = load ptr, ptr %p2
  %p3 = getelementptr i64, ptr %launch, i64 3
  %count = load i64, ptr %p3
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %twice = shl i64 %i, 1
  %from = getelementptr i64, ptr %places, i64 %twice
  %slot = load i64, ptr %from
  %from1 = getelementptr i64, ptr %from, i64 1
  %offset = load i64, ptr %from1
  %at = getelementptr i64, ptr %slots, i64 %slot
  %address = load i64, ptr %at
  %sum = add i64 %address, %offset
  %to = getelementptr i64, ptr %buffers, i64 %i
  store i64 %sum, ptr %to
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %count
  br i1 %more, label %loop, label %done
done:
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
  store ptr %fn, ptr %job
  %p1 = getelementptr i64, ptr %job, i64 1
  store ptr %buffers, ptr %p1
  %p2 = getelementptr i64, ptr %job, i64 2
  store ptr %scalars, ptr %p2
  %p3 = getelementptr i64, ptr %job, i64 3
  store i64 %grid, ptr %p3
  %p4 = getelementptr i64, ptr %job, i64 4
  store i64 %parts, ptr %p4
  %p5 = getelementptr i64, ptr %job, i64 5
  %team = call i64 @llvm.smin.i64(i64 %threads, i64 %grid)  ; one for each block at most
  store i64 %team, ptr %p5
  %per_thread = udiv i64 %grid, %threads
  %share = shl i64 %per_thread, 16
  %p6 = getelementptr i64, ptr %job, i64 6
  store i64 %share, ptr %p6
  %joined = getelementptr i64, ptr %job, i64 7
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
  %yield_at = getelementptr i64, ptr %pool, i64 $CALLS$
  %yield_fn = load ptr, ptr %yield_at
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
  %p6 = getelementptr i64, ptr %record, i64 6
  %stop = load i64, ptr %p6
  %here = icmp slt i64 %from, %stop
  br i1 %here, label %run, label %next
run:
  %upto = call i64 @llvm.smin.i64(i64 %end, i64 %stop)
  %first = sub i64 %from, %start
  %past = sub i64 %upto, %start
  %fn = load ptr, ptr %record
  %p1 = getelementptr i64, ptr %record, i64 1
  %buffers = load ptr, ptr %p1
  %p4 = getelementptr i64, ptr %record, i64 4
  %parameters = load ptr, ptr %p4
  %scalars = getelementptr i64, ptr %parameters, i64 1
  %p7 = getelementptr i64, ptr %record, i64 7
  %share = load i64, ptr %p7
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
  call void @place(ptr %record, ptr %slots)
  %p4 = getelementptr i64, ptr %record, i64 4
  %parameters = load ptr, ptr %p4
  %grid = load i64, ptr %parameters
  %end = add i64 %sum, %grid
  %p6 = getelementptr i64, ptr %record, i64 6
  store i64 %end, ptr %p6
  %per_thread = udiv i64 %grid, %threads
  %share = shl i64 %per_thread, 16
  %p7 = getelementptr i64, ptr %record, i64 7
  store i64 %share, ptr %p7
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %count
  br i1 %more, label %loop, label %done
done:
  ret i64 %end
}

define void @numus_run(ptr %image) {
entry:
  %pool = load ptr, ptr %image
  %p1 = getelementptr i64, ptr %image, i64 1
  %launches = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %image, i64 2
  %count = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %image, i64 3
  %slots = load ptr, ptr %p3
  %p4 = getelementptr i64, ptr %image, i64 4
  %cap = load i64, ptr %p4
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
  %q5 = getelementptr i64, ptr %record, i64 5
  %together = load i64, ptr %q5
  %alone1 = icmp eq i64 %together, 1
  br i1 %alone1, label %single, label %many
many:
  %total = call i64 @number(ptr %record, i64 %together, ptr %slots, i64 %threads)
  %last = sub i64 %together, 1
  %last1 = inttoptr i64 %last to ptr
  br label %start
single:
  call void @place(ptr %record, ptr %slots)
  %own = load ptr, ptr %record
  %q1 = getelementptr i64, ptr %record, i64 1
  %own_buffers = load ptr, ptr %q1
  %q4 = getelementptr i64, ptr %record, i64 4
  %parameters = load ptr, ptr %q4
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
  %ticks_at = getelementptr i64, ptr %record, i64 $TICKS$
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
  %slots_at = getelementptr i64, ptr %image, i64 3
  %slots = load ptr, ptr %slots_at
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

# yield, lock, unlock, wait, broadcast
_SLEEP_POSIX = """
define internal void @sleep(ptr %pool, i64 %seen, i64 %id) noinline {
entry:
  %state = getelementptr i64, ptr %pool, i64 $STATE$
  %limit = getelementptr i64, ptr %pool, i64 $LIMIT$
  %sleepers = getelementptr i64, ptr %pool, i64 $SLEEPERS$
  %mutex = getelementptr i64, ptr %pool, i64 $MUTEX$
  %condition = getelementptr i64, ptr %pool, i64 $CONDITION$
  %calls = getelementptr i64, ptr %pool, i64 $CALLS$
  %c1 = getelementptr ptr, ptr %calls, i64 1
  %lock = load ptr, ptr %c1
  %c2 = getelementptr ptr, ptr %calls, i64 2
  %unlock = load ptr, ptr %c2
  %c3 = getelementptr ptr, ptr %calls, i64 3
  %wait = load ptr, ptr %c3
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
  %c1 = getelementptr ptr, ptr %calls, i64 1
  %lock = load ptr, ptr %c1
  %c2 = getelementptr ptr, ptr %calls, i64 2
  %unlock = load ptr, ptr %c2
  %c4 = getelementptr ptr, ptr %calls, i64 4
  %broadcast = load ptr, ptr %c4
  ; who is about to wait does so before we have the mutex; it is free when they wake
  %r1 = call i32 %lock(ptr %mutex)
  %r2 = call i32 %unlock(ptr %mutex)
  %r3 = call i32 %broadcast(ptr %condition)
  ret void
}
"""

# yield, wait, wake: a word is slept on directly, no mutex is needed
_SLEEP_WINDOWS = """
define internal void @sleep(ptr %pool, i64 %seen, i64 %id) noinline {
entry:
  %copy = alloca i64
  %state = getelementptr i64, ptr %pool, i64 $STATE$
  %limit = getelementptr i64, ptr %pool, i64 $LIMIT$
  %sleepers = getelementptr i64, ptr %pool, i64 $SLEEPERS$
  %calls = getelementptr i64, ptr %pool, i64 $CALLS$
  %c1 = getelementptr ptr, ptr %calls, i64 1
  %wait = load ptr, ptr %c1
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
  %c2 = getelementptr ptr, ptr %calls, i64 2
  %wake = load ptr, ptr %c2
  call void %wake(ptr %state)
  ret void
}
"""
