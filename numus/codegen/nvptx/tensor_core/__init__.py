"""Matrix multiply-accumulate of tensor cores: of warps, of warpgroups, and with 2:4 sparsity."""
