"""Hostile IR text: whatever is wrong with a module, `rlx-opt` says so in one message."""

from __future__ import annotations

import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable

from fuzz import random_program
from fuzz.hostile import MUTATIONS

SAMPLE = 100
SECONDS, MEGABYTES = 5, 1024
"""What a text may take, measured in a full run."""


def peak() -> float:
    """Return the most memory that this process has had, in MiB."""
    kilobytes = 1024 if sys.platform == "darwin" else 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / kilobytes / 1024


def test_hostile_modules(rlx_opt: Callable, fuzz_count: Callable[[int, int], int]):
    """Texts that are still modules by chance don't count."""
    wanted = fuzz_count(2000, SAMPLE)
    refused, before = Counter[str](), peak()
    seed = 0
    while refused.total() < wanted:
        rng = random.Random(seed)
        mutate = MUTATIONS[seed % len(MUTATIONS)]
        text = mutate(random_program(seed // len(MUTATIONS)).text, rng)
        start = time.process_time()
        result = rlx_opt("-p", "rlx-default", stdin=text)
        seconds = time.process_time() - start
        where = f"seed {seed}, {mutate.__name__}"
        assert result.code in (0, 1), where
        if result.code:
            refused[mutate.__name__] += 1
            assert result.out == "", where
            assert result.err.count(" error: ") == 1, f"{where}:\n{result.err[:2000]}"
            assert "Traceback" not in result.err, where
            assert "internal error" not in result.err, f"{where}:\n{result.err}"
            assert len(result.err.splitlines()) <= 14, f"{where}:\n{result.err[:2000]}"
            assert len(result.err) < 6000, where
        if wanted > SAMPLE:
            assert seconds < SECONDS, where
            assert peak() - before < MEGABYTES, where
        seed += 1
        assert seed < 3 * wanted, f"too few are refused: {refused}"
    assert len(refused) == len(MUTATIONS)
