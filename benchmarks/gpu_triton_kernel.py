"""The loop-back's kernel. Import it only where Triton is: with CUDA builds of torch."""

import triton
import triton.language as tl


@triton.jit
def touch(values, count, passes, chunk: tl.constexpr):
    """Reads and writes `count` values `passes` times over, `chunk` at a time, the blocks in turn. Values stay."""
    block, num_blocks = tl.program_id(0), tl.num_programs(0)
    for _ in range(passes):
        for first in range(block * chunk, count, num_blocks * chunk):
            offsets = first + tl.arange(0, chunk)
            inside = offsets < count
            loaded = tl.load(values + offsets, mask=inside, cache_modifier=".cg")
            tl.store(values + offsets, loaded, mask=inside)
