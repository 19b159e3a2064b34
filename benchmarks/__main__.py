"""Measure nscan: ``python -m benchmarks [loops|growth|compile|report] [options] [name ...]``."""

import argparse
import functools
import json
import os
import pathlib

RESULTS = pathlib.Path(__file__).with_name("results.json")
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


def arguments():
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure nscan beside other libraries.")
    parser.add_argument("part", nargs="?", default="all", choices=["all", "loops", "growth", "compile", "report"],
                        help="which table to measure; 'report' only writes the page from the last figures")
    parser.add_argument("names", nargs="*", help="loops to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="3 turns instead of 11")
    parser.add_argument("--peers", default="numba,numpy,jax,torch,pytensor", help="with whom to compare")
    parser.add_argument("--pytensor", metavar="PYTHON", help="an interpreter that has PyTensor")
    parser.add_argument("--wall", action="store_true", help="take the time on the wall, not the processor's")
    parser.add_argument("--results", default=str(RESULTS), metavar="FILE", help="where figures are kept")
    parser.add_argument("--keep", action="store_true", help="write nothing, only print")
    return parser.parse_intermixed_args()


def say(loop, direction, figures, wrong):
    """Print a line of figures."""
    first = figures["nscan"]
    cells = [f"{name} x{found['ratio']:.2f}" for name, found in figures.items() if name != "nscan"]
    print(f"{loop.name:14} {direction:9} {first['seconds'] * 1e3:9.3f} ms  kernel {first['kernel'] * 1e3:9.3f} ms  "
          + "  ".join(cells) + "".join(f"  [{k}: {v}]" for k, v in wrong.items()), flush=True)


def merged(old, new, peers):
    """Put new figures over old ones; peers that were not measured this time keep theirs. In the order of the suite."""
    from benchmarks.loops import LOOPS

    together = {**old, **new}
    for name in old.keys() & new.keys():
        for key, value in new[name].items():
            if isinstance(value, dict):
                kept = {peer: v for peer, v in old[name].get(key, {}).items() if peer not in peers}
                together[name] = {**together[name], key: {**kept, **value}}
    return {name: together[name] for name in LOOPS if name in together}


def main():
    """Measure what the command line asks for."""
    options = arguments()
    os.environ.update(ONE_THREAD)
    if options.wall:
        os.environ["BENCHMARKS_WALL"] = "1"
    from benchmarks import compiling, growth, machine, measure, report
    from benchmarks.loops import LOOPS

    turns = 3 if options.quick else 11
    peers, results = ["nscan", *options.peers.split(",")], pathlib.Path(options.results)
    facts = {"turns": turns, "clock": "wall time" if options.wall else "processor time"}

    def store(part, figures):
        """Put figures into the file at once, so that a run that is stopped loses nothing."""
        known = json.loads(results.read_text()) if results.exists() else {}
        if not options.keep:
            known[part] = merged(known.get(part, {}), figures, peers) if part == "loops" else figures
            known["machine"] = {**known.get("machine", {}), **machine.describe(options.pytensor), **facts}
            results.write_text(json.dumps(known, indent=1) + "\n")
    if options.part in ("all", "loops"):
        for name in options.names or LOOPS:
            store("loops", {name: measure.measure(LOOPS[name], peers, options.pytensor, turns, say)})
    if options.part in ("all", "growth"):
        store("growth", growth.run(turns, functools.partial(print, flush=True)))
    if options.part in ("all", "compile"):
        store("compile", compiling.run(turns, functools.partial(print, flush=True)))
    if not options.keep:
        report.write(json.loads(results.read_text()))


if __name__ == "__main__":
    main()
