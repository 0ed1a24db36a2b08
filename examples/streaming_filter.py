"""
A low-pass filter for sound that comes in blocks, and the three phases of a program.

    python examples/streaming_filter.py

The prologue designs the filter from its cutoff, a weight: it runs once, when the program is loaded.
The steady state filters a block; the samples before the block come as an input, and those that the
next one needs are an output. The epilogue, after the last product, measures how loud the block is.
The blocks together are compared with the whole signal, filtered at once in numpy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sounds import Signal, plucked

import rlx

TAPS, BLOCK, RATE = 129, 512, 16000
CUTOFF = 700.0
"""Hz; what is above it is taken away."""

PAST = TAPS - 1
SINE = f"tensor<{TAPS}xf32>"
WINDOWS = f"tensor<{BLOCK}x{TAPS}xf32>"
RESULT = f"tensor<{BLOCK}x1xf32>"

PROGRAM = f"""
builtin.module @streaming_filter {{
  hir.weight @cutoff "cutoff" : tensor<1xf32>

  func.func @main(
      %block: tensor<{BLOCK}xf32> {{rlx.name = "block"}},
      %past: tensor<{PAST}xf32> {{rlx.name = "past"}}
  ) -> ({RESULT} {{rlx.name = "filtered"}}, tensor<{PAST}xf32> {{rlx.name = "next"}},
        tensor<f32> {{rlx.name = "decibels"}}) {{

    // The filter, sin(2 pi c t) / (pi t) under a Hann window: of the weight alone, so it runs once.
    %c1 = hir.load_weight @cutoff : tensor<1xf32>
    %c = mir.broadcast %c1 : tensor<1xf32> -> {SINE}
    %i = mir.iota axis 0 : {SINE}
    %middle = mir.constant dense<{PAST / 2}> : {SINE}
    %t = mir.binary sub %i, %middle : {SINE}
    %pi = mir.constant dense<{np.pi}> : {SINE}
    %two = mir.constant dense<2.0> : {SINE}
    %turn = mir.binary mul %t, %pi : {SINE}
    %rate = mir.binary mul %c, %two : {SINE}
    %angle = mir.binary mul %turn, %rate : {SINE}
    %sine = mir.unary sin %angle : {SINE}
    %ratio = mir.binary div %sine, %turn : {SINE}
    %zero = mir.constant dense<0.0> : {SINE}
    %here = mir.compare eq %t, %zero : {SINE} -> tensor<{TAPS}xi1>
    %ideal = mir.select %here, %rate, %ratio : tensor<{TAPS}xi1>, {SINE}
    %step = mir.constant dense<{2 * np.pi / (TAPS + 1)}> : {SINE}
    %place = mir.binary mul %t, %step : {SINE}
    %cosine = mir.unary cos %place : {SINE}
    %half = mir.constant dense<0.5> : {SINE}
    %low = mir.binary mul %cosine, %half : {SINE}
    %window = mir.binary add %low, %half : {SINE}
    %filter = mir.binary mul %ideal, %window : {SINE}
    %column = mir.reshape %filter : {SINE} -> tensor<{TAPS}x1xf32>

    // A block: each sample is a product of the filter and the samples up to it.
    %x = mir.concat axis 0 (%past, %block)
      : (tensor<{PAST}xf32>, tensor<{BLOCK}xf32>) -> tensor<{PAST + BLOCK}xf32>
    %windows = mir.window %x axis 0 size {TAPS} stride 1 step 1
      : tensor<{PAST + BLOCK}xf32> -> {WINDOWS}
    %filtered = mir.dot %windows, %column : {WINDOWS}, tensor<{TAPS}x1xf32> -> {RESULT}
    %next = mir.slice %x starts [{BLOCK}] steps [1]
      : tensor<{PAST + BLOCK}xf32> -> tensor<{PAST}xf32>

    // How loud it is: 10 log10 of the mean square.
    %square = mir.binary mul %filtered, %filtered : {RESULT}
    %power = mir.reduce mean %square axes [0, 1] : {RESULT} -> tensor<f32>
    %least = mir.constant dense<1.0e-12> : tensor<f32>
    %some = mir.binary max %power, %least : tensor<f32>
    %log = mir.unary log %some : tensor<f32>
    %scale = mir.constant dense<{10 / np.log(10)}> : tensor<f32>
    %decibels = mir.binary mul %log, %scale : tensor<f32>
    func.return %filtered, %next, %decibels : {RESULT}, tensor<{PAST}xf32>, tensor<f32>
  }}
}}
"""


def phases(text: str) -> dict[str, int]:
    """Return how many operations of the compiled program run in each phase."""
    names = ("prologue", "steady_state", "epilogue")
    return {name: text.count(f"phase = #mir<phase {name}>") for name in names}


def at_once(signal: Signal) -> NDArray[np.float64]:
    """Return the whole signal filtered in float64."""
    t = np.arange(TAPS) - PAST / 2
    window = 0.5 + 0.5 * np.cos(2 * np.pi * t / (TAPS + 1))
    taps = 2 * CUTOFF / RATE * np.sinc(2 * CUTOFF / RATE * t) * window
    return np.convolve(signal.astype(np.float64), taps)[: len(signal)]


def main() -> float:
    """Filter a plucked string in blocks; return the normalised squared error."""
    cutoff = np.array([CUTOFF / RATE], np.float32)
    step = rlx.compile(PROGRAM, {"cutoff": cutoff})
    print("operations of each phase:", phases(step.ir("mir")))

    signal = plucked(196.0, 1.0, RATE)[: RATE // BLOCK * BLOCK]
    past = np.zeros(PAST, np.float32)
    parts: list[NDArray[np.float32]] = []
    for i, block in enumerate(signal.reshape(-1, BLOCK)):
        filtered, past, decibels = step(block, past)
        parts.append(filtered.reshape(-1))
        if i % 8 == 0:
            print(f"{i * BLOCK / RATE:5.2f} s {decibels:6.1f} dB")

    wanted = at_once(signal)
    error = float(np.square(np.concatenate(parts) - wanted).sum() / np.square(wanted).sum())
    print(f"normalised squared error against the whole at once: {error:.1e}")
    return error


if __name__ == "__main__":
    main()
