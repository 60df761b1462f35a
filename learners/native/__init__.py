"""Fused CPU kernels for small MLP policies: a whole horizon, or all epochs of an update, in one call without the GIL.

At 64-64 units the arithmetic of one optimiser step on 64 rows takes about 20 us on one AVX-512 core; PyTorch's dispatch of
the same step takes about 300 us. These kernels do the same arithmetic on the same flat weights. The PyTorch path is the
definition: tests hold every kernel to it.
"""

from gpuenvs.errors import ConfigError

ENGINES = ("auto", "fused", "torch")


def choose_engine(wanted: str, possible: bool) -> str:
    """`"fused"` or `"torch"`. `"auto"` takes the fused kernels wherever they can stand in.

    Raises:
        ConfigError: `"fused"` was asked for and is not possible here.
    """
    if wanted == "fused" and not possible:
        raise ConfigError(
            "engine=fused needs a policy on the CPU, of vectors and not of images, with hidden_sizes that are multiples of "
            "the SIMD width (16 always fits); use engine=auto or torch"
        )
    return "fused" if possible and wanted != "torch" else "torch"
