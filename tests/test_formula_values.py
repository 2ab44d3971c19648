"""Formulas at values worked out by hand."""
