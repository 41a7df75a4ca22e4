"""The sorting experiment: numbers written in digits are sorted from their order alone."""
