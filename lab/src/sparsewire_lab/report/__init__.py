"""Records → one self-contained HTML page. Nothing is trained."""
