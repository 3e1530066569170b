"""The compiler: from a graph of pending operations to an execution plan.

    graph      values, hash-consed and simplified by algebraic rewrites (`GraphBuilder`)
    fusion     a partition into groups, each of which one kernel computes (`Fuser`)
    lower      kernel IR of each group: families of schedules, selected by cost (`lower_group`)
    schedule   rematerialisation, order and waves of the kernels, in-place results, memory plan
    plan       all of it, compiled by a runtime and cached by the graph's structure (`Plan`)

Kernels are shape-generic: sizes are arguments. Kernel IR is in `numus/ir`, rendered to LLVM IR, PTX
or WGSL in `numus/codegen`. The hand-written schedules of `lower` are in `numus/kernels`.
"""
