"""The command line of the main job."""

import argparse
import importlib.util
import pathlib
import textwrap
import time

import numpy as np

from nscan.demo import model, report, text, train

NEEDS = ("tqdm", "matplotlib")
WIDTH = 80


def parser():
    """Build the parser of the command line."""
    out = argparse.ArgumentParser(
        prog="python -m nscan", formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Train a character language model, an LSTM with peephole weights, on a text.")
    out.add_argument("--file", type=pathlib.Path, default=text.NOVEL, metavar="PATH",
                     help="text to learn, in UTF-8")
    out.add_argument("--steps", type=_positive, default=600, metavar="N", help="minibatches")
    out.add_argument("--hidden", type=_positive, default=128, metavar="N", help="cells of the LSTM")
    out.add_argument("--lanes", type=_positive, default=32, metavar="N",
                     help="pieces of the text read side by side")
    out.add_argument("--length", type=_positive, default=64, metavar="N",
                     help="characters of each lane in a minibatch")
    out.add_argument("--rate", type=float, default=train.RATE, metavar="X", help="learning rate at the start")
    out.add_argument("--seed", type=int, default=0, metavar="N", help="seed of weights and of the sample")
    out.add_argument("--sample", type=_positive, default=400, metavar="N",
                     help="characters to write at the end")
    out.add_argument("--temperature", type=float, default=0.7, metavar="X",
                     help="below 1 the sample keeps to what is likely")
    out.add_argument("--plot", type=pathlib.Path, default="nscan-loss.png", metavar="PATH",
                     help="picture of the loss curve to write")
    return out


def _positive(word):
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def check_extra():
    """Stop with a message if a package of the extra ``main`` is missing."""
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"python -m nscan needs {' and '.join(missing)}: install the extra 'main', "
                         "pip install 'nscan[main]'")


def main(arguments=None):
    """Run the main job.

    Parameters
    ----------
    arguments : list of str, optional
        By default those of the command line.
    """
    start = time.perf_counter()
    options = parser().parse_args(arguments)
    check_extra()
    rng = np.random.default_rng(options.seed)
    novel, lanes = _read(options)
    weights = model.initial_weights(rng, len(novel.alphabet), options.hidden)
    _introduce(options, novel, lanes, weights)
    run = _train(options, weights, lanes)
    print(f"\nloss: {run.bits[0]:.2f} bits per character at the start, {run.recent():.2f} at the end "
          f"(mean of the last {min(train.SMOOTH, options.steps)} minibatches)\n")
    print(_sample(options, rng, novel, weights))
    report.plot(run.bits, options.plot, train.SMOOTH)
    print(f"\n{report.table(report.time_shares(run))}")
    print(f"curve of the loss: {options.plot}\nwhole job: {time.perf_counter() - start:.1f} s")


def _read(options):
    try:
        novel = text.read(options.file)
        return novel, text.Lanes(novel.codes, options.lanes, options.length)
    except (OSError, ValueError) as error:
        raise SystemExit(f"python -m nscan: {error}") from None


def _introduce(options, novel, lanes, weights):
    numbers = sum(x.size for x in weights.values())
    passes = options.steps / lanes.per_pass
    print(f"text: {novel.name}, {len(novel.codes):,} characters, {len(novel.alphabet)} different")
    print(f"model: LSTM with peepholes, {options.hidden} cells, {numbers:,} weights")
    print(f"training: {options.steps} minibatches of {options.lanes} lanes x {options.length} characters, "
          f"{passes:.1f} passes over the text", flush=True)


def _train(options, weights, lanes):
    from tqdm import tqdm

    with tqdm(total=options.steps, unit="step", dynamic_ncols=True) as bar:
        return train.train(weights, lanes, options.steps, bar, options.rate)


def _sample(options, rng, novel, weights):
    """Let the model write, and lay it out as a quotation."""
    start = novel.encode("\n")[0] if "\n" in novel.alphabet else 0
    written = novel.decode(model.write(rng, weights, start, options.sample, options.temperature))
    lines = [part for line in written.splitlines() for part in textwrap.wrap(line, WIDTH) or [""]]
    return "\n".join(f"  | {line}".rstrip() for line in lines)
