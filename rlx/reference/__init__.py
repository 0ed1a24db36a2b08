"""
What every operation of HIR and MIR means, in numpy: the oracle of the tests.

Never on an execution path: compiled programs don't import this.
"""

from rlx.reference.interpreter import Reference
from rlx.reference.primitives import constant, dense, fold
from rlx.reference.weights import ArrayWeights, GgufWeights, Quantized, WeightSource

__all__ = [
    "ArrayWeights",
    "GgufWeights",
    "Quantized",
    "Reference",
    "WeightSource",
    "constant",
    "dense",
    "fold",
]
