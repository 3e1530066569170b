"""CUDA graphs of fast calls, in LLVM IR, and the layout of their header.

Launching a small kernel takes longer than running it, and several launches take longer than one
graph. Launches that recur with the same addresses are captured, a few graphs per call.
"""

from __future__ import annotations

from numus.runtime.pycall.llvm_macros import expand

# Words of a fast call's header: arguments of the launch loop, then the number of slots (width), the
# driver's functions (0: no graphs), the graph to replace next, and the cache: each entry is a graph
# and the addresses it was captured with.
HEAD = (
    *("launch", "encode", "records", "count", "slots", "stream", "failed", "last", "number"),
    *("width", "driver", "next", "graphs"),
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


_TEXT = """
define i1 @numus_cuda_capturing(ptr %driver, ptr %stream) {
  ; during a capture no graph can be made or destroyed
  %state = alloca i32
  store i32 0, ptr %state
  ?%ask = ptr FUNCTIONS.cuStreamIsCapturing of %driver
  %code = call i32 %ask(ptr %stream, ptr %state)
  %value = load i32, ptr %state
  %either = or i32 %code, %value
  %yes = icmp ne i32 %either, 0
  ret i1 %yes
}
define void @numus_cuda_call(ptr %head) {
entry:
  ?%launch = ptr HEAD.launch of %head
  ?%encode = ptr HEAD.encode of %head
  ?%records = ptr HEAD.records of %head
  ?%count = i64 HEAD.count of %head
  ?%slots = ptr HEAD.slots of %head
  ?%stream = ptr HEAD.stream of %head
  ?%failed = ptr HEAD.failed of %head
  ?%last = ptr HEAD.last of %head
  ?%number = i64 HEAD.number of %head
  ?%width = i64 HEAD.width of %head
  ?%driver = ptr HEAD.driver of %head
  ?%next = i64 HEAD.next of %head
  ?%graphs = ptr HEAD.graphs of %head
  %graph = alloca ptr
  ?%driver.at = HEAD.driver of %head
  ?%next.at = HEAD.next of %head
  %entry.words = add i64 %width, 1
  %key.bytes = shl i64 %width, 3
  %none = icmp eq ptr %driver, null
  br i1 %none, label %plain, label %seek
seek:
  %e = phi i64 [ 0, %entry ], [ %e.next, %another ]
  %e.words = mul i64 %e, %entry.words
  %held = getelementptr i64, ptr %graphs, i64 %e.words
  br label %compare
compare:
  %i = phi i64 [ 0, %seek ], [ %i.next, %alike ]
  %i.next = add i64 %i, 1
  %all = icmp eq i64 %i, %width
  br i1 %all, label %known, label %word
word:
  %k.at = getelementptr i64, ptr %held, i64 %i.next
  %k = load i64, ptr %k.at
  %n.at = getelementptr i64, ptr %slots, i64 %i
  %n = load i64, ptr %n.at
  %same = icmp eq i64 %k, %n
  br i1 %same, label %alike, label %another
alike:
  br label %compare
another:
  %e.next = add i64 %e, 1
  %e.more = icmp ult i64 %e.next, $GRAPHS$
  br i1 %e.more, label %seek, label %new
known:
  %exec = load ptr, ptr %held
  %made = icmp ne ptr %exec, null
  br i1 %made, label %start, label %capture
start:
  ?%launch.it = ptr FUNCTIONS.cuGraphLaunch of %driver
  %ready = load ptr, ptr %held
  %launched = call i32 %launch.it(ptr %ready, ptr %stream)
  %fine = icmp eq i32 %launched, 0
  br i1 %fine, label %done, label %plain
capture:
  %c.capturing = call i1 @numus_cuda_capturing(ptr %driver, ptr %stream)
  br i1 %c.capturing, label %plain, label %begin.it
begin.it:
  ?%begin = ptr FUNCTIONS.cuStreamBeginCapture of %driver
  %begun = call i32 %begin(ptr %stream, i32 1)  ; what other threads do is no matter
  %begins = icmp eq i32 %begun, 0
  br i1 %begins, label %record, label %plain
record:
  %recorded = call i64 @numus_cuda_run(ptr %launch, ptr %encode, ptr %records, i64 %count,
    ptr %slots, ptr %stream)
  ?%end = ptr FUNCTIONS.cuStreamEndCapture of %driver
  store ptr null, ptr %graph
  %ended = call i32 %end(ptr %stream, ptr %graph)
  %ended.wide = zext i32 %ended to i64
  %wrong = or i64 %recorded, %ended.wide
  %right = icmp eq i64 %wrong, 0
  br i1 %right, label %make, label %never
make:
  ?%instantiate = ptr FUNCTIONS.cuGraphInstantiateWithFlags of %driver
  %captured = load ptr, ptr %graph
  %instantiated = call i32 %instantiate(ptr %held, ptr %captured, i64 0)
  ?%destroy = ptr FUNCTIONS.cuGraphDestroy of %driver
  %destroyed = call i32 %destroy(ptr %captured)
  %usable = icmp eq i32 %instantiated, 0
  br i1 %usable, label %start, label %never
never:
  store ptr null, ptr %held
  store ptr null, ptr %driver.at
  br label %plain
new:
  %next.words = mul i64 %next, %entry.words
  %oldest = getelementptr i64, ptr %graphs, i64 %next.words
  %old = load ptr, ptr %oldest
  %empty = icmp eq ptr %old, null
  br i1 %empty, label %remember, label %free
free:
  %f.capturing = call i1 @numus_cuda_capturing(ptr %driver, ptr %stream)
  br i1 %f.capturing, label %plain, label %destroy.it
destroy.it:
  ?%let.go = ptr FUNCTIONS.cuGraphExecDestroy of %driver
  %gone = call i32 %let.go(ptr %old)
  br label %remember
remember:
  store ptr null, ptr %oldest
  %keys = getelementptr i64, ptr %oldest, i64 1
  call void @llvm.memcpy.p0.p0.i64(ptr %keys, ptr %slots, i64 %key.bytes, i1 false)
  %after = add i64 %next, 1
  %after.next = urem i64 %after, $GRAPHS$
  store i64 %after.next, ptr %next.at
  br label %plain
plain:
  %failure = call i64 @numus_cuda_run(ptr %launch, ptr %encode, ptr %records, i64 %count,
    ptr %slots, ptr %stream)
  br label %done
done:
  %told = phi i64 [ %failure, %plain ], [ 0, %start ]
  store i64 %told, ptr %failed
  store i64 %number, ptr %last
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


SOURCE = expand(_TEXT, HEAD=HEAD, FUNCTIONS=FUNCTIONS, GRAPHS=GRAPHS)
