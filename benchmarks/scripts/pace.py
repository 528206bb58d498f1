"""Flags and clock that the training scripts in this folder share: they print their pace, and can be delayed."""

import argparse
import time
from collections import deque
from statistics import median

EVERY, REMEMBERED = 5, 15  # steps between two lines; steps in a median, most of which may have a pause in them


def parser(description, batch_size):
    """The flags of every script."""
    flags = argparse.ArgumentParser(description=description)
    flags.add_argument("--data", required=True, help="folder that holds the data set")
    flags.add_argument("--batch-size", type=int, default=batch_size, help="samples of one process and backward pass")
    flags.add_argument("--steps", type=int, default=0, help="optimiser steps; 0: many epochs")
    flags.add_argument("--run-name", default="run", help="begins every line that is printed")
    flags.add_argument("--delay-percent", type=float, default=0.0, help="computes longer by this share of a step")
    return flags


class Pace:
    """Called after each optimiser step: prints its seconds, and delays the next by a share of them.

    A step is the time from one call to the next, without the delay; its length is the median of the last REMEMBERED.
    """

    def __init__(self, asked, clock=time.perf_counter):
        self.asked, self.clock = asked, clock
        self.steps = deque(maxlen=REMEMBERED)
        self.began = None
        self.done = 0

    def step(self, loss):
        """True once all steps are made."""
        now = self.clock()
        if self.began is not None:
            self.steps.append(now - self.began)
        seconds = median(self.steps) if self.steps else 0.0
        # Not asleep: a process that sleeps gives its core to the others, and wakes with cold caches.
        while self.clock() < now + seconds * self.asked.delay_percent / 100:
            pass
        self.began = self.clock()
        self.done += 1
        if self.done % EVERY == 0:
            print(
                f"{self.asked.run_name}: step {self.done}: {1e3 * seconds:.3f} ms, "
                f"delay {1e3 * (self.began - now):.3f} ms, loss {loss.item():.4f}\n",
                end="",  # one write: lines of several ranks stay whole
                flush=True,
            )
            self.began = self.clock()  # printing is no part of a step
        return self.done == self.asked.steps
