"""Work arrays that a thread reuses from one block of a computation to the next."""

import math
import threading

import numpy as np
from numpy.typing import DTypeLike


class Buffers(threading.local):
    """Work arrays by name, one set for each thread, reused for every block.

    Without reuse a third of the time was spent on page faults: the system takes back a freed array of
    megabytes, and the first access to each page of the next one is a fault.
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
