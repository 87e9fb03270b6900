"""The excitation of `source.py` in one kernel behind the phases."""

from __future__ import annotations

from torch import Tensor

from vocoder_svc.minicpmo45.kernels.excitation import Levels, excite
from vocoder_svc.minicpmo45.source import Source


class FusedSource(Source):
    """Same results as `Source`, whose docstrings hold."""

    def _merged(self, f0: Tensor, cycles: Tensor, noise: Tensor, begin: Tensor) -> Tensor:
        config = self._config
        levels = Levels(config.voiced_threshold_hz, config.sine_amplitude, config.noise_sigma)
        weight, bias = self._weights["m_source.l_linear.weight"], self._weights["m_source.l_linear.bias"]
        return excite(
            f0.contiguous(), cycles.contiguous(), noise, begin.contiguous(), weight, bias, self._hop, levels, smooth=not config.causal
        )
