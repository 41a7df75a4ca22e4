"""The identity experiment: sparse layers learn matrices from random vectors."""
