"""
Random programs with their weights and inputs, and their comparison with the reference.

`values` holds the pieces of a program's text, `makers`, `named` and `flow` the table of what an
operation needs and how it is written, `programs` whole programs, `checking` the comparisons and
`modules` what is checked of a random module. `python -m fuzz SEED ...` in the folder of the unit
tests checks single modules.
"""

from fuzz.checking import assert_close, check, expected, parsed, run_steps
from fuzz.programs import Case, Inputs, Step, random_case, random_program
from fuzz.weights import BLOCKED, FORMATS, PLAIN, Weights

__all__ = [
    "BLOCKED",
    "FORMATS",
    "PLAIN",
    "Case",
    "Inputs",
    "Step",
    "Weights",
    "assert_close",
    "check",
    "expected",
    "parsed",
    "random_case",
    "random_program",
    "run_steps",
]
