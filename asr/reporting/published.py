"""Results printed in Cahyawijaya 2021 (tables 4.2 and 4.3), which repeat Winata et al. 2020."""

from asr.schema import FrozenModel, OmitNone


class RunMetrics(FrozenModel):
    """A row of tables 4.2 and 4.3, of a run as measured or as printed.

    `delta_cer` is the CER below the baseline's, absolute; `compression` the share of the baseline's
    parameters that is saved; `speedup` the baseline's decoding time over this one's; `mean_length`
    is |X̄|, in characters. `wer`, of texts with words, is in no table.
    """

    parameters_m: float | None = None
    cer: float | None = None
    delta_cer: float | None = None
    compression: float | None = None
    speedup_gpu: float | None = None
    speedup_cpu: float | None = None
    mean_length: float | None = None
    wer: OmitNone[float] = None


def _printed(*cells: float) -> RunMetrics:
    """Return a printed row: its cells in the order of the fields, shares in percent."""
    values = dict(zip(RunMetrics.model_fields, cells, strict=False))
    shares = {"cer", "delta_cer", "compression"} & values.keys()
    return RunMetrics(**values | {name: values[name] / 100 for name in shares})


# By corpus and recipe: table 4.2 (parameters in millions, CER in %) and table 4.3 (the rest; it
# has the large model and the LRTs only).
PAPERS = {
    ("aishell1", "transformer_large"): _printed(25.1, 13.49, 0, 0, 1, 1, 23.08),
    ("aishell1", "transformer_medium"): _printed(12.7, 14.47),
    ("aishell1", "transformer_small"): _printed(8.7, 15.66),
    ("aishell1", "lrt_r100"): _printed(12.7, 13.09, 0.40, 49.40, 1.17, 1.15, 23.15),
    ("aishell1", "lrt_r75"): _printed(10.7, 13.23, 0.26, 57.37, 1.23, 1.16, 23.17),
    ("aishell1", "lrt_r50"): _printed(8.7, 13.60, -0.11, 65.34, 1.30, 1.23, 23.19),
    ("hkust", "transformer_large"): _printed(22, 29.21, 0, 0, 1, 1, 22.43),
    ("hkust", "transformer_medium"): _printed(11.5, 29.73),
    ("hkust", "transformer_small"): _printed(7.8, 31.30),
    ("hkust", "lrt_r100"): _printed(11.5, 28.95, 0.26, 47.72, 1.21, 1.14, 22.32),
    ("hkust", "lrt_r75"): _printed(9.7, 29.08, 0.13, 55.90, 1.26, 1.15, 22.15),
    ("hkust", "lrt_r50"): _printed(7.8, 30.74, -1.53, 64.54, 1.35, 1.22, 22.49),
}
