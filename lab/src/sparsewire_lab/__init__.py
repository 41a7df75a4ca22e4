"""The lab of sparsewire: experiments, baselines, peers, figures, report and benchmarks."""

__version__ = "0.1.0"
