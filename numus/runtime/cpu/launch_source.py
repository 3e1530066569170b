"""Submission of a command buffer, in LLVM IR.

Independent launches form a wave: their blocks are numbered through and shared as one launch. Each
launch records its work, the time of all threads that took part: little runs on the caller's thread,
more is shared with workers that are awake, and only the most wakes sleeping ones, of one launch or
of a burst of them (`thread_pool_source`).
"""

from __future__ import annotations

# Words of a command buffer's header, and of each launch.
HEADER = ("pool", "launches", "count", "slots", "threads")
LAUNCH = (
    *("function", "buffers", "refs", "buffer_count", "parameters"),
    "wave_size",  # launches, from this one on, that may run concurrently
    *("end", "share"),  # set by `number_blocks`: its last block in the wave, blocks per thread
    "ticks",  # work of all its blocks at the last run
)
UNKNOWN_TICKS = -1  # unsigned: the longest

TEXT = """
define internal void @find_buffers(ptr %launch, ptr %slots) {
  ?ptr buffers, ptr refs, i64 buffer_count = LAUNCH of %launch
  call void @resolve_buffers(ptr %buffers, ptr %refs, i64 %buffer_count, ptr %slots)
  ret void
}

; Blocks of a wave of `last` + 1 launches.
define internal void @wave(i64 %begin, i64 %end, i64 %worker, ptr %launches, ptr %last) {
entry:
  %id = and i64 %worker, 65535
  %last_index = ptrtoint ptr %last to i64
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %j, %next ]
  %start = phi i64 [ 0, %entry ], [ %launch.end, %next ]
  %from = phi i64 [ %begin, %entry ], [ %from1, %next ]
  %launch = getelementptr [$LAUNCH$ x i64], ptr %launches, i64 %i
  ?i64 launch.end = LAUNCH of %launch
  br slt i64 %from, %launch.end, label %run, label %next
run:
  %upto = call i64 @llvm.smin.i64(i64 %end, i64 %launch.end)
  %first = sub i64 %from, %start
  %past = sub i64 %upto, %start
  ?ptr function, ptr buffers, ptr parameters, i64 share = LAUNCH of %launch
  %scalars = getelementptr i64, ptr %parameters, i64 1
  %who = or i64 %share, %id
  call void %function(i64 %first, i64 %past, i64 %who, ptr %buffers, ptr %scalars)
  br label %next
next:
  %from1 = phi i64 [ %from, %look ], [ %upto, %run ]
  %j = add i64 %i, 1
  %left = icmp slt i64 %from1, %end
  %known = icmp sle i64 %j, %last_index
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
  %launch = getelementptr [$LAUNCH$ x i64], ptr %launches, i64 %i
  call void @find_buffers(ptr %launch, ptr %slots)
  ?ptr parameters = LAUNCH of %launch
  %grid = load i64, ptr %parameters
  %end = add i64 %sum, %grid
  %per_thread = udiv i64 %grid, %threads
  %share = shl i64 %per_thread, 16
  ?LAUNCH of %launch = i64 end, i64 share
  %j = add i64 %i, 1
  br slt i64 %j, %count, label %loop, label %done
done:
  ret i64 %end
}

define void @numus_run(ptr %commands) {
entry:
  ?ptr pool, ptr launches, i64 count, ptr slots, i64 threads = HEADER of %commands
  ?at pool.threads, at lock, at share_from = POOL of %pool
  %allowed = load atomic i64, ptr %pool.threads.at monotonic, align 8
  %workers = call i64 @llvm.smin.i64(i64 %threads, i64 %allowed)
  br label %loop
loop:
  ; `lock_state`: 0 not tried, 1 acquired, 2 another thread uses the pool: run alone
  %i = phi i64 [ 0, %entry ], [ %j, %latch ]
  %lock_state = phi i64 [ 0, %entry ], [ %lock_state1, %latch ]
  br slt i64 %i, %count, label %next_launch, label %end
next_launch:
  %launch = getelementptr [$LAUNCH$ x i64], ptr %launches, i64 %i
  ?i64 wave_size, at ticks = LAUNCH of %launch
  br eq i64 %wave_size, 1, label %single, label %several
several:
  %total = call i64 @number_blocks(ptr %launch, i64 %wave_size, ptr %slots, i64 %workers)
  %last = sub i64 %wave_size, 1
  %last1 = inttoptr i64 %last to ptr
  br label %start
single:
  call void @find_buffers(ptr %launch, ptr %slots)
  ?ptr own.function, ptr own.buffers, ptr parameters = LAUNCH of %launch
  %own.grid = load i64, ptr %parameters
  %own.scalars = getelementptr i64, ptr %parameters, i64 1
  br label %start
start:
  %fn = phi ptr [ @wave, %several ], [ %own.function, %single ]
  %buffers = phi ptr [ %launch, %several ], [ %own.buffers, %single ]
  %grid = phi i64 [ %total, %several ], [ %own.grid, %single ]
  %scalars = phi ptr [ %last1, %several ], [ %own.scalars, %single ]
  %whole = shl i64 %grid, 16  ; all blocks are one thread's share
  %parallelism = call i64 @llvm.smin.i64(i64 %grid, i64 %workers)
  br sgt i64 %parallelism, 1, label %estimate, label %inline
estimate:
  %ticks = load i64, ptr %ticks.at
  %share_from = load i64, ptr %share_from.at
  br ult i64 %ticks, %share_from, label %inline_timed, label %acquire
inline_timed:
  %began = call i64 @numus_ticks()
  call void %fn(i64 0, i64 %grid, i64 %whole, ptr %buffers, ptr %scalars)
  %ended = call i64 @numus_ticks()
  %passed = sub i64 %ended, %began
  br label %record_ticks
acquire:
  br eq i64 %lock_state, 0, label %try, label %have
try:
  %swap = cmpxchg ptr %lock.at, i64 0, i64 1 acquire monotonic
  %won = extractvalue { i64, i1 } %swap, 1
  %got = select i1 %won, i64 1, i64 2
  br label %have
have:
  %lock_state2 = phi i64 [ %lock_state, %acquire ], [ %got, %try ]
  br eq i64 %lock_state2, 1, label %parallel, label %inline
parallel:
  %work = call i64 @share(
      ptr %pool, ptr %fn, ptr %buffers, ptr %scalars, i64 %grid, i64 %workers, i64 %ticks)
  br label %record_ticks
record_ticks:
  %lock_state4 = phi i64 [ %lock_state, %inline_timed ], [ %lock_state2, %parallel ]
  %all = phi i64 [ %passed, %inline_timed ], [ %work, %parallel ]
  store i64 %all, ptr %ticks.at
  br label %latch
inline:
  %lock_state3 = phi i64 [ %lock_state, %start ], [ %lock_state2, %have ]
  br sgt i64 %grid, 0, label %call, label %latch
call:
  call void %fn(i64 0, i64 %grid, i64 %whole, ptr %buffers, ptr %scalars)
  br label %latch
latch:
  %lock_state1 = phi i64 [ %lock_state4, %record_ticks ], [ %lock_state3, %inline ],
                         [ %lock_state3, %call ]
  %j = add i64 %i, %wave_size
  br label %loop
end:
  br eq i64 %lock_state, 1, label %unlock, label %done
unlock:
  store atomic i64 0, ptr %lock.at release, align 8
  br label %done
done:
  ret void
}

; Run up to `count` times; returns the number of runs. The table has pairs: a slot and the bytes it
; advances after a run, then two slots to swap. A cleared flag ends the loop.
define i64 @numus_repeat(
    ptr %commands, i64 %count, ptr %table, i64 %steps, i64 %swaps, ptr %flag) {
  ?ptr slots = HEADER of %commands
  %pairs = getelementptr [2 x i64], ptr %table, i64 %steps
  for %i in 0..%count
  call void @numus_run(ptr %commands)
  for %k in 0..%steps
  %step = getelementptr [2 x i64], ptr %table, i64 %k
  %slot = load i64, ptr %step
  %by = i64 %step[1]
  %address = i64 %slots[%slot]
  %moved = add i64 %address, %by
  %slots[%slot] = i64 %moved
  end
  for %j in 0..%swaps
  %pair = getelementptr [2 x i64], ptr %pairs, i64 %j
  %first = load i64, ptr %pair
  %second = i64 %pair[1]
  %x = i64 %slots[%first]
  %y = i64 %slots[%second]
  %slots[%first] = i64 %y
  %slots[%second] = i64 %x
  end
  br eq ptr %flag, null, label %i.latch, label %check
check:
  %value = load i8, ptr %flag
  br eq i8 %value, 0, label %last, label %i.latch
last:
  %done = add i64 %i, 1
  ret i64 %done
  end
  ret i64 %count
}
"""
