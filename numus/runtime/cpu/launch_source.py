"""Submission of a command buffer, in LLVM IR.

Independent launches form a wave: their blocks are numbered through and shared as one launch. Each
launch records its duration: short ones run on the caller's thread, longer ones are shared with
workers that are awake, and only the longest wake sleeping workers (`thread_pool_source`).
"""

from __future__ import annotations

from numus.runtime.pycall.llvm_macros import RESOLVE_BUFFERS, expand

# Words of a command buffer's header, and of each launch.
HEADER = ("pool", "launches", "count", "slots", "threads")
LAUNCH = (
    *("function", "buffers", "refs", "buffer_count", "parameters"),
    "wave_size",  # launches, from this one on, that may run concurrently
    *("end", "share"),  # set by `number_blocks`: its last block in the wave, blocks per thread
    "ticks",  # duration of all its blocks at the last run
)
UNKNOWN_TICKS = -1  # unsigned: the longest

_TEXT = """
define internal void @find_buffers(ptr %launch, ptr %slots) {
  ?%buffers = ptr LAUNCH.buffers of %launch
  ?%refs = ptr LAUNCH.refs of %launch
  ?%count = i64 LAUNCH.buffer_count of %launch
  call void @resolve_buffers(ptr %buffers, ptr %refs, i64 %count, ptr %slots)
  ret void
}

; Blocks of a wave of `last` + 1 launches.
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
  %launch = getelementptr i64, ptr %launches, i64 %at
  ?%stop = i64 LAUNCH.end of %launch
  %here = icmp slt i64 %from, %stop
  br i1 %here, label %run, label %next
run:
  %upto = call i64 @llvm.smin.i64(i64 %end, i64 %stop)
  %first = sub i64 %from, %start
  %past = sub i64 %upto, %start
  ?%fn = ptr LAUNCH.function of %launch
  ?%buffers = ptr LAUNCH.buffers of %launch
  ?%parameters = ptr LAUNCH.parameters of %launch
  %scalars = getelementptr i64, ptr %parameters, i64 1
  ?%share = i64 LAUNCH.share of %launch
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

; Number the blocks of a wave consecutively; returns their count.
define internal i64 @number_blocks(ptr %launches, i64 %count, ptr %slots, i64 %threads) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %sum = phi i64 [ 0, %entry ], [ %end, %loop ]
  %at = mul i64 %i, $LAUNCH$
  %launch = getelementptr i64, ptr %launches, i64 %at
  call void @find_buffers(ptr %launch, ptr %slots)
  ?%parameters = ptr LAUNCH.parameters of %launch
  %grid = load i64, ptr %parameters
  %end = add i64 %sum, %grid
  ?LAUNCH.end of %launch = i64 %end
  %per_thread = udiv i64 %grid, %threads
  %share = shl i64 %per_thread, 16
  ?LAUNCH.share of %launch = i64 %share
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %count
  br i1 %more, label %loop, label %done
done:
  ret i64 %end
}

define void @numus_run(ptr %commands) {
entry:
  ?%pool = ptr HEADER.pool of %commands
  ?%launches = ptr HEADER.launches of %commands
  ?%count = i64 HEADER.count of %commands
  ?%slots = ptr HEADER.slots of %commands
  ?%cap = i64 HEADER.threads of %commands
  %threads_at = getelementptr i64, ptr %pool, i64 $THREADS$
  %allowed = load atomic i64, ptr %threads_at monotonic, align 8
  %threads = call i64 @llvm.smin.i64(i64 %cap, i64 %allowed)
  %lock = getelementptr i64, ptr %pool, i64 $LOCK$
  %share_from_at = getelementptr i64, ptr %pool, i64 $SHARE_FROM$
  %wake_from_at = getelementptr i64, ptr %pool, i64 $WAKE_FROM$
  br label %loop
loop:
  ; `lock_state`: 0 not tried, 1 acquired, 2 another thread uses the pool: run alone
  %i = phi i64 [ 0, %entry ], [ %j, %latch ]
  %lock_state = phi i64 [ 0, %entry ], [ %lock_state1, %latch ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %next_launch, label %end
next_launch:
  %at = mul i64 %i, $LAUNCH$
  %launch = getelementptr i64, ptr %launches, i64 %at
  ?%wave_size = i64 LAUNCH.wave_size of %launch
  %alone1 = icmp eq i64 %wave_size, 1
  br i1 %alone1, label %single, label %many
many:
  %total = call i64 @number_blocks(ptr %launch, i64 %wave_size, ptr %slots, i64 %threads)
  %last = sub i64 %wave_size, 1
  %last1 = inttoptr i64 %last to ptr
  br label %start
single:
  call void @find_buffers(ptr %launch, ptr %slots)
  ?%own = ptr LAUNCH.function of %launch
  ?%own_buffers = ptr LAUNCH.buffers of %launch
  ?%parameters = ptr LAUNCH.parameters of %launch
  %own_grid = load i64, ptr %parameters
  %own_scalars = getelementptr i64, ptr %parameters, i64 1
  br label %start
start:
  %fn = phi ptr [ @wave, %many ], [ %own, %single ]
  %buffers = phi ptr [ %launch, %many ], [ %own_buffers, %single ]
  %grid = phi i64 [ %total, %many ], [ %own_grid, %single ]
  %scalars = phi ptr [ %last1, %many ], [ %own_scalars, %single ]
  %large = icmp sgt i64 %grid, 1
  %several = icmp sgt i64 %threads, 1
  %shared = and i1 %large, %several
  br i1 %shared, label %estimate, label %inline
estimate:
  ?%ticks_at = LAUNCH.ticks of %launch
  %ticks = load i64, ptr %ticks_at
  %began = call i64 @numus_ticks()
  %share_from = load i64, ptr %share_from_at
  %light = icmp ult i64 %ticks, %share_from
  br i1 %light, label %inline_timed, label %acquire
inline_timed:
  %one = shl i64 %grid, 16
  call void %fn(i64 0, i64 %grid, i64 %one, ptr %buffers, ptr %scalars)
  br label %record_ticks
acquire:
  %untried = icmp eq i64 %lock_state, 0
  br i1 %untried, label %try, label %have
try:
  %swap = cmpxchg ptr %lock, i64 0, i64 1 acquire monotonic
  %won = extractvalue { i64, i1 } %swap, 1
  %got = select i1 %won, i64 1, i64 2
  br label %have
have:
  %lock_state2 = phi i64 [ %lock_state, %acquire ], [ %got, %try ]
  %ours = icmp eq i64 %lock_state2, 1
  br i1 %ours, label %parallel, label %inline
parallel:
  %wake_from = load i64, ptr %wake_from_at
  %wake = icmp uge i64 %ticks, %wake_from
  %active = call i64 @share(
      ptr %pool, ptr %fn, ptr %buffers, ptr %scalars, i64 %grid, i64 %threads, i1 %wake)
  br label %record_ticks
record_ticks:
  ; an upper bound where work was shared
  %lock_state4 = phi i64 [ %lock_state, %inline_timed ], [ %lock_state2, %parallel ]
  %busy = phi i64 [ 1, %inline_timed ], [ %active, %parallel ]
  %ended = call i64 @numus_ticks()
  %passed = sub i64 %ended, %began
  %all = mul i64 %passed, %busy
  store i64 %all, ptr %ticks_at
  br label %latch
inline:
  %lock_state3 = phi i64 [ %lock_state, %start ], [ %lock_state2, %have ]
  %some = icmp sgt i64 %grid, 0
  br i1 %some, label %call, label %latch
call:
  %alone = shl i64 %grid, 16
  call void %fn(i64 0, i64 %grid, i64 %alone, ptr %buffers, ptr %scalars)
  br label %latch
latch:
  %lock_state1 = phi i64 [ %lock_state4, %record_ticks ], [ %lock_state3, %inline ],
                         [ %lock_state3, %call ]
  %j = add i64 %i, %wave_size
  br label %loop
end:
  %mine = icmp eq i64 %lock_state, 1
  br i1 %mine, label %unlock, label %done
unlock:
  store atomic i64 0, ptr %lock release, align 8
  br label %done
done:
  ret void
}

; Run up to `count` times; returns the number of runs. The table has pairs: a slot and the bytes it
; advances after a run, then two slots to swap. A cleared flag ends the loop.
define i64 @numus_repeat(
    ptr %commands, i64 %count, ptr %table, i64 %steps, i64 %swaps, ptr %flag) {
entry:
  ?%slots = ptr HEADER.slots of %commands
  %steps2 = shl i64 %steps, 1
  %pairs = getelementptr i64, ptr %table, i64 %steps2
  %has_flag = icmp ne ptr %flag, null
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %done, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %run, label %end
run:
  call void @numus_run(ptr %commands)
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

# Words of the pool (`$LOCK$`) are expanded by `thread_pool_source`.
SOURCE = RESOLVE_BUFFERS + expand(_TEXT, HEADER=HEADER, LAUNCH=LAUNCH)
