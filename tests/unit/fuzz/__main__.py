"""
Checks the modules of seeds: `python -m fuzz 17 18` in the folder of this package.

`--worker` reads seeds from the standard input, one a line, and answers each with a line of JSON.
"""

from __future__ import annotations

import json
import sys
import traceback

from fuzz.modules import RefusedError, check_module
from fuzz.programs import random_program


def answer(seed: int) -> dict[str, object]:
    """Return what came of a seed: nothing, a refusal, or a failure."""
    try:
        check_module(seed)
    except RefusedError as e:
        return {"seed": seed, "refused": str(e)}
    except Exception:
        return {"seed": seed, "failed": traceback.format_exc()}
    return {"seed": seed}


def main() -> int:
    if sys.argv[1:] == ["--worker"]:
        for line in sys.stdin:
            print(json.dumps(answer(int(line))), flush=True)
        return 0
    wrong = 0
    for seed in map(int, sys.argv[1:]):
        got = answer(seed)
        if len(got) > 1:
            wrong += 1
            print(random_program(seed).text)
        print(f"seed {seed}: {got.get('refused') or got.get('failed') or 'as it should be'}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
