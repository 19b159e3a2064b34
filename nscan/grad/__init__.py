"""Derivatives: forward and reverse on tapes, the rule of the loop, functions of higher order, checks."""
