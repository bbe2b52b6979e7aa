"""Whether a model fits a GPU: weights, KV tokens, working memory, headroom, and what TP sizes are possible.

In: a `config.json` (its dict), a GPU's name and a `LaunchProfile`. Out: `Fit`. Arithmetic only, held against measured
instances; nothing is loaded, no GPU is asked.
"""

from tidegate.engines.fit.gpu import GPUS, Gpu, find_gpu
from tidegate.engines.fit.memory import Fit, fit
from tidegate.engines.fit.shape import ModelShape, read_shape

__all__ = ["GPUS", "Fit", "Gpu", "ModelShape", "find_gpu", "fit", "read_shape"]
