"""A text as numbers, cut into lanes that are read side by side."""

import dataclasses
import pathlib

import numpy as np

NOVEL = pathlib.Path(__file__).parents[1] / "data" / "persuasion.txt"


@dataclasses.dataclass(frozen=True)
class Text:
    """A text as numbers.

    Attributes
    ----------
    name : str
    alphabet : str
        The characters that occur, sorted.
    codes : ndarray of int64, shape (n,)
        Place of each character of the text in the alphabet.
    """

    name: str
    alphabet: str
    codes: np.ndarray

    def encode(self, characters):
        """Return the codes of some characters of the alphabet."""
        return np.array([self.alphabet.index(x) for x in characters], np.int64)

    def decode(self, codes):
        """Return the characters that some codes stand for."""
        return "".join(self.alphabet[k] for k in codes)


def read(path=NOVEL):
    """Read a text file.

    Parameters
    ----------
    path : path, default the novel that comes with nscan

    Returns
    -------
    Text
    """
    path = pathlib.Path(path)
    alphabet, codes = np.unique(list(path.read_text(encoding="utf-8")), return_inverse=True)
    return Text(path.name, "".join(alphabet), codes.astype(np.int64))


class Lanes:
    """A text cut into equal lanes; each minibatch reads on where the one before ended.

    Parameters
    ----------
    codes : ndarray of int64, shape (n,)
    lanes : int
        Number of pieces, read side by side.
    length : int
        Characters of each lane in a minibatch.

    Attributes
    ----------
    per_pass : int
        Minibatches in one pass over the text.
    """

    def __init__(self, codes, lanes, length):
        n = (len(codes) - 1) // lanes
        self.per_pass = n // length
        self.length = length
        if not self.per_pass:
            raise ValueError(f"a text of {len(codes)} characters is too short for {lanes} lanes "
                             f"of {length} characters")
        self.inputs = codes[:n * lanes].reshape(lanes, n).T
        self.targets = codes[1:n * lanes + 1].reshape(lanes, n).T

    def batch(self, k):
        """Return minibatch number k.

        Returns
        -------
        inputs, targets : ndarray of int64, shape (length, lanes)
            Characters, and those that follow them.
        fresh : bool
            Whether the lanes start again from their beginning.
        """
        start = k % self.per_pass * self.length
        rows = slice(start, start + self.length)
        return self.inputs[rows], self.targets[rows], start == 0
