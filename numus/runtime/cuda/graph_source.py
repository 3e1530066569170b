"""CUDA graphs of fast calls, in LLVM IR, and the layout of their header.

Launching a small kernel takes longer than running it, and several launches take longer than one
graph. Launches that recur with the same addresses are captured, a few graphs per call.
"""

from __future__ import annotations

# Words of a fast call's header: arguments of the launch loop, then the number of slots (width), the
# driver's functions (0: no graphs), the graph to replace next, and the cache: each entry is a graph
# and the addresses it was captured with.
HEAD = (
    *("launch", "encode", "records", "count", "slots", "stream", "failed", "last", "number"),
    *("width", "driver", "next", "graphs", "written"),
)
FUNCTIONS = (
    *("cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"),
    *("cuGraphDestroy", "cuGraphLaunch", "cuGraphExecDestroy", "cuStreamIsCapturing"),
)
GRAPHS = 4


def words(slots: int) -> int:
    """Words of the graph cache of a call."""
    return GRAPHS * (1 + slots)


def entries(first: int, slots: int) -> list[int]:
    """The words that hold graphs, in a cache that starts at this one."""
    return [first + n * (1 + slots) for n in range(GRAPHS)]


TEXT = """
define i1 @numus_cuda_capturing(ptr %driver, ptr %stream) {
  ; during a capture no graph can be made or destroyed
  %state = alloca i32
  store i32 0, ptr %state
  ?ptr cuStreamIsCapturing = FUNCTIONS of %driver
  %code = call i32 %cuStreamIsCapturing(ptr %stream, ptr %state)
  %value = load i32, ptr %state
  %either = or i32 %code, %value
  %yes = icmp ne i32 %either, 0
  ret i1 %yes
}
define void @numus_cuda_call(ptr %head) {
entry:
  ?ptr launch, ptr encode, ptr records, i64 count, ptr slots, ptr stream = HEAD of %head
  ?ptr failed, ptr last, i64 number, i64 width, ptr graphs = HEAD of %head
  ?ptr driver, at driver, i64 next, at next = HEAD of %head
  %graph = alloca ptr
  %entry.words = add i64 %width, 1
  %key.bytes = shl i64 %width, 3
  br eq ptr %driver, null, label %plain, label %seek
seek:
  %e = phi i64 [ 0, %entry ], [ %e.next, %another ]
  %e.words = mul i64 %e, %entry.words
  %cached = getelementptr i64, ptr %graphs, i64 %e.words
  %keys = getelementptr i64, ptr %cached, i64 1
  for %i in 0..%width
  %key = i64 %keys[%i]
  %slot = i64 %slots[%i]
  br eq i64 %key, %slot, label %i.latch, label %another
  end
  br label %known
another:
  %e.next = add i64 %e, 1
  br ult i64 %e.next, $GRAPHS$, label %seek, label %new
known:
  %exec = load ptr, ptr %cached
  br ne ptr %exec, null, label %start, label %capture
start:
  ?ptr cuGraphLaunch = FUNCTIONS of %driver
  %ready = load ptr, ptr %cached
  %launched = call i32 %cuGraphLaunch(ptr %ready, ptr %stream)
  br eq i32 %launched, 0, label %launched.it, label %plain
launched.it:  ; its kernels may have written anything
  ?ptr written = HEAD of %head
  store i64 -1, ptr %written
  br label %done
capture:
  %c.capturing = call i1 @numus_cuda_capturing(ptr %driver, ptr %stream)
  br i1 %c.capturing, label %plain, label %begin.it
begin.it:
  ?ptr cuStreamBeginCapture = FUNCTIONS of %driver
  %begun = call i32 %cuStreamBeginCapture(ptr %stream, i32 1)  ; thread-local mode
  br eq i32 %begun, 0, label %record, label %plain
record:
  %recorded = call i64 @numus_cuda_run(ptr %launch, ptr %encode, ptr %records, i64 %count,
    ptr %slots, ptr %stream)
  ?ptr cuStreamEndCapture = FUNCTIONS of %driver
  store ptr null, ptr %graph
  %ended = call i32 %cuStreamEndCapture(ptr %stream, ptr %graph)
  %ended.wide = zext i32 %ended to i64
  %wrong = or i64 %recorded, %ended.wide
  br eq i64 %wrong, 0, label %make, label %never
make:
  ?ptr cuGraphInstantiateWithFlags = FUNCTIONS of %driver
  %captured = load ptr, ptr %graph
  %instantiated = call i32 %cuGraphInstantiateWithFlags(ptr %cached, ptr %captured, i64 0)
  ?ptr cuGraphDestroy = FUNCTIONS of %driver
  %destroyed = call i32 %cuGraphDestroy(ptr %captured)
  br eq i32 %instantiated, 0, label %start, label %never
never:
  store ptr null, ptr %cached
  store ptr null, ptr %driver.at
  br label %plain
new:
  %next.words = mul i64 %next, %entry.words
  %oldest = getelementptr i64, ptr %graphs, i64 %next.words
  %old = load ptr, ptr %oldest
  br eq ptr %old, null, label %remember, label %free
free:
  %f.capturing = call i1 @numus_cuda_capturing(ptr %driver, ptr %stream)
  br i1 %f.capturing, label %plain, label %destroy.it
destroy.it:
  ?ptr cuGraphExecDestroy = FUNCTIONS of %driver
  %gone = call i32 %cuGraphExecDestroy(ptr %old)
  br label %remember
remember:
  store ptr null, ptr %oldest
  %new.keys = getelementptr i64, ptr %oldest, i64 1
  call void @llvm.memcpy.p0.p0.i64(ptr %new.keys, ptr %slots, i64 %key.bytes, i1 false)
  %after = add i64 %next, 1
  %after.next = urem i64 %after, $GRAPHS$
  store i64 %after.next, ptr %next.at
  br label %plain
plain:
  %failure = call i64 @numus_cuda_run(ptr %launch, ptr %encode, ptr %records, i64 %count,
    ptr %slots, ptr %stream)
  br label %done
done:
  %told = phi i64 [ %failure, %plain ], [ 0, %launched.it ]
  store i64 %told, ptr %failed
  store i64 %number, ptr %last
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
