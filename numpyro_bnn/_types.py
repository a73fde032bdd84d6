"""Types of arguments that several rooms share."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.typing import ArrayLike

# A pytree of arrays: a position, a momentum, the state of an ingredient, the inputs of a network.
PyTree: TypeAlias = Any
# An array of NumPy or JAX.
Array: TypeAlias = jax.Array | np.ndarray
# A number, which may be traced.
Number: TypeAlias = float | jax.Array
# Values that a user gave: an array of NumPy or JAX, or a number.
Values: TypeAlias = ArrayLike
# Outputs of a network, or the network, which is then applied to the rows.
Outputs: TypeAlias = jax.Array | Callable[[PyTree], jax.Array]
