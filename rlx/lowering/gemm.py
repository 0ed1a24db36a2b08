"""
Rows of f32 activations times packed weights, in f32.

A unit of panels (the weights of a group, or two neighbours of a single one) is dequantised into a
scratch, 16 f32 for each k, and multiplied with all rows by register tiles. Every tile adds
the products of an output in the order of k, one after the other: a row's result depends neither on
the rows beside it nor on the number of threads, to the bit.

Where k is too large for the scratch it is cut into blocks, for chunks of rows whose sums wait in a
second scratch between the blocks. Tiles, and what fills the scratch, are functions that all
contractions of a module share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rlx.lowering.contract import Group, check, shares
from rlx.lowering.emitter import Function, Module, Value, i64
from rlx.lowering.formats import FORMATS, block_columns, load_float, scales_at
from rlx.lowering.formats import panel_bytes as packed_panel_bytes
from rlx.lowering.gemv import Store
from rlx.lowering.target import PANEL, Target

SCRATCH = 256 * 1024
"""Bytes of dequantised panels at a time: inside every L2 cache, and a thread's stack."""

_LINE = 4 * PANEL
