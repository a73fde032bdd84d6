"""Axes, colours and legends of all plots, for light and dark backgrounds and for the colour-blind.

Colours of data and of lines that only guide the eye come from the axes themselves, so that they
follow the style sheet; everything else is from the palette of Okabe and Ito (2008), which
stays apart under the common kinds of colour blindness, in an order that keeps contrast with black
and with white.
"""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.typing import ColorType
from numpy.typing import ArrayLike

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# The same palette with its brighter half first, for dark backgrounds.
PALETTE_ON_DARK = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00")
# When the colours of the palette are used up, lines differ by their dashes.
_DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P")


def axes_or_new(ax: Axes | None, size: tuple[float, float] = (6.4, 4.0)) -> Axes:
    """The axes given, or those of a new figure."""
    if ax is not None:
        return ax
    return plt.subplots(figsize=size, layout="constrained")[1]


def foreground(ax: Axes) -> ColorType:
    """Colour of text on these axes, which any style sheet makes readable."""
    return ax.xaxis.label.get_color()


def palette(ax: Axes) -> tuple[str, ...]:
    """Colours for these axes, by the brightness of their background."""
    red, green, blue, alpha = to_rgba(ax.get_facecolor())
    if alpha == 0 and isinstance(ax.figure, Figure):
        red, green, blue, alpha = to_rgba(ax.figure.get_facecolor())
    is_dark = alpha > 0 and 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
    return PALETTE_ON_DARK if is_dark else PALETTE


def color_at(ax: Axes, index: int) -> str:
    """The colour of the line with this number."""
    colors = palette(ax)
    return colors[index % len(colors)]


def marker_at(index: int) -> str:
    """The marker of the line with this number; it changes when the colours repeat."""
    return MARKERS[(index + index // len(PALETTE)) % len(MARKERS)]


def line_style(ax: Axes, index: int) -> dict[str, Any]:
    """Colour and dashes of the line of this number."""
    dashes = _DASHES[index // len(PALETTE) % len(_DASHES)]
    return {"color": color_at(ax, index), "linestyle": dashes}


def legend_above(ax: Axes, columns: int = 3) -> None:
    """A legend above what is drawn: the axes are made higher by its height. Call it last."""
    # Above the axes it would cover a title that is set later.
    legend = ax.legend(
        loc="upper left",
        borderaxespad=0.2,
        ncols=columns,
        # The frame is nearly opaque, so that a line through the whole axes does not cross the words.
        framealpha=0.85,
        edgecolor="none",
    )
    rows = -(-len(legend.get_texts()) // columns)
    points = 1.6 * float(legend.get_texts()[0].get_fontsize()) * rows
    share = min(0.5, points / (72 * ax.get_window_extent().height / ax.figure.dpi))
    # The height on the page is scaled, which on a logarithmic axis multiplies the limits by another factor.
    scale = ax.yaxis.get_transform()
    low, high = scale.transform(np.array(ax.get_ylim(), np.float64))
    top = scale.inverted().transform(np.array([low + (high - low) / (1 - share)]))[0]
    ax.set_ylim(top=float(top))


def label_axes(ax: Axes, x: str, y: str) -> None:
    """Name both axes and leave out the frame above and to the right."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.spines[["top", "right"]].set_visible(False)


def chains_by_draws(value: ArrayLike) -> np.ndarray:
    """An array (chain, draw) from one like it or from the draws of one chain."""
    array = np.asarray(value, np.float64)
    return array[None] if array.ndim == 1 else array


def flat_values(value: ArrayLike | Mapping[str, ArrayLike]) -> np.ndarray:
    """All numbers of an array or of a mapping of arrays."""
    parts = value.values() if isinstance(value, Mapping) else [value]
    return np.concatenate([np.zeros(0), *(np.ravel(np.asarray(part)) for part in parts)])
