"""Write the table of results in README.md, from the records in results/."""

import sys
from pathlib import Path

from sparsewire_lab.files import write_whole
from sparsewire_lab.report.summary_table import fill_summary
from sparsewire_lab.train import records

EXPERIMENTS = ("identity", "attention", "sorting")


def main() -> int:
    root = Path(__file__).resolve().parents[1]
    found = {name: records.read(root / "results" / f"{name}.jsonl") for name in EXPERIMENTS}
    page = root / "README.md"
    write_whole(page, fill_summary(page.read_text(encoding="utf-8"), found).encode())
    print(f"page: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
