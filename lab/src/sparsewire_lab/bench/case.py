"""One measurement of a run."""

from dataclasses import dataclass

# What a user gets without asking.
OURS = "auto"


@dataclass(frozen=True)
class Case:
    """One measurement, and one row of the record."""

    case: str
    engine: str
    n: int = 0
    variant: str = ""
    mode: str = "eager"
    batch: int = 0

    def __str__(self) -> str:
        size = f" n={self.n:,}" if self.n else ""
        return " ".join(filter(None, (f"{self.case}{size}", self.variant, self.engine, self.mode)))
