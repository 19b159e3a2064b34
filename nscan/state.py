"""What a thread knows about its traces: the stack of open ones, whether rules are at work, where equations come from."""

import gc
import threading
import time


class _State(threading.local):
    def __init__(self):
        self.stack = []
        self.rules = 0
        self.where = None
        self.profile = None


STATE = _State()
HOOKS = {"runner": None}


class rules:
    """Context: numbers met now belong to derivative rules, so they are part of the code."""

    def __enter__(self):
        STATE.rules += 1

    def __exit__(self, *exc):
        STATE.rules -= 1


class users_code:
    """Context: a function of the user's runs inside one of NumPy's; its equations say where they are made themselves."""

    def __enter__(self):
        self.where = STATE.where
        STATE.where = None

    def __exit__(self, *exc):
        STATE.where = self.where


class section:
    """Context: the time inside, but for sections inside of it, belongs to a name in the profile that is being taken, if any."""

    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        if STATE.profile is not None:
            STATE.profile.enter(self.name, time.perf_counter())

    def __exit__(self, *exc):
        if STATE.profile is not None:
            STATE.profile.leave(time.perf_counter())


class collector_paused:
    """Context: no search for cycles of objects; many are made that stay, and each search would look at them again."""

    __slots__ = ("was",)

    def __enter__(self):
        self.was = gc.isenabled()
        gc.disable()

    def __exit__(self, *exc):
        if self.was:
            gc.enable()
