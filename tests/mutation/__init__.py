"""Mutation testing of costs/, placement/ and engines/: see docs/mutation.md."""
