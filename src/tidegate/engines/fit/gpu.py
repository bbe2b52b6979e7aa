"""GPUs: memory as CUDA reports it, compute capability, speed.

`memory_gib` is torch's "total capacity", the lowest seen in public out-of-memory messages and in our own runs: what an
engine's fraction is a share of. `bf16_tflops` (dense) and `bandwidth_tb_s` are the makers' data sheets.
"""

from __future__ import annotations

import difflib
import re
from typing import Final

import msgspec

from tidegate.errors import BadInputError


class Gpu(msgspec.Struct, frozen=True):
    """One kind of GPU. `capability` is major × 10 + minor."""

    name: str
    memory_gib: float
    capability: int
    bf16_tflops: float
    bandwidth_tb_s: float

    @property
    def fp8(self) -> bool:
        """Whether it computes in FP8 (e4m3)."""
        return self.capability >= 89

    @property
    def bf16(self) -> bool:
        return self.capability >= 80


GPUS: Final[dict[str, Gpu]] = {
    gpu.name: gpu
    for gpu in (
        Gpu("h100_sxm", 79.18, 90, 989, 3.35),
        Gpu("h100_pcie", 79.18, 90, 756, 2.0),
        Gpu("h200_sxm", 139.80, 90, 989, 4.8),
        Gpu("b200", 178.35, 100, 2250, 8.0),
        Gpu("a100_sxm", 79.14, 80, 312, 2.04),
        Gpu("a100_40gb", 39.39, 80, 312, 1.56),
        Gpu("l40s", 44.39, 89, 362, 0.864),
        Gpu("l4", 22.03, 89, 121, 0.3),
        Gpu("a10g", 22.03, 86, 70, 0.6),
        Gpu("rtx_4090", 23.52, 89, 165, 1.008),
        Gpu("rtx_3090", 23.55, 86, 71, 0.936),
        Gpu("t4", 14.56, 75, 65, 0.32),
        Gpu("v100_32gb", 31.73, 70, 125, 0.9),
    )
}
_ALIASES: Final = {
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "a100": "a100_sxm",
    "a100_80gb": "a100_sxm",
    "v100": "v100_32gb",
}


def find_gpu(text: str) -> Gpu:
    """The GPU of a name such as `H100`, `h200_sxm` or `A100-40GB`. Raises BadInputError that lists those known."""
    key = re.sub(r"[^a-z0-9]+", "_", text.strip().lower()).strip("_").removeprefix("nvidia_")
    key = _ALIASES.get(key, key)
    if key in GPUS:
        return GPUS[key]
    close = difflib.get_close_matches(key, GPUS, 1, 0.6)
    meant = f"did you mean {close[0]}? " if close else ""
    raise BadInputError(f"there is no GPU {text[:60]!r}", hint=f"{meant}known: {', '.join(GPUS)}")
