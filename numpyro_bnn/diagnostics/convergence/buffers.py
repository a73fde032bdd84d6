"""Work space that is kept from one block of an array computation to the next."""

import math
import threading
from typing import Any

import numpy as np


class Buffers(threading.local):
    """Arrays that a thread uses again for every block.

    An array of megabytes is given back to the system when it is freed, and each page of the
    next one costs a fault: a third of the time went there.
    """

    def __call__(self, name: str, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        held = self.__dict__.get(name)
        if held is None or held.size < size:
            held = self.__dict__[name] = np.empty(size, np.uint8)
        return held[:size].view(dtype).reshape(shape)


buffer = Buffers()
