"""``python -m numpyro_bnn``: the command line, see :mod:`numpyro_bnn.cli`."""

from numpyro_bnn.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
