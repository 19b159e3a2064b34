"""The main job, the examples and the README: each is run as a user runs it."""

import contextlib
import inspect
import io
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import nscan as ns
from nscan.demo import command, model, report, text, train

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = pathlib.Path(ns.__file__).parents[1]
TINY = ["--steps", "40", "--hidden", "16", "--lanes", "20", "--length", "12", "--sample", "60"]


def run(arguments, folder, **environment):
    """Run Python in a folder with this nscan, warnings as errors; return the finished process."""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE), "MPLBACKEND": "agg", **environment}
    return subprocess.run([sys.executable, "-W", "error", *arguments], cwd=folder, env=env, text=True,
                          capture_output=True, timeout=600)


# ------------------------------------------------------------------------------------------ the main job
@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Run a tiny main job from an empty kernel cache: the folder it ran in, and the process."""
    folder = tmp_path_factory.mktemp("job")
    done = run(["-m", "nscan", *TINY, "--plot", "curve.png"], folder, NSCAN_CACHE_DIR=str(folder / "kernels"))
    assert done.returncode == 0, done.stderr
    return folder, done


def test_loss_falls(job):
    """The loss begins near that of a uniform guess and falls."""
    found = re.search(r"loss: ([\d.]+) bits per character at the start, ([\d.]+) at the end", job[1].stdout)
    start, end = map(float, found.groups())
    assert abs(start - np.log2(75)) < 1
    assert end < start - 0.5


def test_report(job):
    """The report names the text, the model, a sample, and where the time went."""
    out = job[1].stdout
    assert "text: persuasion.txt, 466,854 characters, 75 different" in out
    assert "model: LSTM with peepholes, 16 cells" in out
    assert "training: 40 minibatches of 20 lanes x 12 characters" in out
    assert any(line.startswith("  | ") for line in out.splitlines())
    shares = dict(re.findall(r"^  (\S.*?) +([\d.]+) % ", out, re.MULTILINE))
    assert set(shares) == set(report.NOTES) >= {"forward", "backward", "trace", "compile"}
    assert abs(sum(map(float, shares.values())) - 100) < 0.5


def test_progress_bar(job):
    """The progress bar shows the loss."""
    assert re.search(r"40/40 .*\d\.\d{3} bits/char", job[1].stderr)


def test_curve(job):
    """The curve is a PNG of some size."""
    from matplotlib.image import imread

    picture = job[0] / "curve.png"
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(picture)
    assert pixels.shape[0] > 300 and pixels.std() > 0.01


def test_help_lists_options(tmp_path):
    """--help lists the options, and trains nothing."""
    done = run(["-m", "nscan", "--help"], tmp_path)
    assert done.returncode == 0
    for option in ("--file", "--steps", "--hidden", "--lanes", "--length", "--seed", "--plot"):
        assert option in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments, words", [
    (["--lanes", "400000"], "too short for 400000 lanes"),
    (["--file", "no such file"], "no such file"),
    (["--steps", "0"], "0 is not positive"),
])
def test_wrong_options(tmp_path, arguments, words):
    """Options that make no sense stop the job with a line, not with a traceback."""
    done = run(["-m", "nscan", *arguments], tmp_path)
    assert done.returncode != 0
    assert words in done.stderr and "Traceback" not in done.stderr


def test_missing_extra(monkeypatch):
    """A missing package stops the job at once, with the name of the extra."""
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None if name == "tqdm" else name)
    with pytest.raises(SystemExit, match=r"needs tqdm: .*pip install 'nscan\[main\]'"):
        command.main(["--steps", "1"])


# -------------------------------------------------------------------------------------------- its parts
def test_lanes_read_on():
    """Minibatches join without a gap, targets are the next characters, and the end leads to the start."""
    codes = np.arange(4 * 21 + 2)
    lanes = text.Lanes(codes, 4, 5)
    assert lanes.per_pass == 4
    batches = [lanes.batch(k) for k in range(5)]
    whole = np.concatenate([inputs for inputs, _, _ in batches[:4]])
    assert np.array_equal(whole, np.arange(20)[:, None] + 21 * np.arange(4))
    assert all(np.array_equal(targets, inputs + 1) for inputs, targets, _ in batches)
    assert [fresh for _, _, fresh in batches] == [True, False, False, False, True]
    assert np.array_equal(batches[4][0], batches[0][0])


def test_text_round_trip(tmp_path):
    """A text comes back from its codes."""
    file = tmp_path / "short.txt"
    file.write_text("être, or not\n", encoding="utf-8")
    read = text.read(file)
    assert read.decode(read.codes) == "être, or not\n"
    assert np.array_equal(read.encode("not"), read.codes[-4:-1])


def small_problem():
    """Weights, lanes and first minibatch of a small model."""
    rng = np.random.default_rng(5)
    lanes = text.Lanes(rng.integers(0, 7, 500), 3, 6)
    weights = model.initial_weights(rng, 7, 4)
    inputs, targets, _ = lanes.batch(0)
    return weights, lanes, (inputs, targets, *model.initial_state(3, 4))


def test_loss_is_that_of_the_loop(mode):
    """The loss of the scan is that of a Python loop over the step."""
    w, _, (inputs, targets, h, c) = small_problem()
    value, state = model.loss(w, inputs, targets, h, c)
    bits = []
    for k, target in zip(inputs, targets):
        h, c, each = model.step(k, target, h, c, w)
        bits.append(each)
    assert np.allclose(value, np.mean(bits), rtol=1e-5)
    assert np.allclose(state[0], h, atol=1e-6) and np.allclose(state[1], c, atol=1e-6)


def test_gradient_of_the_loss(mode):
    """The gradient is the derivative (float64, random direction)."""
    w, _, rest = small_problem()
    rng = np.random.default_rng(6)
    w = {name: x + 0.1 * rng.standard_normal(x.shape) for name, x in w.items()}
    rest = (*rest[:2], *[x.astype(float) for x in rest[2:]])
    gradient = ns.grad(model.loss, has_aux=True)(w, *rest)[0]
    move = {name: rng.standard_normal(x.shape) for name, x in w.items()}
    moved = [{name: w[name] + s * move[name] for name in w} for s in (1e-5, -1e-5)]
    there, back = [model.loss(w, *rest)[0] for w in moved]
    product = sum(np.sum(gradient[name] * move[name]) for name in w)
    assert np.isclose(product, (there - back) / 2e-5, rtol=1e-6)


def test_adam():
    """Adam is the published formula, and its first step has the length of the rate."""
    weights = {"a": np.array([1.0, -2.0])}
    adam = train.Adam(weights, decay=(0.9, 0.99), epsilon=0.0)
    gradients = [np.array([0.5, -3.0]), np.array([0.2, 1.0])]
    adam.update({"a": gradients[0]}, 0.1)
    assert np.allclose(weights["a"], [0.9, -1.9])
    adam.update({"a": gradients[1]}, 0.1)
    mean = (0.9 * 0.1 * gradients[0] + 0.1 * gradients[1]) / (1 - 0.9**2)
    square = (0.99 * 0.01 * gradients[0] ** 2 + 0.01 * gradients[1] ** 2) / (1 - 0.99**2)
    assert np.allclose(weights["a"], np.array([0.9, -1.9]) - 0.1 * mean / np.sqrt(square))


def test_clip():
    """Clipping keeps the direction; a short gradient stays as it is."""
    gradient = {"a": np.array([3.0]), "b": np.array([[0.0, 4.0]])}
    clipped = train.clip(gradient, 1.0)
    assert np.allclose(clipped["a"], 0.6) and np.allclose(clipped["b"], [[0.0, 0.8]])
    assert np.array_equal(train.clip(gradient, 9.0)["a"], gradient["a"])


class Bar:
    """A progress bar that shows nothing."""

    def set_postfix_str(self, text, refresh):
        """Take the text."""

    def update(self):
        """Count."""


@pytest.mark.parametrize("length", [1, 6])
def test_shares_add_up(mode, length):
    """The shares of the time are positive and add up to the time of the loop."""
    weights, lanes, _ = small_problem()
    lanes = text.Lanes(lanes.inputs.T.ravel(), 3, length)
    run = train.train(weights, lanes, 3, Bar())
    shares = report.time_shares(run)
    assert set(shares) == set(report.NOTES)
    assert abs(sum(shares.values()) - run.seconds) < 1e-9
    assert min(shares.values()) >= 0


def test_writing(mode):
    """The model writes codes of its alphabet; a low temperature takes the likeliest."""
    w, _, _ = small_problem()
    codes = model.write(np.random.default_rng(0), w, 2, 30, 1.0)
    assert codes.shape == (30,) and codes.min() >= 0 and codes.max() < 7 and len(set(codes)) > 1
    cold = [model.write(np.random.default_rng(seed), w, 2, 30, 1e-4) for seed in (1, 2)]
    assert np.array_equal(*cold)


# ------------------------------------------------------------------------------------- examples and README
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example, tmp_path):
    """An example runs; it asserts its own claims."""
    done = run([example], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not list(tmp_path.iterdir())


def code_blocks():
    """Return the fenced blocks of the README: (language, text)."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def test_readme_example():
    """The first block of the README prints what the second one says."""
    (_, code), (_, output) = code_blocks()[:2]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    assert out.getvalue() == output


def test_readme_shows_the_model():
    """The model that the README shows is the one that is trained."""
    shown = "".join(code for _, code in code_blocks())
    for function in (model.cell, model.step, model.loss):
        assert inspect.getsource(function) in shown


def test_readme_commands():
    """The README holds two commands, and the extras they name exist."""
    commands = [code.strip() for language, code in code_blocks() if language == "sh"]
    assert len(commands) == 2
    setup = (ROOT / "setup.cfg").read_text()
    for line, extra, last in zip(commands, ("main", "test"), ("python -m nscan", "python -m pytest -n auto")):
        assert line == f'pip install ".[{extra}]" && {last}'
        assert f"\n{extra} =\n" in setup
