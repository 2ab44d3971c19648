"""Mutated real samples against every parser: ``python -m tests.fuzz --help``, and docs/fuzzing.md."""
