"""Work arrays of a thread that are reused from one block of a computation to the next."""

import math
import threading

import numpy as np
from numpy.typing import DTypeLike


class Buffers(threading.local):
    """Work arrays by name, one set for each thread, reused for every block.

    A freed array of megabytes is returned to the system, and the next one costs a page fault for each of
    its pages: a third of the time was spent there.
    """

    def __call__(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float64
    ) -> np.ndarray:
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        held = self.__dict__.get(name)
        if held is None or held.size < size:
            held = self.__dict__[name] = np.empty(size, np.uint8)
        return held[:size].view(dtype).reshape(shape)


buffer = Buffers()
