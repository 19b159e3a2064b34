"""Measurements of nscan beside other ways to run the same loops; see ``python -m benchmarks --help``."""
