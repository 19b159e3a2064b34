"""The loops of the suite, a module for each field."""

from benchmarks.loops import filters, language, networks, physics, series, training

LOOPS = {loop.name: loop for module in (series, filters, networks, physics, training, language) for loop in module.LOOPS}
