"""Records → one self-contained HTML page; never trains. Needs the extra of the experiments."""

from sparsewire_lab.report.gather import Found, gather
from sparsewire_lab.report.page import write_page

__all__ = ["Found", "gather", "write_page"]
