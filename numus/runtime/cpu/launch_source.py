"""The native loops that go through the launches of a program, in LLVM IR, and what they read.

Launches that don't depend on each other form a wave, which is opened as one: their blocks are
numbered through. Every launch remembers how long it took the last time: short ones are run by their
caller, longer ones shared with the workers that are awake, and only the longest are worth waking
anybody for (`pool_source.py`).
"""

from __future__ import annotations

from numus.runtime.pycall.llvm_macros import PLACE, written_out

# Words of what `numus_run` is given, and of each launch in it.
IMAGE = ("pool", "launches", "count", "slots", "threads")
LAUNCH = (
    *("function", "buffers", "places", "buffer_count", "parameters"),
    "together",  # how many launches, from this one on, may run at the same time
    *("end", "share"),  # filled in by `wave`: the blocks up to here, the share of a thread
    "ticks",  # what its blocks took all together the last time; UNKNOWN before
)
UNKNOWN = -1  # as a number without sign: long

_TEXT = """
define internal void @find_buffers(ptr %launch, ptr %slots) {
  ?%buffers = ptr LAUNCH.buffers of %launch
  ?%places = ptr LAUNCH.places of %launch
  ?%count = i64 LAUNCH.buffer_count of %launch
  call void @place(ptr %buffers, ptr %places, i64 %count, ptr %slots)
  ret void
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
  %at = mul i64 %i, $LAUNCH$
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
  %at = mul i64 %i, $LAUNCH$
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
  %at = mul i64 %i, $LAUNCH$
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
"""

# Words of the pool are named as `pool_source` names them: `$LOCK$`.
SOURCE = PLACE + written_out(_TEXT, IMAGE=IMAGE, LAUNCH=LAUNCH)
