"""Sorting with a gradient: half-permutations, quicksort, the likelihood of an order, soft sorts."""
