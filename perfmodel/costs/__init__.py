"""Formulas: numbers, NumPy arrays or SymPy symbols in, the same out. No YAML, no classes, no engine, no machine."""
