"""Reference posteriors of Bayesian neural networks, against which the draws of any sampler are graded.

Each reference is a model, its data, and what two independent routes to the same posterior found: means of the
network's functions and of the scales of its priors, with their Monte Carlo errors. :func:`load` gives one,
:func:`grade` says by how many posterior standard deviations a run is off, and which differences are too small
for the reference to tell. Begin with ``reference.py``; ``grading.py``
has the grade.
"""

from numpyro_bnn.references.grading import Differences, Grade, grade
from numpyro_bnn.references.reference import NAMES as names
from numpyro_bnn.references.reference import Quantities, Reference, load

__all__ = ["Differences", "Grade", "Quantities", "Reference", "grade", "load", "names"]
